"""Experts without one of their synchronisations, or with a weak one, are refused; the unchanged experts are not.

Each mutant of every expert takes hours, and GPUs where there are some: `make mutants`. A small kernel stands for them
otherwise, and a sample of problems for tables of mutants. A mutant that passes at a size has to be equivalent, or the
kernel must not reach the operation there, which one that traps at the operation shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from tests.engine.joined_libraries import compile_together
from tests.engine.mutants import further_sizes as sizes
from tests.engine.mutants.cpp_operations import Kind
from tests.engine.mutants.emulated_judge import NO_VERDICT, EmulatedJudge
from tests.engine.mutants.equivalent_at_sizes import AT_TINY, BY_THE_LETTER
from tests.engine.mutants.equivalent_mutants import EQUIVALENTS, reason_why
from tests.engine.mutants.further_sizes import EMULATED_SIZES, FURTHER_SIZES, config_of
from tests.engine.mutants.synchronisation import InlinedSource, Mutant
from tests.engine.mutants.trapping import with_trap
from tests.engine.mutants.unreached_mutants import UNREACHED, why_unreached
from tests.engine.mutants.weakened_operations import weakened
from tests.whole_tables import sampled

SIZES = ("tiny", "published")
SEEDS = 20
"""Evaluations of a mutant; on emulated GPUs one refusal among them is enough."""

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu")]

BY_MAKE_MUTANTS = pytest.mark.skipif(
    not os.environ.get("PKB_TEST_MUTANTS"), reason="takes an hour: run it by `make mutants`"
)
NEEDS_NVCC = pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")

PULLS = """\
#include <cstring>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  comm.barrier();
  const int64_t bytes = tensor.numel() * 2;
  char* to = static_cast<char*>(out.data_ptr());
  for (int r = 0; r < comm.world_size; ++r) std::memcpy(to + r * bytes, comm.peer(tensor.data_ptr(), r), bytes);
  comm.barrier();
  if (comm.world_size > 64) comm.wait(0);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


@dataclass(frozen=True)
class Judged:
    """A mutant to be judged.

    Attributes:
        name: Place and text of the operation.
        source: Text of the mutant.
        trapping: Text of the kernel that ends with an error where it reaches the operation.
        reason: Argument that it is right all the same, or that no size reaches the operation; None if it is wrong.
    """

    name: str
    source: str
    trapping: str
    reason: str | None


def place_of(source: InlinedSource, mutant: Mutant) -> tuple[str, str, int]:
    """File and code of a mutant's operation, and the number of operations of both before it."""
    first = mutant.operations[0]
    alike = [op for op in source.operations if (op.file, op.code) == (first.file, first.code)]
    file, code = ("expert", mutant.name) if len(mutant.operations) > 1 else (first.file, first.code)
    return file, code, sum(op.start < first.start for op in alike)


def mutants_without(problem: Problem, text: str, suffix: str, world_size: int) -> Iterator[Judged]:
    """The mutants that lack an operation."""
    source = InlinedSource.of(text)
    for mutant in source.mutants():
        place, first = place_of(source, mutant), mutant.operations[0]
        reason = reason_why(problem.name, suffix, *place)
        if suffix == "cu":
            reason = reason or why_unreached(problem.name, *place, world_size)
        if mutant.kind is not Kind.FENCE:  # hardware may keep the order without it
            yield Judged(mutant.name, mutant.source, with_trap(source.text, first.start, first.end), reason)


def all_mutants(problem: Problem, text: str) -> Iterator[Judged]:
    """The mutants of a CUDA kernel that lack an operation, fences too, and those that have one that is too weak."""
    source = InlinedSource.of(text)
    for mutant in source.mutants():
        first = mutant.operations[0]
        reason = reason_why(problem.name, "cu", *place_of(source, mutant)) or AT_TINY.get((problem.name, mutant.name))
        yield Judged(mutant.name, mutant.source, with_trap(source.text, first.start, first.end), reason)
    for weak in weakened(text):
        reason = AT_TINY.get((problem.name, weak.name)) or BY_THE_LETTER.get(weak.name)
        yield Judged(weak.name, weak.source, weak.trapping, reason)


