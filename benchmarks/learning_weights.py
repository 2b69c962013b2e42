"""Weights of a learning run: the newest of a stage, kept in parts, and restored in another place."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.learner.best_window import BEST
from pkb_gym.training.learner.weight_difference import WEIGHTS, parts_of, restore_difference, store_difference

LEARNED = {"sft": "model", "grpo": "sft"}
"""Stages whose weights are kept, and the stage whose weights they are kept as the difference to."""
KEPT_WEIGHTS, BEGIN = "kept", "grpo_begin"
"""Folders of the parts, and of the policy that GRPO goes on with in another place."""
OUT_BYTES = 60 * 2**20
"""Size of `--out` beyond which no parts are copied there."""
STATE = "trainer_state.json"


def newest_weights(folder: Path) -> Path:
    """The folder of the most steps: a checkpoint of a stage, or the stage's own folder where there is none."""
    steps = {
        path: int(json.loads((path / STATE).read_bytes())["global_step"])
        for path in (folder, *folder.glob("checkpoint-*"))
        if (path / WEIGHTS).exists() and (path / STATE).exists()
    }
    return max(steps, key=lambda path: (steps[path], path == folder), default=folder)


def judged_weights(folder: Path) -> Path:
    """The policy of a stage: after its best steps where it has kept them (`--best_window`), else the newest."""
    return folder / BEST if (folder / BEST / WEIGHTS).exists() else newest_weights(folder)


def keep_weights(name: str, runs: Path, out: Path, *, is_over: bool) -> dict[str, dict[str, float]]:
    """Stores the weights that a stage has so far, and copies the parts to `out` where they fit.

    Args:
        name: Name of the stage.
        runs: Folder of all stages.
        out: Folder of the collected files.
        is_over: Whether the stage is finished; what is stored is then the policy that is judged, whose weights become
            those that the parts give. Else it is the newest, to go on with.

    Returns:
        Figures by name of the stage; nothing where there are no weights, or they could not be stored.
    """
    base, weights = runs / LEARNED[name], (judged_weights if is_over else newest_weights)(runs / name)
    if not (weights / WEIGHTS).exists():
        return {}
    began = time.monotonic()
    try:
        stored = store_difference(base, weights, runs / KEPT_WEIGHTS, name)
        if is_over:
            restore_difference(base, runs / KEPT_WEIGHTS, name, weights)
    except (ConfigError, OSError) as error:
        print(f"{name}: the weights are not stored: {error}", flush=True)
        return {}
    out.mkdir(parents=True, exist_ok=True)
    others = sum(path.stat().st_size for path in out.iterdir() if path not in parts_of(out, name))
    if fits := others + stored.size <= OUT_BYTES:
        for old in parts_of(out, name):
            old.unlink()
        for part in stored.parts:
            shutil.copy(part, out / part.name)
    figures = {"bytes": stored.size, "weights": stored.weights, "relative_error": round(stored.relative_error, 4)}
    figures |= {"seconds": round(time.monotonic() - began, 1), "step": step_of(weights)}
    print(f"{name}: weights stored, {'copied' if fits else 'too large to be copied'}: {figures}", flush=True)
    return {name: figures}


def restore_kept(name: str, kept: Path, runs: Path) -> None:
    """Restores what a stage had learned in another place: SFT is finished by it, GRPO goes on with it.

    Args:
        name: Name of the stage.
        kept: Folder of the parts.
        runs: Folder of all stages.

    Raises:
        ConfigError: the parts are incomplete, or of another base.
    """
    folder = runs / (BEGIN if name == "grpo" else name)
    if parts_of(kept, name) and not (folder / WEIGHTS).exists():
        restore_difference(runs / LEARNED[name], kept, name, folder)
        if name == "sft":
            (runs / "sft.finished").touch()


def step_of(weights: Path) -> int:
    """The number of steps that a policy was trained for; 0 where its folder does not give it."""
    state = weights / STATE
    return int(json.loads(state.read_bytes())["global_step"]) if state.exists() else 0
