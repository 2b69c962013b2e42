"""Triton kernels on symmetric memory: right ones pass, and the mistake of each is found."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.checking.triton_modules import BUFFERS, WORLD_SIZE, example, stored
from rank_emulator import EmulatorError, schedules
from rank_emulator.checking import (
    Built,
    Options,
    TritonLaunch,
    TritonProgram,
    UsageError,
    build_program,
    parse_buffers,
    run_program,
)
from rank_emulator.checking.reference import Tolerance, difference, expected_outputs

MISTAKES = {"one_shot": "unsynchronised", "push": "weak_order", "shift": "unsynchronised"}
"""Class of the race that each mistake is."""
OPTIONS = Options(timeout_s=60)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def references(name: str, x: Sequence[np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
    return {
        "one_shot": {"out": [sum(x)] * len(x)},
        "push": {"out": [np.stack(x)] * len(x)},
        "shift": {"out": [x[-1], *x[:-1]]},
    }[name]


@pytest.fixture
def path(emulator_path: Path | None) -> Path:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return emulator_path


def found(path: Path, name: str, built: Built, *, is_right: bool) -> set[str]:
    """Classes of the races of a few runs; the outputs of right runs are compared."""
    expected = [
        expected_outputs(lambda x: references(name, x), built.program.buffers, WORLD_SIZE, call, 0) for call in range(2)
    ]
    classes = set()
    for _, schedule in zip(range(4), schedules("triton", WORLD_SIZE), strict=False):
        run = run_program(path, built, WORLD_SIZE, schedule, OPTIONS)
        races = {finding.finding_class or finding.kind for finding in run.findings}
        classes |= races
        if is_right:
            assert (races, run.message) == (set(), "")
            for (call, rank, buffer), content in run.outputs.items():
                if buffer == "out":
                    of_buffer = next(each for each in built.program.buffers if each.name == buffer)
                    assert difference(of_buffer, content, expected[call]["out"][rank], Tolerance()) is None
    return classes


@pytest.mark.parametrize("name", MISTAKES)
def test_compiled_ptx_runs_and_its_mistake_is_found(name: str, path: Path) -> None:
    program = TritonProgram((), parse_buffers(BUFFERS[name])).of_ranks(WORLD_SIZE)
    assert found(path, name, Built(program, (stored(name, mistake=False),)), is_right=True) == set()
    assert MISTAKES[name] in found(path, name, Built(program, (stored(name, mistake=True),)), is_right=False)


@needs_triton
@pytest.mark.parametrize("name", MISTAKES)
def test_what_the_installed_triton_compiles_runs_as_well(name: str, path: Path) -> None:
    module = example()
    right = build_program(module.program(name, mistake=False), WORLD_SIZE)
    wrong = build_program(module.program(name, mistake=True), WORLD_SIZE)
    assert found(path, name, right, is_right=True) == set()
    assert MISTAKES[name] in found(path, name, wrong, is_right=False)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_without_triton_the_error_says_what_to_install() -> None:
    with pytest.raises(EmulatorError, match="Triton is not installed; pip install triton"):
        TritonProgram((TritonLaunch(None, {}),)).compile(2)


@needs_triton
def test_parameters_are_named_where_they_do_not_fit() -> None:
    module = example()
    program = module.program("one_shot", mistake=False)
    (launch,) = program.launches
    wrong = TritonProgram((TritonLaunch(launch.kernel, {"xs": "x_table"}, {"wrong": 1}),), program.buffers)
    with pytest.raises(UsageError, match="missing: out, pads, rank, mistake, unknown: wrong"):
        wrong.compile(2)
    wrong = TritonProgram(
        (TritonLaunch(launch.kernel, {**launch.arguments, "out": "y"}, launch.constants),), program.buffers
    )
    with pytest.raises(UsageError, match="argument out: no buffer 'y'; the buffers are x, out, pads"):
        wrong.compile(2)
