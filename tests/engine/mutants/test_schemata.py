"""All mutants of a kernel in one source, as text."""

from __future__ import annotations

import re

import pytest

from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.mutants.schemata import NotInstantiated, Schemata
from tests.engine.mutants.synchronisation import InlinedSource
from tests.engine.mutants.weakened_operations import weakened

KERNEL = """#include "pkb/symm_cuda.h"
__global__ void kernel(pkb::Device comm, uint64_t* flag) {
  if (threadIdx.x == 0) pkb::store_release(comm.peer(flag, 1), comm.epoch);
  while (pkb::load_acquire(flag) < comm.epoch) {
  }
  __syncthreads();
  __threadfence_system();
}
"""
EXPERTS = {problem.name: source for problem in catalogue() if (source := expert_source(problem, "cu")) is not None}


def number_of(schemata: Schemata, name: str) -> int:
    return 1 + schemata.names.index(name)


@pytest.mark.parametrize("name", list(EXPERTS)[::12])
def test_it_has_the_mutants_of_a_kernel_each_once(name: str) -> None:
    schemata = Schemata.of(EXPERTS[name])
    removed = [mutant.name for mutant in InlinedSource.of(EXPERTS[name]).mutants()]
    assert list(schemata.names) == [*removed, *(weak.name for weak in weakened(EXPERTS[name]))]
    for number, _ in enumerate(removed, start=1):
        assert f"::pkb_mutants::is<{number}>() ?" in schemata.source


def test_each_operation_becomes_a_choice_and_those_within_it_too() -> None:
    schemata = Schemata.of(KERNEL)
    removed, epoch = (
        number_of(schemata, f"expert:3: {code}")
        for code in ("pkb::store_release(comm.peer(flag, 1), comm.epoch)", "comm.epoch")
    )
    every = number_of(schemata, "every epoch")
    assert (
        f"(::pkb_mutants::is<{removed}>() ? (void)(((void)0)) : (::pkb_mutants::trap<{removed}>(), "
        f"(void)(pkb::store_release(comm.peer(flag, 1), (::pkb_mutants::is<{epoch}>() ? ((comm.epoch * 0 + 1)) : "
        f"::pkb_mutants::is<{every}>() ? ((comm.epoch * 0 + 1)) : (::pkb_mutants::trap<{epoch}>(), "
        f"::pkb_mutants::trap<{every}>(), (comm.epoch)))))))"
    ) in schemata.source
    assert schemata.source.count("? (void)(__threadfence_block()) :") >= 1, "the name of a function is called"


def test_sources_of_mutants_differ_in_states_alone() -> None:
    schemata = Schemata.of(KERNEL)
    numbers = range(1, 1 + len(schemata.names))
    of_mutants = {schemata.source_of(number) for number in numbers}
    trapping = {schemata.source_of(traps=[number]) for number in numbers} | {schemata.source_of(traps=numbers)}
    assert len(of_mutants | trapping | {schemata.source}) == 2 * len(numbers) + 2
    states = re.compile(r"mutants [012]+")
    assert {states.sub("S", source) for source in of_mutants | trapping} == {states.sub("S", schemata.source)}


def compiled(schemata: Schemata, moves: list[int], instructions: str) -> Artifact:
    """A library as nvcc makes it: states for the host, and PTX of the operations that some function has."""
    states = "mutants " + "0" * (1 + len(schemata.names))
    ptx = "\n".join([states, *(f"mov.u32 %r1, {1000000000 + 10 * number};" for number in moves), instructions])
    return Artifact(ok=True, binary=ptx.encode(), log="", duration_s=0.0)


def test_a_library_differs_in_its_states_or_its_instruction() -> None:
    schemata = Schemata.of(KERNEL)
    release = number_of(schemata, "symm_cuda.h:39: st.release -> st.relaxed")
    scope = number_of(schemata, "symm_cuda.h:39: sys -> gpu")
    store = (
        f"{{.reg .b32 mutant{release:04d};}} {{.reg .b32 mutant{scope:04d};}} st.release.sys.global.u64 [%rd1], %rd2;"
    )
    artifact = compiled(schemata, [1, 2, 3], store)

    def library(number: int = 0, traps: tuple[int, ...] = ()) -> list[str]:
        changed = schemata.library_of(artifact, number, traps=traps).binary
        assert artifact.binary is not None and changed is not None and len(changed) == len(artifact.binary)
        return changed.decode().split("\n")

    states, first, second, third, same = library(2)
    assert (states[:11], set(states[11:])) == ("mutants 001", {"0"})
    assert [first, second, third] == [f"mov.u32 %r1, {number};" for number in (1000000010, 1000000021, 1000000030)]
    assert same == store
    states, first, second, third, trapping = library(traps=(1, 3, release, scope))
    assert states[:12] == "mutants 0202"
    assert [first, second, third] == [f"mov.u32 %r1, {number};" for number in (1000000012, 1000000020, 1000000032)]
    assert trapping.startswith("trap;st.release.sys.global.u64 [%rd1], %rd2;")
    assert "st.relaxed.sys.global.u64 [%rd1], %rd2;" in library(release)[4]
    assert "st.release.gpu.global.u64 [%rd1], %rd2;" in library(scope)[4]
    assert "} trap;st.release.sys.global.u64 [%rd1], %rd2;" in library(traps=(scope,))[4]
    absent = number_of(schemata, "symm_cuda.h:48: ld.acquire -> ld.relaxed")
    with pytest.raises(NotInstantiated, match=re.escape("symm_cuda.h:48")):
        schemata.library_of(artifact, absent)
    assert library(traps=(absent,))[1:] == library()[1:], "what is in no function cannot be reached"


def test_a_library_tells_which_operations_its_functions_have() -> None:
    schemata = Schemata.of(KERNEL)
    artifact = compiled(schemata, [3], "{.reg .b32 mutant0007;} bar.sync 0;\n.ascii host mutant 12;host mutant 5;")
    assert schemata.instantiated(artifact) == {3, 5, 7, 12}
