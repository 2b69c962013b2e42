"""Keeps the policy of a run's best steps: early stopping by the reward of the training, without a held-out prompt.

At each checkpoint the mean reward of the last steps is compared with the best so far; where it is greater, the weights
become those in `best`. A window should be as long as an epoch, so that all windows have about the same prompts. A
policy that training has only harmed since the first window leaves the one of the first window.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from pkb_gym.engine.support.atomic_write import write_atomically

BEST, RECORD = "best", "best.json"
"""The folder of the weights in that of the run, and beside it the record of their window."""
NOT_OF_THE_MODEL = ("optimizer*", "scheduler*", "rng_state*", "rollouts_*.pt", "rollouts.jsonl", "archive.jsonl")
"""Files of a checkpoint that only a run that resumes needs."""


class BestWindow(TrainerCallback):
    """Copies the weights of a checkpoint after the best steps so far.

    Args:
        steps: Number of steps in a window.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Judges the window that a checkpoint ends; it is complete, and its step logged."""
        rewards = [float(entry["reward"]) for entry in state.log_history if "reward" in entry]
        folder = Path(str(args.output_dir))
        if state.is_world_process_zero and len(rewards) >= self._steps:
            mean = fmean(rewards[-self._steps :])
            best = json.loads((folder / RECORD).read_bytes()) if (folder / RECORD).exists() else None
            if best is None or best["step"] > state.global_step or mean > best["reward"]:
                _copy(folder / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", folder / BEST)
                record = {"step": state.global_step, "steps": self._steps, "reward": round(mean, 4)}
                write_atomically(folder / RECORD, json.dumps(record) + "\n")
        return control


def _copy(checkpoint: Path, best: Path) -> None:
    """Replaces a folder of weights; one that is interrupted leaves the earlier folder or none."""
    unfinished = best.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(checkpoint, unfinished, ignore=shutil.ignore_patterns(*NOT_OF_THE_MODEL))
    shutil.rmtree(best, ignore_errors=True)
    unfinished.rename(best)
