"""Random traces: the detector's compressed clocks against full ones."""

from __future__ import annotations

from emulator.tests.oracle import random_trace
from emulator.tests.traces import DetectorLibrary

TRACES = 1500
NEVER = 1 << 30


def test_the_first_race_is_that_of_full_vector_clocks(detector: DetectorLibrary) -> None:
    wrong, races = [], 0
    for seed in range(TRACES):
        trace, earliest, latest = random_trace(seed, events=4 + seed % 37)
        findings = [found for found in detector.findings(trace) if found["kind"] == "race"]
        first = min((found["second"]["line"] for found in findings), default=None)
        races += first is not None
        if not (earliest or NEVER) <= (first or NEVER) <= (latest or NEVER):
            wrong.append((seed, earliest, first, latest))
    assert not wrong
    assert TRACES // 10 < races < TRACES, "both sorts occur"
