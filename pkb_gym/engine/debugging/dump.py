"""Wrong outputs as files: `pkb eval --dump`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.debugging.heat_map import distances, heat_map
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.reference.dumped_tensor import Dumped
from pkb_gym.engine.stages.candidate_run import CandidateRun

MAX_DUMPED = 4
"""Tensors of a report that are written, of all ranks each."""


def dump_mismatches(run: CandidateRun, plan: BlockPlan, report: CheckReport, folder: Path) -> None:
    """Writes the first few wrong outputs of a report, of every rank, and pictures of them.

    Args:
        run: Run whose heap still holds the block.
        plan: Arguments and outputs of the block's calls.
        report: Comparison of the block's outputs.
        folder: Folder that is written to; made if it is not there.

    Raises:
        ConfigError: the folder cannot be written.
    """
    found = [Dumped(one.trial, one.output) for one in report.mismatches if one.reason != "shape_or_dtype"]
    calls = {planned.trial: call for call, planned in enumerate(plan.sets)}
    wanted = [one for one in dict.fromkeys(found) if one.trial in calls][:MAX_DUMPED]
    if not wanted:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run.reference.dump(str(folder.resolve()), [calls[one.trial] for one in wanted], wanted)
        for one in wanted:
            _draw(run, folder, one)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}") from None


def _draw(run: CandidateRun, folder: Path, one: Dumped) -> None:
    ranks = {}
    for rank in range(run.config.world_size):
        got, expected = (one.path(folder, rank, which) for which in ("got", "expected"))
        if got.exists():
            ranks[rank] = distances(np.load(got, allow_pickle=False), np.load(expected, allow_pickle=False))
    title = f"{run.config.language} kernel of {run.feedback.problem.name}: {one.name} in trial {one.trial}"
    (folder / f"trial{one.trial}-{one.name}.svg").write_text(heat_map(title, ranks), encoding="utf-8")
