"""Programs of several sources whose code for the GPU is linked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rank_emulator import CompileError, Outcome, Schedule
from rank_emulator.checking import Built, Options, Program, Run, build_program, run_program
from rank_emulator.checking.command import main
from rank_emulator.checking.relocatable import registering_source, without_options
from rank_emulator.cuda_sources import OBJECT_FLAGS, find_toolkit

SOURCES = Path(__file__).resolve().parent.parent / "relocatable"
FIRST, SECOND = SOURCES / "first.cu", SOURCES / "second.cu"
RANKS = 2


def run(emulator: Path | None, *sources: Path, flags: tuple[str, ...] = ("-rdc=true",)) -> Run:
    if emulator is None:
        pytest.skip("needs the CUDA toolkit")
    program = Program(sources, flags=flags)
    built = Built(program, build_program(program, RANKS).code)
    return run_program(emulator, built, RANKS, Schedule(), Options(timeout_s=60))


def relocatable(folder: Path, source: Path) -> Path:
    """Object as a build of the user's own makes it."""
    made = folder / f"{source.stem}.o"
    nvcc = find_toolkit() / "bin" / "nvcc"
    subprocess.run([nvcc, *OBJECT_FLAGS, "-Xcompiler=-fPIC", "-dc", source, "-o", made], check=True)
    return made


@pytest.fixture(scope="module")
def objects(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    folder = tmp_path_factory.mktemp("objects")
    return relocatable(folder, FIRST), relocatable(folder, SECOND)


def test_sources_call_each_other_on_the_gpu(emulator_path: Path | None) -> None:
    """With functions, variables, constants, pointers, strings, and code that both define."""
    ended = run(emulator_path, FIRST, SECOND)
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())
    of_each = {f"rank {rank}: {text}" for rank in range(RANKS) for text in ("first: one", "second: two")}
    assert set(ended.printed.splitlines()) == of_each


def test_objects_and_archives_are_linked(
    emulator_path: Path | None, objects: tuple[Path, Path], tmp_path: Path
) -> None:
    archive = tmp_path / "libsecond.a"
    subprocess.run(["ar", "rcs", archive, objects[1]], check=True)
    for sources in (objects, (objects[0], archive)):
        ended = run(emulator_path, *sources, flags=())
        assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_a_race_in_a_function_of_another_source_has_its_lines(
    emulator_path: Path | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    report = tmp_path / "report.json"
    words = [str(FIRST), str(SECOND), "-DMISTAKE", "-rdc", "true", "--ranks", "2", "--schedule", "together:0"]
    assert main([*words, "--emulator", str(emulator_path), "--json", str(report)]) == 1
    lines = FIRST.read_text().splitlines()
    written, read = (
        next(i for i, line in enumerate(lines, 1) if part in line) for part in ("words[0] = 1", "= words[0]")
    )
    printed = capsys.readouterr().out
    assert f"first.cu:{written}" in printed and f"first.cu:{read}" in printed
    assert json.loads(report.read_text())


def test_what_no_source_defines_is_named(
    emulator_path: Path | None, objects: tuple[Path, Path], tmp_path: Path
) -> None:
    alone = tmp_path / "second.cu"
    alone.write_text('#include "parts.cuh"\n__constant__ int factor = 2;\nvoid launch_second(int*, int) {}\n')
    ended = run(emulator_path, FIRST, alone, flags=("-rdc=true", f"-I{SOURCES}"))
    assert ended.outcome is Outcome.BAD_LAUNCH
    assert "no source defines the variable" in ended.message
    alone.write_text(
        SECOND.read_text().replace("int scaled(int x) { return factor * x; }", "int other(int x) { return x; }")
    )
    ended = run(emulator_path, objects[0], alone, flags=("-dc", f"-I{SOURCES}"))
    assert ended.outcome is Outcome.UNKNOWN_INSTRUCTION
    assert "first.cu:" in ended.message and "there is no function '_Z6scaledi'" in ended.message


def test_what_two_sources_define_is_named(
    emulator_path: Path | None, objects: tuple[Path, Path], tmp_path: Path
) -> None:
    again = tmp_path / "again.cu"
    again.write_text("#include <cuda_runtime.h>\n__device__ int scaled(int x) { return x; }\n")
    with pytest.raises(CompileError, match=r"multiple definition of `scaled\(int\)'"):
        run(emulator_path, *objects, relocatable(tmp_path, again), flags=())


def test_without_the_option_a_function_of_another_source_is_refused(emulator_path: Path | None) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    with pytest.raises(CompileError, match=r"(?s)scaled.*name all sources, and add -rdc=true"):
        build_program(Program((FIRST, SECOND)), RANKS)


def test_a_kernel_that_launches_a_kernel_is_refused_by_its_name(tmp_path: Path) -> None:
    source = tmp_path / "nested.cu"
    source.write_text("__global__ void inner() {}\n__global__ void outer() { inner<<<1, 1>>>(); }\nint main() {}\n")
    with pytest.raises(CompileError, match=r"\(dynamic parallelism\) are not modelled by the emulator"):
        build_program(Program((source,)), RANKS)


def test_options_about_it_are_told_from_others() -> None:
    given = ["-O2", "-rdc=true", "-dlto", "--relocatable-device-code", "true", "-I", "include"]
    assert without_options(given) == (["-O2", "-I", "include"], True)
    assert without_options(["-rdc", "false", "-dlink"]) == ([], False)
    assert all(without_options([flag]) == ([], True) for flag in ("-dc", "--device-c"))


def test_objects_without_it_need_no_source(tmp_path: Path) -> None:
    plain = tmp_path / "plain.o"
    subprocess.run(["g++", "-x", "c++", "-c", "-", "-o", plain], input=b"int f() { return 1; }", check=True)
    assert registering_source([str(plain)]) is None
    assert registering_source([]) is None
