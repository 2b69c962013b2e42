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
        assert f"::pkb_mutants::is({number}) ?" in schemata.source


def test_each_operation_becomes_a_choice_and_those_within_it_too() -> None:
    schemata = Schemata.of(KERNEL)
    removed, epoch = (
        number_of(schemata, f"expert:3: {code}")
        for code in ("pkb::store_release(comm.peer(flag, 1), comm.epoch)", "comm.epoch")
    )
    every = number_of(schemata, "every epoch")
    assert (
        f"(::pkb_mutants::is({removed}) ? (void)(((void)0)) : (::pkb_mutants::trap({removed}), "
        f"(void)(pkb::store_release(comm.peer(flag, 1), (::pkb_mutants::is({epoch}) ? ((comm.epoch * 0 + 1)) : "
        f"::pkb_mutants::is({every}) ? ((comm.epoch * 0 + 1)) : (::pkb_mutants::trap({epoch}), "
        f"::pkb_mutants::trap({every}), (comm.epoch)))))))"
    ) in schemata.source
    assert schemata.source.count("? (void)(__threadfence_block()) :") >= 1, "the name of a function is called"


def test_sources_of_mutants_differ_in_a_number_alone() -> None:
    schemata = Schemata.of(KERNEL)
    sources = {schemata.source_of(n, traps=traps) for n in range(1, 1 + len(schemata.names)) for traps in (False, True)}
    assert len(sources) == 2 * len(schemata.names)
    numbers = re.compile(r"\b1[05]0000\d{4}\b")
    assert {numbers.sub("N", source) for source in sources} == {numbers.sub("N", schemata.source)}


def test_a_library_differs_in_its_number_or_its_instruction() -> None:
    schemata = Schemata.of(KERNEL)
    release = number_of(schemata, "symm_cuda.h:39: st.release -> st.relaxed")
    scope = number_of(schemata, "symm_cuda.h:39: sys -> gpu")
    store = (
        f"{{.reg .b32 mutant{release:04d};}} {{.reg .b32 mutant{scope:04d};}} st.release.sys.global.u64 [%rd1], %rd2;"
    )
    ptx = f"mutant 1000000000\nmov.u32 %r1, 1000000000;\n{store}\nret;"
    artifact = Artifact(ok=True, binary=ptx.encode(), log="", duration_s=0.0)

    def library(number: int, traps: bool = False) -> list[str]:
        changed = schemata.library_of(artifact, number, traps=traps).binary
        assert changed is not None and len(changed) == len(ptx)
        return changed.decode().split("\n")

    number, move, first, _ = library(release)
    assert (number, move) == (f"mutant {1000000000 + release}", f"mov.u32 %r1, {1000000000 + release};")
    assert "st.relaxed.sys.global.u64 [%rd1], %rd2;" in first
    assert "st.release.gpu.global.u64 [%rd1], %rd2;" in library(scope)[2]
    assert "} trap;st.release.sys.global.u64 [%rd1], %rd2;" in library(scope, traps=True)[2]
    assert library(release, traps=True)[2].startswith("trap;st.release.sys.global.u64 [%rd1], %rd2;")
    with pytest.raises(NotInstantiated, match=re.escape("symm_cuda.h:48")):
        schemata.library_of(artifact, number_of(schemata, "symm_cuda.h:48: ld.acquire -> ld.relaxed"))
