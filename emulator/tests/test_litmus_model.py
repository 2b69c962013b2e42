"""The axioms of the PTX memory model: litmus tests whose answers are known, and the generated programs."""

from __future__ import annotations

import pytest

from emulator.tests.litmus.families import GROUPS, PLACES, programs
from emulator.tests.litmus.program import Program, parse
from emulator.tests.litmus.verdicts import verdict

LOADS = "r0 = ld.relaxed.sys x", "r1 = ld.relaxed.sys x"

KNOWN: dict[str, tuple[tuple[str, ...], dict[str, int], bool]] = {
    "MP by fences": (
        ("st x 1; fence.acq_rel.sys; st.relaxed.sys y 1", "r0 = ld.relaxed.sys y; fence.acq_rel.sys; r1 = ld x"),
        {"1:r0": 1, "1:r1": 0},
        False,
    ),
    "MP by release and acquire": (
        ("st x 1; st.release.gpu y 1", "r0 = ld.acquire.gpu y; r1 = ld x"),
        {"1:r0": 1, "1:r1": 0},
        False,
    ),
    "MP by relaxed accesses": (
        ("st.relaxed.gpu x 1; st.relaxed.gpu y 1", "r0 = ld.relaxed.gpu y; r1 = ld.relaxed.gpu x"),
        {"1:r0": 1, "1:r1": 0},
        True,
    ),
    "MP with too small a scope": (
        ("st x 1; st.release.cta y 1", "r0 = ld.acquire.cta y; r1 = ld x"),
        {"1:r0": 1, "1:r1": 0},
        True,
    ),
    "MP with a reduction, which is no acquire pattern": (
        ("st x 42; st.release.gpu y 1", "red.relaxed.gpu y 1; fence.acq_rel.gpu; r1 = ld x"),
        {"1:r1": 0, "y": 2},
        True,
    ),
    "MP with an atomic in its place": (
        ("st x 42; st.release.gpu y 1", "r0 = add.relaxed.gpu y 1; fence.acq_rel.gpu; r1 = ld x"),
        {"1:r0": 1, "1:r1": 0, "y": 2},
        False,
    ),
    "SB by fence.sc": (
        (
            "st.relaxed.gpu x 1; fence.sc.gpu; r0 = ld.relaxed.gpu y",
            "st.relaxed.gpu y 1; fence.sc.gpu; r0 = ld.relaxed.gpu x",
        ),
        {"0:r0": 0, "1:r0": 0},
        False,
    ),
    "SB by fence.acq_rel": (
        ("st x 1; fence.acq_rel.gpu; r0 = ld y", "st y 1; fence.acq_rel.gpu; r0 = ld x"),
        {"0:r0": 0, "1:r0": 0},
        True,
    ),
    "LB with dependencies": (("r0 = ld x; st y r0", "r0 = ld y; st x r0"), {"0:r0": 1}, False),
    "LB without": (("r0 = ld x; st y 1", "r0 = ld y; st x 1"), {"0:r0": 1, "1:r0": 1}, True),
    "LB by acquire": (
        ("r0 = ld.acquire.gpu x; st.release.gpu y 1", "r0 = ld.acquire.gpu y; st.release.gpu x 1"),
        {"0:r0": 1, "1:r0": 1},
        False,
    ),
    "CoRR": (("st.relaxed.sys x 1", "; ".join(LOADS)), {"1:r0": 1, "1:r1": 0}, False),
    "CoRR by plain loads": (("st x 1", "r0 = ld x; r1 = ld x"), {"1:r0": 1, "1:r1": 0}, True),
    "atomics of scopes that hold each other": (("r0 = add.relaxed.gpu x 1",) * 2, {"x": 1}, False),
    "atomics of too small a scope": (("r0 = add.relaxed.cta x 1", "r0 = add.relaxed.gpu x 1"), {"x": 1}, True),
    "IRIW by fence.sc": (
        (
            "st.relaxed.gpu x 1",
            "st.relaxed.gpu y 1",
            "r0 = ld.relaxed.gpu x; fence.sc.gpu; r1 = ld.relaxed.gpu y",
            "r0 = ld.relaxed.gpu y; fence.sc.gpu; r1 = ld.relaxed.gpu x",
        ),
        {"2:r0": 1, "2:r1": 0, "3:r0": 1, "3:r1": 0},
        False,
    ),
    "IRIW by acquire": (
        (
            "st.relaxed.gpu x 1",
            "st.relaxed.gpu y 1",
            "r0 = ld.acquire.gpu x; r1 = ld.acquire.gpu y",
            "r0 = ld.acquire.gpu y; r1 = ld.acquire.gpu x",
        ),
        {"2:r0": 1, "2:r1": 0, "3:r0": 1, "3:r1": 0},
        True,
    ),
    "ISA2: releases are cumulative": (
        (
            "st x 1; st.release.gpu y 1",
            "r0 = ld.acquire.gpu y; st.release.gpu z 1",
            "r0 = ld.acquire.gpu z; r1 = ld x",
        ),
        {"1:r0": 1, "2:r0": 1, "2:r1": 0},
        False,
    ),
    "2+2W by fence.sc": (
        (
            "st.relaxed.gpu x 1; fence.sc.gpu; st.relaxed.gpu y 2",
            "st.relaxed.gpu y 1; fence.sc.gpu; st.relaxed.gpu x 2",
        ),
        {"x": 1, "y": 1},
        False,
    ),
    "2+2W by relaxed stores": (
        ("st.relaxed.gpu x 1; st.relaxed.gpu y 2", "st.relaxed.gpu y 1; st.relaxed.gpu x 2"),
        {"x": 1, "y": 1},
        True,
    ),
}
"""Threads in blocks of one GPU, an outcome, and whether it is allowed; those of PTX ISA 8.10 and 8.11 among them."""


