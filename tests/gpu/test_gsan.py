"""Triton's GSan on the GPUs there are: races between programs of a kernel, and between ranks."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.stages.execution_environment import no_gsan
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, read
from tests.gpu.sharing import need_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.skipif(bool(no_gsan()), reason=no_gsan())]

ONE_RANK = """
import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def copy(x, out, marks, n, own: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
    tl.store(marks + tl.program_id(0) * own, 1)


@torch.no_grad()
def solution(tensor):
    n, block = tensor.numel(), 16
    out = torch.empty_like(tensor)
    programs = triton.cdiv(n, block)
    marks = torch.zeros(programs, dtype=torch.int32, device=tensor.device)
    copy[(programs,)](tensor, out, marks, n, OWN, block)
    return out
"""
"""All-reduce of a single rank, whose programs leave marks at places of their own (OWN = 1) or at one (OWN = 0)."""

TWO_RANKS = """
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

made = []


@triton.jit
def put(x, buffer, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(buffer + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def add(table, out, n, world_size: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in range(world_size):
        theirs = tl.load(table.to(tl.pointer_type(tl.uint64)) + rank).to(tl.pointer_type(out.dtype.element_ty))
        total += tl.load(theirs + at, mask=at < n, other=0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < n)


@torch.no_grad()
def solution(tensor):
    if not made:
        buffer = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        made.extend((buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)))
    buffer, handle = made
    n, out, grid = tensor.numel(), torch.empty_like(tensor), (triton.cdiv(tensor.numel(), 256),)
    put[grid](tensor, buffer, n, 256)
    handle.barrier(channel=0)
    add[grid](handle.buffer_ptrs_dev, out, n, handle.world_size, 256)
    handle.barrier(channel=1)
    return out
"""
"""All-reduce by reads of the peers' buffers."""

EXIT_BARRIER = "    handle.barrier(channel=1)\n"


def evaluate(evaluator: LocalEvaluator, source: str, world_size: int, problem: str = "AllReduce") -> Feedback:
    config = EvalConfig(device="cuda", world_size=world_size, size="tiny", until="check", race_check="on")
    return evaluator.evaluate(find_problem(problem), source, config)


def assert_no_race(feedback: Feedback) -> None:
    report = feedback.race_check
    assert feedback.passed and report is not None, feedback.message
    assert (report.detector, report.verdict) == ("gsan", "no_race"), report.reason


def assert_race(feedback: Feedback, access: str) -> None:
    assert feedback.failure is Failure.RACE, (feedback.message, feedback.race_check)
    assert f"{access} race detected at candidate.py:" in feedback.message


def test_programs_that_store_to_one_place_race(local_evaluator: LocalEvaluator) -> None:
    need_gpus(1)
    assert_no_race(evaluate(local_evaluator, ONE_RANK.replace("OWN,", "1,"), 1))
    assert_race(evaluate(local_evaluator, ONE_RANK.replace("OWN,", "0,"), 1), "write after write")


def test_handles_have_pointers_and_barriers_on_one_rank(local_evaluator: LocalEvaluator) -> None:
    need_gpus(1)
    assert_no_race(evaluate(local_evaluator, TWO_RANKS, 1))


def test_ranks_that_do_not_wait_for_readers_race(local_evaluator: LocalEvaluator) -> None:
    need_gpus(2)
    assert_no_race(evaluate(local_evaluator, TWO_RANKS, 2))
    feedback = evaluate(local_evaluator, TWO_RANKS.replace(EXIT_BARRIER, ""), 2)
    if feedback.race_check is not None:  # else the GPUs have shown it
        assert_race(feedback, "write after read")


def test_a_right_candidate_on_symmetric_memory_has_no_race(local_evaluator: LocalEvaluator) -> None:
    need_gpus(2)
    candidate = read(FOLDER / "cuda" / "good" / "triton_all_gather.py")
    assert_no_race(evaluate(local_evaluator, candidate.source, 2, candidate.problem))