@dataclass(frozen=True)
class Judge:
    """Judges mutants of one problem.

    Attributes:
        evaluator: Evaluator that judges.
        problem: Problem that the kernels solve.
        config: Settings of each evaluation, without its seed and size.
    """

    evaluator: LocalEvaluator
    problem: Problem
    config: EvalConfig

    def evaluate(self, source: str, size: str, seed: int = 0) -> Feedback:
        """The verdict on a source."""
        config = self.config.model_copy(update=config_of(size) | {"seed": seed})
        feedback = self.evaluator.evaluate(self.problem, source, config)
        assert feedback.failure not in NO_VERDICT, feedback.message
        return feedback

    def reaches(self, judged: Judged, size: str) -> bool:
        """Whether the unchanged kernel reaches the operation."""
        return not self.evaluate(judged.trapping, size).passed

    def is_refused(self, judged: Judged, at: Sequence[str], seeds: int) -> bool | None:
        """Whether each evaluation refuses it at the first size that reaches the operation; None if no size does."""
        for size in at:
            refused = [not self.evaluate(judged.source, size, seed).passed for seed in range(seeds)]
            if any(refused) or self.reaches(judged, size):
                return all(refused)
        return None


def config(device: Device, world_size: int) -> EvalConfig:
    """Settings of evaluations; deadlines are short, as many mutants wait for a signal that never comes."""
    timeout_s = {"cpu": 2.0, "cuda": 0.5, "emulated": 60.0}[device]
    return EvalConfig(device=device, world_size=world_size, until="check", timeout_s=timeout_s, compile_timeout_s=600)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kernel_without_a_barrier_is_refused_and_with_it_is_not(
    local_evaluator: LocalEvaluator, compiled_before: Path
):
    problem = find_problem("AllGather")
    judge = Judge(local_evaluator, problem, config("cpu", 2))
    entry, leaving, never = mutants_without(problem, PULLS, "cpp", 2)
    sources = [PULLS, entry.source, leaving.source, never.source, never.trapping]
    compile_together(sources, CompileCache.in_folder(compiled_before))
    assert all(judge.evaluate(PULLS, "tiny", seed).passed for seed in range(3))
    assert [judge.is_refused(judged, ["tiny"], 2) for judged in (entry, leaving, never)] == [True, True, None]
    assert judge.evaluate(entry.source, "tiny").failure is Failure.RACE


def expected(judged: Judged) -> tuple[bool | None, ...]:
    """Outcomes of a mutant that are right."""
    return (True,) if judged.reason is None else (False, None)


@BY_MAKE_MUTANTS
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_every_wrong_mutant_of_an_expert_is_refused(problem: Problem, device: Device, local_evaluator: LocalEvaluator):
    suffix = {"cpu": "cpp", "cuda": "cu"}[device]
    text = expert_source(problem, suffix)
    if text is None:
        pytest.skip("it has no expert")
    world_size = 4 if device == "cpu" else len(gpus.names())
    if world_size < 2:
        pytest.skip("needs two GPUs")
    judge = Judge(local_evaluator, problem, config(device, world_size))
    assert all(judge.evaluate(text, "tiny", seed).passed for seed in range(SEEDS))
    at = (*SIZES, *FURTHER_SIZES.get(problem.name, ())) if device == "cuda" else SIZES
    found = {
        each.name: (each, judge.is_refused(each, at, SEEDS))
        for each in mutants_without(problem, text, suffix, world_size)
    }
    assert not {name: outcome for name, (each, outcome) in found.items() if outcome not in expected(each)}


@pytest.mark.usefixtures("emulator_is_built")
@BY_MAKE_MUTANTS
@NEEDS_NVCC
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_every_reached_mutant_is_found_on_emulated_gpus(
    problem: Problem, local_evaluator: LocalEvaluator, compiled_before: Path
):
    text = expert_source(problem, "cu")
    if text is None:
        pytest.skip("it has no expert")
    judge = EmulatedJudge.of(local_evaluator, problem, text, CompileCache.in_folder(compiled_before))
    assert all(judge.is_clean(seed=seed) for seed in range(SEEDS))
    at = ("tiny", *EMULATED_SIZES.get(problem.name, FURTHER_SIZES.get(problem.name, ())))
    wrong = [each.name for each in all_mutants(problem, text) if each.reason is None]
    assert not [name for name, found in judge.outcomes(wrong, at, SEEDS).items() if found is False]


