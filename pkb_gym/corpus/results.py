"""Results as a data set: one row for each attempt of a file of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from pkb_gym.corpus.files import datasets_module, save_parquet
from pkb_gym.engine.records.attempt import Attempt


class ResultRow(TypedDict):
    """One row of `pkb export results`; `cards.COLUMNS` describes the columns."""

    problem: str
    agent: str | None
    sample: int
    turn: int
    verdict: str
    stage: str | None
    device: str | None
    world_size: int | None
    size: str | None
    dtype: str | None
    seed: int | None
    speedup: float | None
    speedup_low: float | None
    reward: float | None
    reward_name: str | None
    source: str | None
    record: str


def result_row(attempt: Attempt) -> ResultRow:
    """The row of an attempt."""
    feedback, config = attempt.feedback, attempt.config
    timing = None if feedback is None else feedback.timing
    size = None if config is None else config.size_argument
    return {
        "problem": attempt.problem,
        "agent": attempt.agent,
        "sample": attempt.sample,
        "turn": attempt.turn,
        "verdict": attempt.verdict,
        "stage": None if feedback is None or feedback.stage is None else feedback.stage.value,
        "device": None if config is None else config.device,
        "world_size": None if config is None else config.world_size,
        "size": size if size is None or isinstance(size, str) else json.dumps(size),
        "dtype": None if config is None else config.dtype,
        "seed": None if config is None else config.seed,
        "speedup": None if timing is None else timing.speedup,
        "speedup_low": None if timing is None else timing.speedup_low,
        "reward": attempt.reward,
        "reward_name": attempt.reward_name,
        "source": None if attempt.source is None else attempt.source.encode(errors="backslashreplace").decode(),
        "record": attempt.to_line(),
    }


def write_results(out: Path, attempts: Sequence[Attempt]) -> None:
    """Writes the split `train` of the data set `results`.

    Args:
        out: Folder of the data set; made where there is none.
        attempts: Attempts in the order of the rows.

    Raises:
        ConfigError: the package `datasets` is missing.
    """
    ds = datasets_module()
    text, whole, number = ds.Value("string"), ds.Value("int64"), ds.Value("float64")
    kinds: dict[object, Any] = {str: text, str | None: text, int: whole, int | None: whole, float | None: number}
    features = ds.Features({name: kinds[kind] for name, kind in get_type_hints(ResultRow).items()})
    save_parquet(out, "results", {"train": [result_row(attempt) for attempt in attempts]}, features)
