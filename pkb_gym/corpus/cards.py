"""The card of an exported folder, by which `datasets.load_dataset` finds what it holds, as on the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.atomic_write import write_atomically

TASK = {
    "problem": "name in the catalogue",
    "language": "of the kernel: cpp, cuda or python",
    "device": "cpu or cuda",
    "world_size": "ranks",
    "size": "a named size, or axes as JSON",
    "dtype": "floating dtype",
    "seed": "fixes the inputs, together with the evaluator's key",
    "style": "of prompt and feedback: full, standard or brief",
}

COLUMNS: dict[str, dict[str, str]] = {
    "prompts": TASK | {"prompt": "system and user message"},
    "corpus": {
        "id": "of the conversation",
        **TASK,
        "kind": "single: right at once; repair: mistakes are corrected first",
        "variant": "knobs of the kernel",
        "breakage": "the mistakes; null for single",
        "stage": "furthest stage of the last submission",
        "failure": "of the last submission; null where it passed",
        "source_hash": "of the last submission",
        "prompt_chars": "length of the prompt",
        "source_chars": "length of the last submission",
        "reward": "of the conversation",
        "speedup": "of the last submission; null where it was not timed",
        "messages": "the conversation, with calls of the tool `submit`",
        "rewards": "of each submission",
        "feedback": "the Feedback record of each submission, as JSON",
    },
    "lessons": {
        "id": "of the lesson",
        **TASK,
        "kind": "lesson",
        "source_hash": "of the expert",
        "reward": "null: nothing was evaluated",
        "messages": "the conversation, with calls of the tool `submit`; figures stand in the user's messages",
        "steps": "naive, fused or overlapped, of each submission",
        "times": "the measurement of each submission, as JSON; null where none is kept",
        "rewards": "empty",
        "feedback": "empty",
    },
    "results": {
        "problem": TASK["problem"],
        "agent": "who wrote it; null where it is not given",
        "sample": "number of the episode on this problem",
        "turn": "number of the submission in its episode",
        "verdict": "passed, a failure, no_submission, truncated, refused or infrastructure",
        "stage": "furthest stage; null where nothing was evaluated",
        "device": TASK["device"],
        "world_size": TASK["world_size"],
        "size": TASK["size"],
        "dtype": TASK["dtype"],
        "seed": TASK["seed"],
        "speedup": "the baseline's time over the kernel's; null where it was not timed",
        "speedup_low": "lower end of its 95 % interval",
        "reward": "value of the submission; null where it was not paid",
        "reward_name": "the reward",
        "source": "what was submitted; lone surrogates are escaped",
        "record": "the whole Attempt record, as JSON",
    },
}
"""Name of a data set -> its columns and what they hold."""

TAG = "pkb-gym"
"""The tag of the card; a README.md without it was not written by an export."""

ABOUT = {
    "prompts": "Prompts: the system and user message of a task, without a solution of its problem.",
    "corpus": "Conversations in which kernels are submitted and answered with the feedback of a real evaluation.",
    "lessons": "Ways from a naive kernel to the known-good one, with what was measured of each step.",
    "results": "Evaluated submissions, one a row.",
}

TEXT = """
# {title}

Kernels for several ranks, for the problems of ParallelKernelBench, written by `pkb export` of pkb-gym {version}.

```python
from datasets import load_dataset

{name} = load_dataset("{place}", "{name}")
```
"""

PART = """
## {name}

{about}

Made on {date} by `{command}`, on {processor}{gpus}.

| split | rows |
|---|---:|
{splits}

| column | meaning |
|---|---|
{columns}
"""


def parquet_file(out: Path, name: str, split: str) -> Path:
    """The file of a split of a data set in an exported folder."""
    return out / "data" / name / f"{split}.parquet"


def write_card(out: Path) -> None:
    """Writes `README.md`: the configurations that `load_dataset` reads, and what the columns hold.

    Data sets without rows are left out; without any there is no card.

    Args:
        out: Exported folder with `manifest.json`.

    Raises:
        ConfigError: there is a README.md that is no card of ours.
    """
    from huggingface_hub import DatasetCardData

    manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    splits = {name: sorted(path.stem for path in (out / "data" / name).glob("*.parquet")) for name in COLUMNS}
    names = [name for name in COLUMNS if name in manifest and splits[name]]
    if not names:
        return
    configs = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": str(parquet_file(Path(), name, split))} for split in splits[name]],
        }
        for name in names
    ]
    data = DatasetCardData(license="apache-2.0", language="en", tags=[TAG, "code", "gpu"], configs=configs)
    versions = manifest[names[0]]["versions"]
    text = TEXT.format(title="pkb-gym data sets", version=versions["pkb-gym"], place=out.name, name=names[0])
    parts = "".join(_part(name, manifest[name], splits[name], out) for name in names)
    path = out / "README.md"
    if path.exists() and f"- {TAG}\n" not in path.read_text(encoding="utf-8"):
        raise ConfigError(f"{path} is no card of pkb export; --out names another folder")
    write_atomically(path, f"---\n{data.to_yaml()}\n---\n{text}{parts}")


def _part(name: str, made: dict[str, Any], splits: list[str], out: Path) -> str:
    from pyarrow import parquet

    rows = {split: parquet.read_metadata(parquet_file(out, name, split)).num_rows for split in splits}
    machine = made["machine"]
    return PART.format(
        name=name,
        about=ABOUT[name],
        date=made["date"][:10],
        command=made["command"],
        processor=machine["processor"],
        gpus="".join(f", {gpu}" for gpu in sorted(set(machine["gpus"]))),
        splits="\n".join(f"| {split} | {count} |" for split, count in rows.items()),
        columns="\n".join(f"| `{column}` | {meaning} |" for column, meaning in COLUMNS[name].items()),
    )