SAMPLE = {
    "exchange_cuda.h:86: comm.epoch % 2": True,
    "gather_made_cuda.h:60: wait_tagged(box + (unit * Make::kMade + i) * kPairs + half, tag)": True,
    "tagged_cuda.h:46: sys -> gpu": True,
    "gather_made_cuda.h:76: comm.signal_begun()": None,
    "tagged_cuda.h:27: sys -> gpu": None,
}
"""Mutants of FusedAdamAllGather: removed and weakened, in code and in instructions, found and not reached."""


@pytest.mark.usefixtures("emulator_is_built")
@BY_MAKE_MUTANTS
@NEEDS_NVCC
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sample_of_mutants_is_found_on_emulated_gpus(local_evaluator: LocalEvaluator, compiled_before: Path):
    problem = find_problem("FusedAdamAllGather")
    cache, text = CompileCache.in_folder(compiled_before), expert_source(problem, "cu") or ""
    judge = EmulatedJudge.of(local_evaluator, problem, text, cache)
    assert judge.is_clean()
    assert judge.outcomes(list(SAMPLE), ["tiny"], 1) == SAMPLE


def test_equivalent_mutants_exist():
    for each in EQUIVALENTS:
        for name in each.problems:
            source = InlinedSource.of(expert_source(find_problem(name), each.suffix) or "")
            alike = [op for op in source.operations if op.file == each.file and op.code.startswith(each.code)]
            assert alike, f"{name} has no {each.code} in {each.file}"
            assert reason_why(name, each.suffix, each.file, alike[0].code, each.nth or 0) == each.reason
    assert reason_why("AllGather", "cu", "expert", "comm.epoch % 2", 0) is None


def test_mutants_that_pass_on_emulated_gpus_exist():
    names = sorted({name for name, _ in AT_TINY})
    for name in names if os.environ.get("PKB_TEST_MUTANTS") else sampled(names, 4):
        problem = find_problem(name)
        there = {each.name for each in all_mutants(problem, expert_source(problem, "cu") or "")}
        assert {mutant for of, mutant in AT_TINY if of == name} <= there


def test_mutants_that_differ_by_the_letter_exist():
    problem = find_problem("ZeRO1")
    there = {each.name for each in all_mutants(problem, expert_source(problem, "cu") or "")}
    assert BY_THE_LETTER.keys() <= there


@pytest.mark.parametrize("each", UNREACHED, ids=lambda each: f"{each.file} {each.code}")
def test_unreached_operations_exist(each):
    for name in each.problems:
        source = InlinedSource.of(expert_source(find_problem(name), "cu") or "")
        places = [place_of(source, mutant) for mutant in source.mutants()]
        for ranks, reason in ((2, each.reason), (each.ranks or 8, None if each.ranks else each.reason)):
            reasons = [why_unreached(name, *place, ranks) for place in places if place[0] == each.file]
            assert (each.reason in reasons) is (reason is not None), f"{name} on {ranks} ranks"


@pytest.mark.parametrize("name", FURTHER_SIZES)
def test_further_sizes_fit_their_problems(name: str):
    problem = find_problem(name)
    assert expert_source(problem, "cu")
    for size in FURTHER_SIZES[name]:
        further = EvalConfig(device="cuda", world_size=2, **config_of(size))
        assert further.size is not None
        problem.check_axes(further.size, 2, further.dtype or problem.dtypes[0], "robust")


