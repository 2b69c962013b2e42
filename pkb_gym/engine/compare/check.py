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

MAX_EARNING_CALLS = 16
"""Number of calls, the first of those compared together, that a wrong kernel's earned share is counted over."""


class RankCheck(Record):
    """The comparison of one rank's outputs, of all calls of a block."""

    rank: int
    outputs: int
    elements: int
    elements_right: int
    mismatches: tuple[Mismatch, ...]
    earnable: tuple[tuple[int, str], ...] = ()
    """Trial and leaf of each output that no kernel without any work gets right; empty where nothing is wrong."""
    untouched: bool = True
    """Whether all wrong outputs hold what lay there before the call."""


def compare_all(rank: int, calls: Iterable[Call]) -> RankCheck:
    """One report of a rank's calls; the device is waited for once per `TOGETHER` of them."""
    verdicts: list[CallVerdict] = []
    earnable: list[tuple[int, str]] = []
    for batch in _batches(calls):
        found, of_batch = _compare(batch)
        verdicts += found
        earnable += of_batch
    return RankCheck(
        rank=rank,
        outputs=sum(verdict.outputs for verdict in verdicts),
        elements=sum(verdict.elements for verdict in verdicts),
        elements_right=sum(verdict.elements_right for verdict in verdicts),
        mismatches=tuple(mismatch for verdict in verdicts for mismatch in verdict.mismatches),
        earnable=tuple(earnable),
        untouched=all(verdict.untouched for verdict in verdicts if verdict.mismatches),
    )


def _batches(calls: Iterable[Call]) -> Iterator[list[Call]]:
    remaining = iter(calls)
    while batch := list(itertools.islice(remaining, TOGETHER)):
        yield batch


def _compare(batch: Sequence[Call]) -> tuple[list[CallVerdict], list[tuple[int, str]]]:
    """The verdicts of calls, and what could be earned with them where one is wrong."""
    runs = list(alike(batch))
    comparisons = [Comparison(run) for run in runs]
    values = iter(_numbers([count for comparison in comparisons for count in comparison.counts]))
    verdicts = [
        verdict
        for comparison in comparisons
        for verdict in comparison.verdicts(
            list(itertools.islice(values, sum(count.numel() for count in comparison.counts)))
        )
    ]
    if not any(verdict.mismatches for verdict in verdicts):
        return verdicts, []
    numbered = (
        (comparison, index, call)
        for run, comparison in zip(runs, comparisons, strict=True)
        for index, call in enumerate(run)
    )
    first = itertools.islice(numbered, MAX_EARNING_CALLS)
    return verdicts, [
        (call.plan.trial, leaf) for comparison, index, call in first for leaf in comparison.earnable(index)
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
        earned_share=second.earned_share,
        nothing_written=second.nothing_written,
    )


def merge(checks: Sequence[RankCheck], trials: int) -> CheckReport:
    """One report over all ranks and calls; wrong shapes first, then by number of wrong elements.

    An output is earned where it is right on every rank: a rank's part of the work alone is right on that rank.
    """
    mismatches = sorted(
        (mismatch for check in checks for mismatch in check.mismatches),
        key=lambda m: (m.reason != "shape_or_dtype", m.reason != "values", -m.wrong_elements, m.trial, m.rank),
    )
    wrong = {(m.trial, m.rank, m.output) for m in mismatches if m.reason != "input_modified"}
    outputs = sum(check.outputs for check in checks)
    earnable = {output for check in checks for output in check.earnable}
    missed = {(trial, output) for trial, _, output in wrong}
    earned_share = len(earnable - missed) / len(earnable) if earnable else 0.0
    return CheckReport(
        trials=trials,
        outputs_compared=outputs,
        outputs_right=outputs - len(wrong),
        elements_compared=sum(check.elements for check in checks),
        elements_right=sum(check.elements_right for check in checks),
        mismatches=tuple(mismatches[:MAX_MISMATCHES]),
        earned_share=earned_share if mismatches else None,
        nothing_written=bool(wrong) and not earned_share and all(check.untouched for check in checks),
    )
