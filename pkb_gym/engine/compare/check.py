"""Stage check: every output of every rank against the expected one.

Comparisons are made in the reference gang, one process per rank, on the frozen candidate's memory; `merge` runs in the
evaluator and makes the report.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.comparison import CallVerdict, Comparison, alike
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.check_report import CheckReport, Mismatch

if TYPE_CHECKING:
    import torch

MAX_MISMATCHES = 8
"""Mismatches that a report lists."""

TOGETHER = 256
"""Calls whose outputs are compared before the device is waited for; copies of them are held until then."""


class RankCheck(Record):
    """The comparison of one rank's outputs, of all calls of a block."""

    rank: int
    outputs: int
    elements: int
    elements_right: int
    mismatches: tuple[Mismatch, ...]


def compare_all(rank: int, calls: Iterable[Call]) -> RankCheck:
    """One report of a rank's calls; the device is waited for once per `TOGETHER` of them."""
    verdicts = [verdict for batch in _batches(calls) for verdict in _compare(batch)]
    return RankCheck(
        rank=rank,
        outputs=sum(verdict.outputs for verdict in verdicts),
        elements=sum(verdict.elements for verdict in verdicts),
        elements_right=sum(verdict.elements_right for verdict in verdicts),
        mismatches=tuple(mismatch for verdict in verdicts for mismatch in verdict.mismatches),
    )


def _batches(calls: Iterable[Call]) -> Iterator[list[Call]]:
    remaining = iter(calls)
    while batch := list(itertools.islice(remaining, TOGETHER)):
        yield batch


def _compare(batch: Sequence[Call]) -> list[CallVerdict]:
    comparisons = [Comparison(run) for run in alike(batch)]
    values = iter(_numbers([count for comparison in comparisons for count in comparison.counts]))
    return [
        verdict
        for comparison in comparisons
        for verdict in comparison.verdicts(
            list(itertools.islice(values, sum(count.numel() for count in comparison.counts)))
        )
    ]


def _numbers(counts: Sequence[torch.Tensor]) -> list[int]:
    """The values of integer tensors, one after the other; this waits for the device."""
    import torch

    numbers: list[int] = torch.cat([count.reshape(-1) for count in counts]).tolist() if counts else []
    return numbers


def joined(first: CheckReport, second: CheckReport) -> CheckReport:
    """One report over two blocks of calls, the first of which was right."""
    assert first.passed
    return CheckReport(
        trials=first.trials + second.trials,
        outputs_compared=first.outputs_compared + second.outputs_compared,
        outputs_right=first.outputs_right + second.outputs_right,
        elements_compared=first.elements_compared + second.elements_compared,
        elements_right=first.elements_right + second.elements_right,
        mismatches=second.mismatches,
    )


def merge(checks: Sequence[RankCheck], trials: int) -> CheckReport:
    """One report over all ranks and calls; wrong shapes first, then by number of wrong elements."""
    mismatches = sorted(
        (mismatch for check in checks for mismatch in check.mismatches),
        key=lambda m: (m.reason != "shape_or_dtype", m.reason != "values", -m.wrong_elements, m.trial, m.rank),
    )
    wrong = {(m.trial, m.rank, m.output) for m in mismatches if m.reason != "input_modified"}
    outputs = sum(check.outputs for check in checks)
    return CheckReport(
        trials=trials,
        outputs_compared=outputs,
        outputs_right=outputs - len(wrong),
        elements_compared=sum(check.elements for check in checks),
        elements_right=sum(check.elements_right for check in checks),
        mismatches=tuple(mismatches[:MAX_MISMATCHES]),
    )