OTHER_PATHS = {
    ("AllGatherGemm", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("AllGatherGemm", sizes.NO_ROOM_TO_GATHER): "gemm_peers.h:31: comm.signal_begun()",
    ("AllGatherGemmAT", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("AllGatherGemmAT", sizes.NO_ROOM_TO_GATHER): "gemm_peers.h:31: comm.signal_begun()",
    **{
        (name, sizes.LARGE_TERMS): "shares_cuda.h:203: comm.barrier_blocks("
        for name in ("AllReduce", "Reduce", "ReduceScatter")
    },
    ("CombinedShardedGemms", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmAllGather", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmAllReduce", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmReduceScatter", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmReduceScatter", sizes.LARGE_PRODUCT): "expert:99: pkb::store_release(",
    ("GemmReduceScatter", sizes.NO_ROOM_FOR_PRODUCTS): "gemm_peers.h:31: comm.signal_begun()",
    ("GemvDecode", sizes.MANY_TOKENS): "gemm_peers.h:31: comm.signal_begun()",
    ("GemvDecode", sizes.MANY_LOGITS_OF_FEW_TOKENS): "expert:145: comm.wait_block(",
    ("HyenaCP", sizes.SHORT_FILTERS): "expert:648: wait_convolved(",
    ("FP8AllGatherParams", sizes.MANY_PARAMETERS): "fp8_exchange_cuda.h:300: comm.wait_block(",
    ("FP8ReduceScatterGrads", sizes.MANY_PARAMETERS): "fp8_exchange_cuda.h:300: comm.wait_block(",
    ("FusedAdamAllGather", sizes.MANY_PARAMETERS): "gather_made_cuda.h:92: comm.wait_block(",
    ("MoELoRAGroupGemmBackward", sizes.MANY_GRADIENTS): "expert:160: comm.wait_block(",
    ("ReduceScatterRMSNorm", sizes.LONG_ROWS): "expert:124: comm.wait_block(",
    ("RopeAllGather", sizes.LONG_SEQUENCE): "gather_made_cuda.h:92: comm.wait_block(",
    ("UlyssesGatherHeadsScatterSeq", sizes.MANY_HEADS): "reshard_cuda.h:225: comm.wait_block(",
    ("UlyssesGatherSeqScatterHeads", sizes.MANY_POSITIONS): "reshard_cuda.h:225: comm.wait_block(",
    ("UlyssesQKVGatherSeqScatterHeads", sizes.MANY_POSITIONS): "reshard_cuda.h:225: comm.wait_block(",
    ("VocabParallelLogProb", sizes.MANY_LOGITS): "vocab_shards_cuda.h:209: store_tagged(",
    ("VocabParallelLogProbChunked", sizes.MANY_LOGITS_IN_CHUNKS): "vocab_shards_cuda.h:209: store_tagged(",
    ("VocabParallelLogProbChunkedBackward", sizes.MANY_LOGITS_IN_CHUNKS): "vocab_shards_cuda.h:209: store_tagged(",
}
"""Problem and further size -> an operation that no named size reaches."""


@pytest.mark.usefixtures("emulator_is_built")
@BY_MAKE_MUTANTS
@NEEDS_NVCC
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("place", "operation"), OTHER_PATHS.items(), ids=[f"{name} {size}" for name, size in OTHER_PATHS]
)
def test_further_sizes_bring_kernels_to_their_other_paths(
    place: tuple[str, str], operation: str, local_evaluator: LocalEvaluator
):
    """On emulated GPUs: without the operation, the kernel is refused."""
    name, size = place
    source = InlinedSource.of(expert_source(find_problem(name), "cu") or "")
    (mutant,) = [each for each in source.mutants() if each.name.startswith(operation)]
    emulated = config("emulated", 2).model_copy(update=config_of(size))
    feedback = local_evaluator.evaluate(find_problem(name), mutant.source, emulated)
    assert feedback.failure in {Failure.RACE, Failure.DEADLOCK, Failure.OUTPUT_MISMATCH}, feedback.message


def test_every_further_size_has_an_operation():
    assert set(OTHER_PATHS) == {(name, size) for name, of in FURTHER_SIZES.items() for size in of}
    for (name, _), operation in OTHER_PATHS.items():
        mutants = InlinedSource.of(expert_source(find_problem(name), "cu") or "").mutants()
        assert sum(each.name.startswith(operation) for each in mutants) == 1, f"{name}: {operation}"


def test_a_size_names_axes_and_dtype():
    assert config_of("tiny/float32") == {"size": "tiny", "dtype": "float32"}
    assert config_of('{"M": 64}') == {"size": {"M": 64}, "dtype": None}
