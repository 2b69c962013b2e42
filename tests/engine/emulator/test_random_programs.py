"""Random PTX programs, whose results on a GPU are kept; see `benchmarks.emulated_random`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.emulated_random import KEPT
from benchmarks.random_ptx import attribution
from benchmarks.random_ptx.attribution import attribute
from benchmarks.random_ptx.comparison import compare, digest, within_bound
from benchmarks.random_ptx.form import Kind
from benchmarks.random_ptx.program import all_forms, make_program
from benchmarks.random_ptx.sides import EmulatedSide, FaultySide
from tests.engine.emulator.worlds import EmulatorLibrary

EACH = 6
"""One program in so many is run here; `benchmarks.emulated_random --kept` runs all."""


@pytest.fixture(scope="module")
def side(emulator: EmulatorLibrary) -> EmulatedSide:
    return EmulatedSide(emulator)


@pytest.mark.parametrize("seed", [2, 8, 30])
def test_an_instruction_in_place_of_another_is_named_and_nothing_else(side: EmulatedSide, seed: int):
    program = make_program(seed)
    faulty = FaultySide(side, 1)
    fault = faulty.fault(program)
    assert fault is not None
    found = [each for each in compare(program, side.run(program), faulty.run(program)) if each.different]
    assert [each.form for each in found] == [fault[0].form.name]
    assert found[0].example is not None
    assert found[0].example.text == fault[0].text


def test_every_form_is_one_that_the_emulator_knows(side: EmulatedSide):
    """All of them in a few programs without branches."""
    forms = all_forms()
    assert len(forms) > 1300
    for first in range(0, len(forms), 150):
        program = make_program(first, forms[first : first + 150])
        assert len(program.slots) == len(forms[first : first + 150]), "the trace is full"
        side.run(program)


def test_approximations_differ_within_their_bounds_alone():
    one = np.array([0x3F800000, 0x7F800000, 0x00000000], np.uint64)  # 1, infinity, 0
    x = np.zeros((1, 3), np.uint64)
    near = np.array([0x3F800002, 0x7F800000, 0x80000000], np.uint64)
    assert within_bound("rcp.approx", Kind.F32, x, one, near).all()
    far = np.array([0x3F800008, 0x7F7FFFFF, 0x00000010], np.uint64)
    assert not within_bound("rcp.approx", Kind.F32, x, one, far).any()
    halves = np.array([0x3C003C00], np.uint64)
    assert not within_bound("tanh.approx.f16", Kind.HALVES, x[:, :1], halves, np.array([0x3C003800], np.uint64)).any()


def test_programs_leave_in_memory_what_a_gpu_left(side: EmulatedSide):
    """All exact results of a program, its scratch memory, its text and inputs are in its digest."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    alike = sorted(set(map(int, kept["digests"])) - set(kept["unlike"]))
    assert len(alike) > 500
    programs = [make_program(seed) for seed in alike[::EACH]]
    unlike = [
        program.seed for program in programs if digest(program, side.run(program)) != kept["digests"][str(program.seed)]
    ]
    assert unlike == []


@pytest.mark.parametrize(
    ("seed", "causes"),
    [
        (0, ()),
        (190, ("NaN of f64",)),
        (351, ("f16 to integers",)),
        (383, ("flushed",)),
        (436, ("NaN that a guard keeps",)),
        (484, ("shift by a literal",)),
        (808, ("guard",)),
        (1162, ("NaN of copies",)),
        (1270, ("f16 to integers",)),
        (1504, ("NaN of f64",)),
    ],
)
def test_a_cause_explains_all_of_a_difference(side: EmulatedSide, seed: int, causes: tuple[str, ...]):
    """The GPU's memory comes out, bit for bit, where uses have the GPU's behaviour."""
    digests = json.loads(KEPT.read_text(encoding="utf-8"))["digests"]
    program = make_program(seed)
    assert attribute(program, digests[str(seed)], side) == causes


def test_a_difference_by_no_known_cause_is_not_explained(side: EmulatedSide, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attribution, "MOST_RUNS", 5)
    assert attribute(make_program(0), "0" * 16, side) is None
