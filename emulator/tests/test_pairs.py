"""Pairs of programs of several ranks: the right one is silent, the wrong one is found for its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator.tests.paired import FOLDER, IDIOMS, ONE_SIDED, SHIPPED, pairs_of, run, verdicts
from emulator.tests.whole_tables import whole
from rank_emulator import Schedule

CORE = [FOLDER / f"{name}.cu" for name in ("one_sided", "graphs", "clusters", "allocations", "counters")]
"""Files that run without PKB_TEST_EMULATED."""
ALL = [*ONE_SIDED, *IDIOMS, *SHIPPED]


@pytest.fixture
def path(emulator_path: Path | None) -> Path:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return emulator_path


@pytest.mark.parametrize(
    "source",
    [pytest.param(source, marks=() if source in CORE else whole, id=source.stem) for source in ALL],
)
def test_right_is_silent_and_wrong_is_found(path: Path, source: Path) -> None:
    surprises = {
        f"{verdict.pair.name}, {'right' if verdict.is_right else 'wrong'}": verdict.found
        for verdict in verdicts(path, source)
        if not verdict.is_expected
    }
    assert surprises == {}


@whole
def test_a_rank_gets_two_rounds_ahead_of_one_that_has_passed_its_wait(path: Path) -> None:
    """One buffer for all rounds: where the late rank sees the flag of the round after, all is in order."""
    schedules = [Schedule("one_ahead", seed) for seed in range(24)]
    results = run(path, FOLDER / "protocols.cu", ["parity_by_barriers_wrong"], 2, schedules)
    assert sum(bool(result.findings) for result in results) >= 4


def test_there_are_enough_and_each_is_another() -> None:
    one_sided = [pair for source in ONE_SIDED for pair in pairs_of(source)]
    shipped = [pair for source in SHIPPED for pair in pairs_of(source)]
    assert len(one_sided) >= 60 and len(shipped) >= 40
    assert sorted(ALL) == sorted(FOLDER.glob("*.cu"))
    names = [pair.name for source in ALL for pair in pairs_of(source)]
    assert len(set(names)) == len(names)
    for pair in shipped:
        assert re.search(r"^// https://github\.com/[\w./-]+/(?:pull|issues)/\d+$", pair.comment, re.MULTILINE), (
            pair.name
        )