@pytest.mark.parametrize("name", KNOWN)
def test_the_axioms_allow_what_is_known_to_be_allowed(name: str) -> None:
    threads, asked, is_allowed = KNOWN[name]
    outcomes = verdict(Program.of(name, threads, PLACES["gpu"])).outcomes
    assert any(asked.items() <= dict(outcome).items() for outcome in outcomes) is is_allowed, sorted(outcomes)


RACES: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "a flag that is released and acquired": (
        "gpu",
        ("st x 1; st.release.gpu y 1", "r0 = ld.acquire.gpu y until 1; r1 = ld x"),
        set(),
    ),
    "no look at the flag": (
        "gpu",
        ("st x 1; st.release.gpu y 1", "r0 = ld.acquire.gpu y; r1 = ld x"),
        {"unsynchronised"},
    ),
    "a volatile flag": ("gpu", ("st x 1; st.volatile y 1", "r0 = ld.volatile y until 1; r1 = ld x"), {"weak_order"}),
    "scope": ("ranks", ("st x 1; st.release.gpu y 1", "r0 = ld.acquire.gpu y until 1; r1 = ld x"), {"weak_order"}),
    "a plain flag by fence.sc": (
        "gpu",
        ("st x 1; fence.sc.gpu; st y 1", "r0 = ld.volatile y until 1; fence.sc.gpu; r1 = ld x"),
        {"weak_order"},
    ),
    "an addition and a plain store": ("gpu", ("r0 = add.relaxed.gpu x 1", "st x 4"), {"unsynchronised"}),
    "lanes of a warp": ("warp", ("st x 1", "r0 = ld x"), {"unsynchronised"}),
    "lanes of a warp at its barrier": ("warp", ("st x 1; warp", "warp; r0 = ld x"), set()),
    "a barrier of the block": ("block", ("st x 1; bar", "bar; r0 = ld x"), set()),
    "a barrier too early": ("block", ("bar; st x 1", "bar; r0 = ld x"), {"unsynchronised"}),
    "a barrier of the cluster": ("cluster", ("st x 1; cluster", "cluster; r0 = ld x"), set()),
    "mutual exclusion by fence.sc": (
        "gpu",
        (
            "st.relaxed.gpu x 1; fence.sc.gpu; r0 = ld.relaxed.gpu y; if r0 0; st z 1",
            "st.relaxed.gpu y 1; fence.sc.gpu; r0 = ld.relaxed.gpu x; if r0 0; st z 2",
        ),
        set(),
    ),
    "mutual exclusion without": (
        "gpu",
        (
            "st.relaxed.gpu x 1; r0 = ld.relaxed.gpu y; if r0 0; st z 1",
            "st.relaxed.gpu y 1; r0 = ld.relaxed.gpu x; if r0 0; st z 2",
        ),
        {"unsynchronised"},
    ),
    "a bulk copy without a proxy fence": ("block", ("st s 1; bar", "bar; bulk x s; done"), {"unsynchronised"}),
    "a bulk copy with one": ("block", ("st s 1; proxy; bar", "bar; bulk x s; done"), set()),
    "a bulk copy and a load before it is complete": (
        "block",
        ("st s 1; proxy; bulk x s; done.read; bar", "bar; r0 = ld x"),
        {"unsynchronised"},
    ),
}
"""Places, threads, and the classes of all data races."""


@pytest.mark.parametrize("name", RACES)
def test_data_races_have_their_class(name: str) -> None:
    places, threads, classes = RACES[name]
    program = Program.of(name, threads, PLACES[places], in_cluster=places == "cluster")
    assert set(verdict(program).races.values()) == classes


def test_mutual_exclusion_without_fences_fails_in_weak_executions_alone() -> None:
    found = verdict(Program.of("Dekker", RACES["mutual exclusion without"][1], PLACES["gpu"]))
    assert found.races and not found.sequential_races
    assert found.outcomes > found.sequential


def test_programs_that_differ_in_names_or_order_alone_are_one() -> None:
    one = Program.of("MP", ("st x 1; st.release.gpu y 1", "r0 = ld.acquire.gpu y; r1 = ld x"), PLACES["gpu"])
    same = Program.of("MP", ("r2 = ld.acquire.gpu z; r0 = ld y", "st y 1; st.release.gpu z 1"), PLACES["cluster"])
    other = Program.of("MP", ("st x 1; st.release.gpu y 1", "r0 = ld.acquire.gpu x; r1 = ld y"), PLACES["gpu"])
    assert one.key == same.key != other.key
    assert (
        same.key != Program.of("MP", [str.join("; ", (i.text for i in t)) for t in same.threads], PLACES["ranks"]).key
    )


def test_the_generator_makes_many_programs_of_each_family() -> None:
    made = programs()
    assert len({program.key for program in made}) == len(made) > 10_000
    families = {program.family for program in made}
    assert {
        "MP",
        "SB",
        "LB",
        "IRIW",
        "CoRR",
        "CoWW",
        "CoRW",
        "CoWR",
        "WRC",
        "ISA2",
        "R",
        "S",
        "2+2W",
        "RWC",
        "Z6",
    } <= families
    assert len(programs(2)) == 2 * len(families)
    assert sorted(family for group in GROUPS.values() for family in group) == sorted(families)


def test_what_is_no_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match="atomics are strong"):
        parse("r0 = add x 1")
    with pytest.raises(ValueError, match="no instruction"):
        parse("r0 == 1")
