"""Prompts as verl reads them: `python -m pkb_gym.adapters.verl.dataset train.parquet --split train --seeds 4`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.corpus.prompts import system_text
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.envs.suite import split_names
from pkb_gym.envs.text.turn import DEFAULT_STYLE

AGENT = "pkb_kernels"
"""Name of the agent loop, as the configuration registers it."""


def prompt_rows(settings: EpisodeSettings, seeds: int = 1) -> list[dict[str, Any]]:
    """One row for each problem of the split and each seed.

    Args:
        settings: Settings of the episodes.
        seeds: Number of rows for each problem, with the seeds 0, 1, ...

    Returns:
        Columns of verl's `RLHFDataset`; `extra_info` names problem and seed for the agent loop and for `SubmitTool`.

    Raises:
        ConfigError: The settings do not fit a problem.
    """
    rows: list[dict[str, Any]] = []
    for name in split_names(settings.split):
        text = settings.open_session(name).reset(name, 0)
        messages = [
            {"role": "system", "content": system_text(settings.style or DEFAULT_STYLE)},
            {"role": "user", "content": text},
        ]
        for seed in range(seeds):
            task = {"problem": name, "seed": seed}
            info = {"index": len(rows), **task, "need_tools_kwargs": True}
            info["tools_kwargs"] = {"submit": {"create_kwargs": task}}
            rows.append(
                {
                    "data_source": "pkb",
                    "agent_name": AGENT,
                    "prompt": messages,
                    "reward_model": {"style": "rule", "ground_truth": ""},
                    "extra_info": info,
                }
            )
    return rows


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows to a file, atomically."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(list(rows)), sink)
    write_atomically(path, sink.getvalue().to_pybytes())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m pkb_gym.adapters.verl.dataset", description=__doc__)
    parser.add_argument("out", type=Path, help="the parquet file")
    parser.add_argument("--split", default="train", help="train, test, all, or a category (default: train)")
    parser.add_argument("--seeds", type=int, default=1, help="rows for each problem (default: 1)")
    parser.add_argument("--settings", default="{}", help="JSON of the episodes' other settings, see docs/frameworks.md")
    options = parser.parse_args(arguments)
    settings = EpisodeSettings.of({**json.loads(options.settings), "split": options.split})
    write_parquet(options.out, prompt_rows(settings, options.seeds))


if __name__ == "__main__":
    main()
