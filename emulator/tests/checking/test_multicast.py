"""NVLink multicast: memory of several GPUs under one address, and the instructions that reach it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome
from rank_emulator.checking.command import main

SOURCES = Path(__file__).resolve().parent.parent / "multicast"
ALL_REDUCE = SOURCES / "all_reduce.cu"
GPUS = 3


@pytest.fixture(scope="module")
def objects(emulator_path: Path | None) -> MainProgram:
    return MainProgram.of_one_process(SOURCES / "objects.cu", GPUS, emulator_path)


def test_each_instruction_acts_on_the_memory_of_all_gpus(objects: MainProgram) -> None:
    ended = objects.run_apart("right")
    assert (ended.outcome, ended.message, ended.findings, ended.printed) == (Outcome.OK, "", (), "")


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("plain", "byte 0 of multicast memory, which multimem instructions alone may use"),
        ("unbound", "multimem.ld_reduce.relaxed.sys.global.add.f32 at objects.cu:"),
        ("gone", "multimem.ld_reduce.relaxed.sys.global.add.f32 at objects.cu:"),
    ],
)
def test_what_is_no_multicast_memory_is_an_illegal_address(objects: MainProgram, mode: str, message: str) -> None:
    ended = objects.run_apart(mode)
    assert ended.outcome is Outcome.ILLEGAL_ADDRESS
    assert message in ended.message


@pytest.fixture(scope="module")
def libraries(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(
        (SOURCES / "libraries.cu").read_text(), 3, emulator_path, tmp_path_factory.mktemp("libraries")
    )


@pytest.mark.parametrize("library", ["nvshmem", "nccl"])
def test_libraries_hand_out_addresses_of_all_ranks(libraries: MainProgram, library: str) -> None:
    ended = libraries.run(library)
    assert (ended.outcome, ended.message, ended.findings, ended.printed) == (Outcome.OK, "", (), "")


def check(emulator_path: Path | None, *words: str) -> int:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return main([str(ALL_REDUCE), "--ranks", "2", "--emulator", str(emulator_path), *words])


def test_an_all_reduce_through_the_switch_is_right(emulator_path: Path | None) -> None:
    assert check(emulator_path, "--schedules", "7") == 0


def test_without_its_barrier_it_is_a_race_of_a_named_rank(emulator_path: Path | None, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert check(emulator_path, "--schedule", "together:0", "-DMISTAKE", "--json", str(report)) == 1
    text = json.dumps(json.loads(report.read_text()))
    line = next(i for i, text in enumerate(ALL_REDUCE.read_text().splitlines(), 1) if '"=f"(sum.x)' in text)
    assert f"all_reduce.cu:{line}" in text and "multimem.ld_reduce" in text and "`x`" in text
