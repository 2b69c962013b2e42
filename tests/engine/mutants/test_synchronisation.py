"""What the mutants of a kernel are: read from small sources, and from the experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.mutants.cpp_operations import Kind
from tests.engine.mutants.synchronisation import InlinedSource, Mutant
from tests.whole_tables import sampled

EXPERTS = [(problem, kind) for problem in catalogue() for kind in ("cpp", "cu") if expert_source(problem, kind)]

EXCHANGE = """\
// Signals by comm.signal(0, 1) in a comment are none.
#include <cstring>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const int64_t bytes = tensor.numel() * 2;
  char* half = comm.scratch<char>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  for (int r = 0; r < comm.world_size; ++r) {
    comm.put(half + comm.rank * bytes, tensor.data_ptr(), bytes, r);
    comm.signal(comm.rank, r);
  }
  for (int r = 0; r < comm.world_size; ++r) comm.wait(r);
  std::memcpy(out.data_ptr(), half, comm.world_size * bytes);
  if (comm.world_size > 64) comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


def changed(before: str, mutant: Mutant) -> list[tuple[str, str]]:
    """The lines that differ."""
    pairs = zip(before.splitlines(), mutant.source.splitlines(), strict=True)
    return [(old.strip(), new.strip()) for old, new in pairs if old != new]


def test_each_operation_is_removed_once_and_nothing_else_changes():
    source = InlinedSource.of(EXCHANGE)
    assert source.text == EXCHANGE
    parity, signal, wait, barrier, epochs = source.mutants()
    assert [mutant.kind for mutant in (parity, signal, wait, barrier, epochs)] == [
        *(Kind.PARITY, Kind.SIGNAL, Kind.WAIT, Kind.BARRIER, Kind.EPOCH)
    ]
    assert parity.name == "expert:8: comm.epoch % 2"
    assert "(comm.epoch * 0) * (comm.scratch_bytes / 2)" in changed(EXCHANGE, parity)[0][1]
    assert changed(EXCHANGE, signal) == [("comm.signal(comm.rank, r);", "((void)0);")]
    assert changed(EXCHANGE, wait)[0][1] == "for (int r = 0; r < comm.world_size; ++r) ((void)0);"
    assert changed(EXCHANGE, barrier) == [
        ("if (comm.world_size > 64) comm.barrier();", "if (comm.world_size > 64) ((void)0);")
    ]


def test_two_of_a_kind_on_one_line_are_distinguished():
    source = InlinedSource.of("void meet(pkb::Comm comm) {\n  comm.wait(0), comm.wait(1), comm.wait(0);\n}\n")
    names = [mutant.name for mutant in source.mutants() if mutant.kind is Kind.WAIT]
    assert names == ["expert:2: comm.wait(0)", "expert:2: comm.wait(1)", "expert:2: comm.wait(0), 2."]


def test_a_wait_of_the_kernels_own_is_removed_where_it_is_called():
    source = InlinedSource.of("""\
__device__ void wait_words(uint4& words, const uint4* from) {
  while (!are_there(words)) words = look_at_words(from);
}
__global__ void kernel(const uint4* from) {
  uint4 words = look_at_words(from);
  wait_words(words, from);
}
""")
    (wait,) = source.mutants()
    assert wait.kind is Kind.WAIT and changed(source.text, wait) == [("wait_words(words, from);", "((void)0);")]


def test_without_epochs_signals_are_those_of_the_first_call():
    (mutant,) = [mutant for mutant in InlinedSource.of(EXCHANGE).mutants() if mutant.name == "every epoch"]
    assert [new for _, new in changed(EXCHANGE, mutant)] == [
        "comm.signal(comm.rank, r, 1);",
        "for (int r = 0; r < comm.world_size; ++r) comm.wait(r, 1);",
    ]


def test_operations_of_a_header_are_found_where_it_is_included(tmp_path: Path):
    (tmp_path / "meets.h").write_text(
        '#pragma once\n#include "pkb/plain.h"\ninline void meet_all(const pkb::Comm& comm) {\n  comm.barrier();\n}\n'
    )
    (tmp_path / "plain.h").write_text("#pragma once\n// of no Comm\n")
    kernel = '#include "pkb/meets.h"\n#include "pkb/plain.h"\nvoid solution(pkb::Comm comm) {\n  meet_all(comm);\n}\n'
    source = InlinedSource.of(kernel, tmp_path)
    assert [str(operation) for operation in source.operations] == [
        "meets.h:4: comm.barrier()",
        "expert:4: meet_all(comm)",
    ]
    assert source.text.count('#include "pkb/plain.h"') == 2, "headers without a communicator stay headers"


def test_flags_words_and_fences_of_gpu_kernels_are_operations():
    source = InlinedSource.of(
        """\
__device__ void meet(const pkb::Device& comm, uint64_t* flag, uint64_t* word) {
  __threadfence_system();
  pkb::store_release(comm.peer(flag, 1), comm.epoch);
  while (pkb::load_acquire(flag) < comm.epoch) {
  }
  float x = pkb::wait_tagged(word, uint32_t(comm.epoch));
  comm.hold();
}
"""
    )
    single = [mutant for mutant in source.mutants() if len(mutant.operations) == 1]
    assert [(str(mutant.kind), mutant.operations[0].replacement) for mutant in single] == [
        ("fence", "((void)0)"),
        ("signal", "((void)0)"),
        ("epoch", "(comm.epoch * 0 + 1)"),
        ("wait", "false"),
        ("epoch", "(comm.epoch * 0 + 1)"),
        ("wait", "pkb::read_tagged(word, uint32_t(comm.epoch))"),
        ("epoch", "(comm.epoch * 0 + 1)"),
    ]
    (untested,) = [mutant for mutant in single if "read_tagged" in mutant.operations[0].replacement]
    assert untested.source.count("while (false);") == 3, "each form of the read: of one word, of two, and of several"


@pytest.mark.parametrize(("problem", "kind"), sampled(EXPERTS, 4), ids=lambda value: getattr(value, "name", value))
def test_mutants_of_experts_differ_from_them_and_each_other(problem: Problem, kind: str):
    source = InlinedSource.of(expert_source(problem, kind) or "")
    all_of_them = source.mutants()
    assert len({source.text, *(mutant.source for mutant in all_of_them)}) == 1 + len(all_of_them)
    assert len({mutant.name for mutant in all_of_them}) == len(all_of_them)
    assert "#pragma once" not in source.text, "a candidate is no header"
