"""Runs under Triton's GSan, on ranks of the CPU with a stand-in for Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.debugging.gsan import gsan_config
from pkb_gym.engine.evaluators import gsan_check
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.race_check import RaceCheckReport
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.progress import UNDER_GSAN
from pkb_gym.problems.catalogue import find_problem
from tests.engine.debugging import stand_in_triton
from tests.leaks import Lasting

PROBLEM = find_problem("AllReduce")
KEY = b"key of the evaluator"
IMPORTED = Artifact(ok=True, log="", duration_s=0.1)
pytestmark = pytest.mark.timeout(300)

RIGHT = """
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl


@triton.jit
def put(x, buffer):
    tl.store(buffer, tl.load(x))


@triton.jit
def add(buffer, total):
    tl.store(total, tl.load(total) + tl.load(buffer).float())


def is_shared(address):
    for line in open("/proc/self/maps"):
        begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split()[1].endswith("s")


def solution(tensor):
    assert not is_shared(tensor.data_ptr()), "an argument in the heap, which GSan does not watch"
    buffer = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
    put[(1,)](tensor, buffer)
    handle.barrier(channel=0)
    total = torch.zeros(tensor.shape)
    for peer in range(handle.world_size):
        add[(1,)](handle.get_buffer(peer, tensor.shape, tensor.dtype), total)
    handle.barrier(channel=1)
    return total.to(tensor.dtype)
"""
RACY = RIGHT.replace("    handle.barrier(channel=0)\n", "")
LINES = {number: line for number, line in enumerate(RACY.splitlines(), 1) if "tl." in line}


@pytest.fixture(scope="module")
def pool(compiled_before: Path, tmp_path_factory: pytest.TempPathFactory, lasting: Lasting) -> Iterator[GangPool]:
    folder = tmp_path_factory.mktemp("packages")
    stand_in_triton.install(folder)
    pool = GangPool(DeviceArbiter(), CompileCache.in_folder(compiled_before), standby_gangs=0)
    before = {child.pid for child in psutil.Process().children()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        pool.start_zygotes()
    for child in psutil.Process().children():
        if child.pid not in before:
            lasting.keep_process(child.pid)
    yield pool
    pool.stop()
    pool.close()


def judge(pool: GangPool, text: str) -> Feedback:
    """The feedback of an evaluation whose stages have passed."""
    source = Source.parse(text, "cpu", "python")
    config = execution_environment.resolve_here(EvalConfig(device="cpu", world_size=2), PROBLEM, source)
    config = config.model_copy(update={"language": "triton"})
    feedback = FeedbackBuilder(PROBLEM, source, config, execution_environment.describe("cpu", "python"))
    reported: list[str] = []
    gsan_check.add_verdict_of_gsan(pool, feedback, IMPORTED, KEY, 0, reported.append)
    assert reported == [UNDER_GSAN] and feedback.stopwatch.readings()[UNDER_GSAN] > 0
    return feedback.build()


def report_of(feedback: Feedback) -> RaceCheckReport:
    report = feedback.race_check
    assert report is not None and (report.detector, report.size) == ("gsan", "tiny") and report.duration_s > 0
    return report


def test_a_right_kernel_has_no_race(pool: GangPool) -> None:
    feedback = judge(pool, RIGHT)
    assert (report_of(feedback).verdict, report_of(feedback).reason) == ("no_race", "")
    assert feedback.failure is None and feedback.race is None


def test_a_race_between_ranks_is_a_failure_with_its_line(pool: GangPool) -> None:
    feedback = judge(pool, RACY)
    assert report_of(feedback).verdict == "race" and feedback.failure is Failure.RACE
    race = feedback.race
    assert race is not None and race.kind == "unordered" and race.rank == feedback.failed_rank
    assert "after" in feedback.message and "race detected at candidate.py:" in feedback.message, feedback.message
    line = int(feedback.message.partition("candidate.py:")[2].partition(",")[0])
    assert line in LINES and f"program [3,0,0] on rank {race.rank}" in feedback.message
    assert "found by Triton's GSan" in feedback.message


def test_a_race_beside_synchronisation_that_gsan_does_not_see_is_a_warning(pool: GangPool) -> None:
    feedback = judge(pool, f"{RACY}\n# tl.inline_asm_elementwise orders them\n")
    report = report_of(feedback)
    assert report.verdict == "not_judged" and feedback.failure is None and feedback.race is None
    assert "race detected at candidate.py:" in report.reason and "does not see inline assembly" in report.reason


UNJUDGED = {
    "an operation that it lacks": (
        RIGHT.replace("put[(1,)]", "handle.put_signal(1)\n    put[(1,)]"),
        "its run ended with runtime_error: rank [01]: GSan's symmetric memory has no put_signal",
    ),
    "an assertion of its own": (
        RIGHT.replace("    tl.store(buffer,", "    tl.device_assert(False, 'too few rows')\n    tl.store(buffer,"),
        r"an assertion of the device failed: too few rows at candidate.py:11, program \[3,0,0\]",
    ),
    "wrong outputs": (RIGHT.replace("return total", "return 2 * total"), "its outputs are wrong there"),
    "an error": (
        RIGHT.replace("    put[", "    tensor.no_such()\n    put["),
        "runtime_error: AttributeError: 'Tensor' obj",
    ),
}


@pytest.mark.parametrize(("text", "words"), UNJUDGED.values(), ids=UNJUDGED)
def test_what_is_no_race_is_not_judged(pool: GangPool, text: str, words: str) -> None:
    feedback = judge(pool, text)
    report = report_of(feedback)
    assert report.verdict == "not_judged" and feedback.failure is None
    assert re.search(words, report.reason), report.reason


def test_the_calls_have_time_to_compile_their_kernels() -> None:
    config = execution_environment.resolve_here(EvalConfig(device="cpu", world_size=2), PROBLEM)
    assert gsan_config(config).timeout_s == 60.0 and gsan_config(config).until == "check"
    assert gsan_config(config.model_copy(update={"timeout_s": 90.0})).timeout_s == 90.0
