"""The reports of the process of emulated ranks, as they may stand in a record.

Host code of a candidate shares that process with the emulator, and can have it report anything of the right types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pkb_gym.engine.support.printable import printable
from pkb_gym.engine.wire.emulated_orders import MAX_FINDINGS, MAX_TEXT, DetectorFinding, RanksDone

MAX_LINKS = 4096
"""Entries of traffic of one report, at most: several for each pair of ranks."""


def limited(done: RanksDone, world_size: int) -> RanksDone:
    """A report with as many texts as the emulator gives, of its lengths and printable, on ranks that exist.

    Args:
        done: Report as it has arrived.
        world_size: Number of ranks, at least 1.
    """
    ranks = range(world_size)
    fault = done.fault
    if fault is not None:
        fault = replace(fault, rank=fault.rank if fault.rank in ranks else None, text=printable(fault.text, MAX_TEXT))
    return replace(
        done,
        fault=fault,
        instructions=max(0, done.instructions),
        findings=tuple(_finding(finding, ranks) for finding in done.findings[:MAX_FINDINGS]),
        advice=tuple(printable(line, MAX_TEXT) for line in done.advice[:MAX_FINDINGS]),
        links=tuple(
            link
            for link in done.links[:MAX_LINKS]
            if link.rank in ranks and link.owner in ranks and min(link.read_bytes, link.written_bytes) >= 0
        ),
    )


def _finding(finding: DetectorFinding, ranks: Sequence[int]) -> DetectorFinding:
    return replace(
        finding,
        rank=finding.rank if finding.rank in ranks else None,
        owner=finding.owner if finding.owner in ranks else None,
        tensor=None if finding.tensor is None else printable(finding.tensor, MAX_TEXT),
        text=printable(finding.text, MAX_TEXT),
        first=None if finding.first is None else printable(finding.first, MAX_TEXT),
        second=None if finding.second is None else printable(finding.second, MAX_TEXT),
        exposure=None if finding.exposure is None else printable(finding.exposure, MAX_TEXT),
    )
