"""Litmus programs on the emulator: outcomes within those of the axioms, and races as the axioms have them."""

from __future__ import annotations

import pytest

from emulator.tests.litmus.compare import Compared, compare, count
from emulator.tests.litmus.emulate import observe
from emulator.tests.litmus.families import PLACES, programs
from emulator.tests.litmus.program import Program
from emulator.tests.whole_tables import IS_WHOLE
from emulator.tests.worlds import EmulatorLibrary

PER_FAMILY = 40 if IS_WHOLE else 2

LIMITS = ("fence order", "MP through an atomic", "barrier and flag")
"""Families in which the detector reports a weak order too many: the order of two fence.sc follows from a read of a
value that a store of the other thread has overwritten, or from a plain flag that an atomic has passed on or that a
thread without the fence has stored."""


@pytest.fixture(scope="module")
def compared(emulator: EmulatorLibrary) -> list[Compared]:
    """Both answers for all programs."""
    return compare(emulator.path, programs(PER_FAMILY))


def described(wrong: list[Compared]) -> str:
    """Programs with both answers."""
    return "\n".join(f"{one.program}\n  axioms: {one.verdict}\n  seen: {one.observed}" for one in wrong[:3])


def test_there_are_programs_of_each_kind(compared: list[Compared]) -> None:
    counted = count("all", compared)
    assert min(counted.racy, counted.right) > len(compared) // 4
    assert len(compared) > (1000 if IS_WHOLE else 55)


def test_all_runs_end(compared: list[Compared]) -> None:
    wrong = [one for one in compared if one.observed.failures or one.observed.other]
    assert not wrong, described(wrong)


def test_each_outcome_is_one_that_the_axioms_allow(compared: list[Compared]) -> None:
    wrong = [one for one in compared if one.impossible]
    assert not wrong, described(wrong)


def test_each_race_of_an_interleaving_is_found(compared: list[Compared]) -> None:
    wrong = [one for one in compared if one.is_racy and not one.is_found]
    assert not wrong, described(wrong)


def test_no_race_is_reported_that_the_axioms_do_not_have(compared: list[Compared]) -> None:
    false = [(one, one.observed.races[pair]) for one in compared for pair in one.false_pairs]
    wrong = [one for one, of in false if of != "weak_order" or one.program.family not in LIMITS]
    assert not wrong, described(wrong)


def test_each_race_has_the_class_of_the_axioms(compared: list[Compared]) -> None:
    wrong = [one for one in compared if one.wrong_classes]
    assert not wrong, described(wrong)


@pytest.mark.parametrize("places", PLACES, ids="{} of threads".format)  # "gpu" alone is a mark of tests that need one
def test_threads_run_in_both_orders(emulator: EmulatorLibrary, places: str) -> None:
    """Otherwise races that one order shows alone would be missed for want of it."""
    threads = "r0 = exch.relaxed.sys x 1", "r0 = exch.relaxed.sys x 2"
    program = Program.of("order", threads, PLACES[places], in_cluster=places == "cluster")
    (seen,) = observe(emulator.path, [program])
    assert {dict(outcome)["x"] for outcome in seen.outcomes} == {1, 2}
