"""A world: libraries on each rank, functions in a stream, schedules, findings."""

from __future__ import annotations

import ctypes
import itertools
import runpy
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.worlds import HEADER, entry
from rank_emulator import (
    CompileError,
    EmulatorError,
    Outcome,
    RegionKind,
    Schedule,
    World,
    compile_cuda,
    schedules,
)
from rank_emulator.building import tvm_ffi_folder

SOURCE = """
__device__ int calls;
__global__ void add(const int* peer, int* out, int rank) {
  calls += 1;
  out[0] = peer[1] + 10 * rank + 100 * calls;
}
extern "C" int solve(int* own, const int* peer, int rank, cudaStream_t stream) {
  add<<<1, 1, 0, stream>>>(peer, own, rank);
  return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def path(emulator_path: Path | None) -> Path:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return emulator_path


@pytest.fixture(scope="module")
def library(path: Path) -> bytes:
    return compile_cuda(SOURCE)


def test_each_rank_has_variables_of_its_own(path: Path, library: bytes) -> None:
    with World(path, world_size=2) as world:
        views = [np.frombuffer(world.memory(rank), np.int32) for rank in range(2)]
        for rank, view in enumerate(views):
            view[1] = rank + 1

        def body(rank: int) -> None:
            solve = world.load(library).solve
            solve.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            assert solve(world.segments[rank], world.segments[1 - rank], rank, world.stream()) == 0
            assert world.synchronize()

        ended = world.run(body)
        assert (ended.outcome, ended.rank, ended.message) == (Outcome.OK, None, ""), ended.errors
        assert [int(view[0]) for view in views] == [2 + 100, 1 + 10 + 100]
        assert ended.steps > 0 and not world.findings().findings
        del views


def test_what_a_body_raises_ends_the_run(path: Path) -> None:
    with World(path, world_size=2) as world:

        def body(rank: int) -> None:
            if rank == 1:
                raise ValueError("nothing doing")

        ended = world.run(body)
        assert (ended.outcome, ended.rank) == (Outcome.BODY_FAILED, 1)
        assert str(ended.errors[1]) == "nothing doing" and set(ended.errors) == {1}


def test_functions_run_in_the_order_of_the_stream(path: Path) -> None:
    with World(path, world_size=2, schedule=Schedule("hold_arrival", 1)) as world:
        seen: list[tuple[int, int]] = []

        def body(rank: int) -> None:
            for call in range(3):
                world.arrive(call)
                world.enqueue(lambda call=call: seen.append((rank, call)), "note")
                world.depart(call)
            world.synchronize()

        assert world.run(body).outcome == Outcome.OK
        for rank in range(2):
            assert [call for each, call in seen if each == rank] == [0, 1, 2]
        assert len({rank for rank, _ in seen[:3]}) == 1, "all calls of one rank before the held arrival of the other"


RACE = entry("add.u32 %r2, %r0, 1;\nst.global.u32 [%rd1], %r2;", ranks=2)


def test_the_detector_names_the_memory_of_a_race(path: Path) -> None:
    with World(path, world_size=2, detect_races=True) as world:
        for rank in range(2):
            region = world.add_region(rank, RegionKind.ARGUMENT, "x", world.segments[rank], 64, element_bytes=4)
            assert region >= 0

        def body(rank: int) -> None:
            world.load_ptx(HEADER + RACE)
            arguments = [*map(ctypes.c_uint64, world.segments), ctypes.c_uint32(rank)]
            world.launch("kernel", arguments, block=(1, 1, 1))
            world.synchronize()

        assert world.run(body).outcome == Outcome.OK
        found = world.findings()
        race = found.findings[0]
        assert race.kind == "race" and race.tensor == "x" and race.owner in (0, 1) and race.missing
        assert race.first is not None and race.second is not None and race.rank == race.second.rank
        assert {race.first.rank, race.second.rank} == {0, 1} and "x" in race.message
        assert {link.written_bytes for link in found.links if (link.rank, link.owner) == (0, 1)} == {4}


def test_refusals_say_why(path: Path, library: bytes) -> None:
    with pytest.raises(EmulatorError, match=r"world_size must be 1 .. 16, got 17"):
        World(path, world_size=17)
    with World(path, world_size=1) as world:

        def body(_: int) -> None:
            with pytest.raises(EmulatorError, match="no PTX that was loaded has a kernel 'missing'"):
                world.launch("missing", [])
            with pytest.raises(EmulatorError, match="undefined symbol"):
                world.load(compile_cuda('extern "C" int lacking(); extern "C" int f() { return lacking(); }'))
            with pytest.raises(EmulatorError, match="cannot open shared object file"):
                world.load("/no/such/library.so")

        assert world.run(body).errors == {}
    with pytest.raises(EmulatorError, match="cannot be loaded"):
        World("/no/such/emulator.so", 1)
    with pytest.raises(EmulatorError, match="as an emulator of this version: it has no pkb_emu_create"):
        World(str(tvm_ffi_folder() / "lib" / "libtvm_ffi.so"), 1)
    with pytest.raises(CompileError, match="nonsense"):
        compile_cuda("nonsense")


def test_schedules_begin_together_and_repeat() -> None:
    first = list(itertools.islice(schedules("seed", 2), 6))
    assert first[0] == Schedule("together", 0) and first == list(itertools.islice(schedules("seed", 2), 6))
    assert [each.policy for each in first[1:5]] == ["hold_arrival", "one_ahead", "hold_departure", "late_stores"]
    assert {each.policy for each in itertools.islice(schedules(1, 1), 1, 4)} == {"late_stores", "priorities"}


def test_the_example_of_the_page_prints_what_it_says(
    path: Path, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    page = page[page.index("## As a library") :]
    source = page.split("```python\n")[1].split("```")[0]
    printed = page.split("```text\n")[1].split("```")[0]
    (tmp_path / "example.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compiled").symlink_to(compiled)
    runpy.run_path("example.py")
    assert capfd.readouterr().out == printed
