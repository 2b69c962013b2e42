"""The race detector beside evaluations on GPUs: its verdicts, what it does not judge, and its cache."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.compile import emulator, nvcc
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import candidate_flags, compile_for_both, library_of
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.compile.toolchain import exports_solution
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators import race_detector
from pkb_gym.engine.evaluators.race_detector import RaceDetector
from pkb_gym.engine.gangs.emulated_gang import EmulatedGang
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.records.race_check import JudgedRaces
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.race_check import emulated_config, judge_races, secret_of
from pkb_gym.engine.support import priority
from pkb_gym.problems.catalogue import find_problem
from rank_emulator.cuda_sources import ARCHITECTURE
from tests.engine.candidates import FOLDER
from tests.engine.emulated.compiled_together import Kernel, compile_together, joined
from tests.leaks import Lasting
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
PROBLEM = find_problem("AllReduce")
KEY = b"key of the evaluator"
NICENESS = "1"
"""Not that of evaluations: other tests may have all processors."""
COMPILED = Artifact(ok=True, log="", duration_s=0.1)
"""For GPUs; without an object, so that the detector has it compiled anew."""

LARGE_ALONE = """
#include <cuda_bf16.h>

#include "pkb/symm.h"

__global__ void push(const __nv_bfloat16* tensor, __nv_bfloat16* out, pkb::Device comm) {
  // Right for tensors of 1024 elements and more alone, at which it would meet its peers.
  for (int r = 0; r < comm.world_size; ++r) comm.peer(out, r)[threadIdx.x] = tensor[threadIdx.x];
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto *x = static_cast<__nv_bfloat16*>(tensor.data_ptr()), *y = static_cast<__nv_bfloat16*>(out.data_ptr());
  push<<<1, 1024, 0, comm.cuda_stream()>>>(x, y, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


def of_file(name: str) -> Kernel:
    return Kernel(Path(name).stem, PROBLEM.name, (FOLDER / "cuda" / name).read_text(encoding="utf-8"))


RIGHT = of_file("good/reads_peers.cu")
RACE = of_file("racy/copies_into_scratch_that_peers_gather.cu")
WEAK = of_file("styles/plain_stores_of_flags.cu")
FITS_LARGE = Kernel("large_alone", PROBLEM.name, LARGE_ALONE)
CRASHES = of_file("broken/aborts.cu")
KERNELS = [RIGHT, RACE, WEAK, FITS_LARGE, CRASHES]


def config(size: str = "published", race_check: str = "auto") -> ResolvedConfig:
    requested = EvalConfig.model_validate({"world_size": 2, "size": size, "race_check": race_check})
    return resolve(
        requested, PROBLEM, device="cuda", language="cuda", memory_total_bytes=8 << 30, gpus=2, no_detector=""
    )


def source_of(kernel: Kernel) -> Source:
    return Source.parse(joined(KERNELS, KERNELS.index(kernel)), "cuda")


@pytest.fixture(scope="module")
def cache(compiled_before: Path) -> CompileCache:
    cache = CompileCache.in_folder(compiled_before)
    compile_together(KERNELS, cache)
    return cache


@pytest.fixture(scope="module")
def detector(cache: CompileCache, lasting: Lasting) -> Iterator[RaceDetector]:
    with pytest.MonkeyPatch.context() as patch:  # an older cache has no verdict for it
        patch.setattr(race_detector, "RULES", secrets.token_hex(4))
        patch.setattr(race_detector, "DEADLINE_S", 1500.0)
        patch.setattr(priority, "NICENESS", NICENESS)
        yield from running_detector(cache, lasting)


def running_detector(cache: CompileCache, lasting: Lasting) -> Iterator[RaceDetector]:
    detector = RaceDetector(cache)
    before = {child.pid for child in psutil.Process().children()}
    detector._pool.start_zygotes()
    for child in psutil.Process().children():
        if child.pid not in before:
            lasting.keep_process(child.pid)
    yield detector
    detector.close()


def judge(detector: RaceDetector, kernel: Kernel, **configured: str) -> JudgedRaces:
    return detector.begin(PROBLEM, source_of(kernel), COMPILED, config(**configured), KEY).result()


def test_a_right_kernel_has_no_race(detector: RaceDetector) -> None:
    found = judge(detector, RIGHT)
    assert (found.report.verdict, found.report.reason, found.report.size) == ("no_race", "", "tiny"), found.message
    assert found.race is None and found.emulation is not None and found.emulation.calls == 14
    assert not found.report.cached and found.report.duration_s > 0


def test_a_race_that_outputs_on_gpus_do_not_show_is_found_with_its_line(detector: RaceDetector) -> None:
    """It passed 18 of 18 evaluations on two H200 at this size."""
    found = judge(detector, RACE)
    assert found.report.verdict == "race" and found.race is not None and found.race.kind == "unordered"
    assert "copies_into_scratch_that_peers_gather.cu:" in found.message and "emulated run at size tiny" in found.message
    assert found.failed_rank in (0, 1)


def test_a_weak_order_is_a_warning_and_fails_by_the_letter_alone(detector: RaceDetector) -> None:
    found = judge(detector, WEAK)
    assert found.report.verdict == "no_race" and found.emulation is not None
    assert {finding.finding_class for finding in found.emulation.findings} == {"weak_order"}
    strict = judge(detector, WEAK, race_check="strict")
    assert strict.report.verdict == "race" and strict.race is not None and not strict.report.cached


def test_a_kernel_for_another_size_is_not_accused_by_what_it_does_at_this_one(detector: RaceDetector) -> None:
    found = judge(detector, FITS_LARGE)
    assert found.report.verdict == "not_judged" and found.race is None
    assert found.report.reason.startswith("in an emulated run at size tiny it ended with race: ")
    assert judge(detector, FITS_LARGE, size="tiny").report.verdict == "race", "it was evaluated at this size"


def test_what_fails_for_another_reason_is_not_judged(detector: RaceDetector) -> None:
    found = judge(detector, CRASHES)
    assert found.report.verdict == "not_judged" and found.race is None
    assert found.report.reason.startswith("in an emulated run at size tiny it ended with runtime_error: "), found.report


def test_the_compile_for_gpus_serves_emulated_ones_too(detector: RaceDetector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile takes seconds of a processor, twenty times what the run takes, and a link a tenth of one."""
    monkeypatch.setattr(nvcc, "default_architecture", lambda: ARCHITECTURE)
    compiled = compile_for_both(LARGE_ALONE, detector._cache, 600.0)
    assert compiled.binary is not None and exports_solution(compiled.binary) and compiled.kernels, compiled.log
    assert compile_for_both(LARGE_ALONE, detector._cache, 600.0) == dataclasses.replace(compiled, cached=True)
    monkeypatch.setattr(emulator, "compile_emulated", None)  # it is not called
    found = detector.begin(PROBLEM, Source.parse(LARGE_ALONE, "cuda"), compiled, config(size="tiny"), KEY).result()
    assert found.report.verdict == "race" and "kernel.cu:8" in found.message, found


def test_gpus_of_another_architecture_have_a_compile_of_their_own(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(nvcc, "default_architecture", lambda: "sm_80")
    monkeypatch.setattr(nvcc, "compile_cuda", lambda *arguments, **_: calls.append(arguments) or COMPILED)
    assert compile_for_both("", cache, 60.0) is COMPILED and library_of(COMPILED, "", cache, 60.0) is COMPILED
    assert calls == [("", cache, 60.0), ("", cache, 60.0, ARCHITECTURE, candidate_flags())]
    monkeypatch.setattr(emulator, "emulator_package", lambda: None)
    assert compile_for_both("", cache, 60.0) is COMPILED and calls[2:] == calls[:1], "all else works without it"


def test_a_source_that_does_not_compile_for_emulated_gpus_is_not_judged(
    detector: RaceDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Artifact(ok=False, log="kernel.cu(3): error: no such instruction", duration_s=0.1)
    monkeypatch.setattr(race_detector, "library_of", lambda *_: artifact)
    pending = detector.begin(PROBLEM, Source.parse("// pkb::Comm, another\n", "cuda"), COMPILED, config(), KEY)
    reason = "it does not compile for emulated GPUs: kernel.cu(3): error: no such instruction"
    assert pending.result().report.reason == reason


def test_a_verdict_is_cached_for_source_world_size_and_mode(detector: RaceDetector, cache: CompileCache) -> None:
    first = judge(detector, RACE)
    with_another_key = RaceDetector(cache)  # which starts no process
    found = with_another_key.begin(PROBLEM, source_of(RACE), COMPILED, config(), b"another key").result()
    with_another_key.close()
    assert found.report.cached and found.report.verdict == "race" and found.message == first.message
    assert found.emulation == first.emulation and found.report.duration_s == first.report.duration_s


def test_runs_side_by_side_have_reference_ranks_of_their_own(
    detector: RaceDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on machines with processors for several; those of one run are in the middle of it while the other begins."""
    detector._lanes.put(1)
    together = threading.Barrier(2)

    def judge_together(run: CandidateRun, gang: EmulatedGang, *, is_same_size: bool) -> tuple[JudgedRaces, bool]:
        together.wait(60)
        return judge_races(run, gang, is_same_size=is_same_size)

    monkeypatch.setattr(race_detector, "judge_races", judge_together)
    begun = [detector.begin(PROBLEM, source_of(each), COMPILED, config("tiny"), KEY) for each in (RIGHT, RACE)]
    assert [pending.result().report.verdict for pending in begun] == ["no_race", "race"]
    assert detector._lanes.get() != detector._lanes.get()
    detector._lanes.put(0)


def test_schedules_follow_from_the_key_of_the_evaluator_and_from_the_source() -> None:
    secrets = [secret_of(KEY), secret_of(b"another")]
    sources = [source_of(RACE), source_of(WEAK)]
    seeds = {emulated_config(PROBLEM, source, config(), secret).seed for source in sources for secret in secrets}
    assert len(seeds) == 4 and all(seed > 2**32 for seed in seeds)
    emulated = emulated_config(PROBLEM, sources[0], config(race_check="strict"), secrets[0])
    assert (emulated.device, emulated.size, emulated.world_size, emulated.trials) == ("emulated", "tiny", 2, 14)
    assert emulated.race_check == "strict" and emulated.until == "check"


def test_its_processes_leave_processors_to_others(detector: RaceDetector) -> None:
    judge(detector, RIGHT, race_check="strict")
    gang = detector._pool.reference("cpu", 2)
    zygotes = [zygote._process.pid for zygote in detector._pool._zygotes.values()]
    ranks = [child.pid for child in psutil.Process().children(recursive=True) if child.pid not in zygotes]
    assert gang.is_sound and len(zygotes) == 2
    nice = {pid: psutil.Process(pid).nice() for zygote in zygotes for pid in (zygote, *_below(zygote)) if pid in ranks}
    assert nice and set(nice.values()) == {psutil.Process().nice() + int(NICENESS)}


def _below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def test_a_run_that_nobody_waits_for_any_more_is_ended(detector: RaceDetector, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its deadline, or as the evaluation has failed."""
    started, gangs = threading.Event(), []

    def runs_on(run: object, gang: object, *, is_same_size: bool) -> object:
        gangs.append(gang)
        started.set()
        until(lambda: not gang._gang.processes.all_run())  # type: ignore[attr-defined]
        raise InfrastructureError("the process has ended")

    monkeypatch.setattr(race_detector, "judge_races", runs_on)
    monkeypatch.setattr(race_detector, "verdict_key", lambda *_: "of a run that goes on")
    monkeypatch.setattr(race_detector, "DEADLINE_S", 0.0)
    pending = detector.begin(PROBLEM, source_of(RIGHT), COMPILED, config(), KEY)
    assert started.wait(60)
    found = pending.result()
    assert found.report.verdict == "not_judged" and "had not finished after 0 s" in found.report.reason
    pending.join(60)
    assert pending.is_cancelled and detector._pool.is_sound
    monkeypatch.undo()
    assert judge(detector, RIGHT).report.verdict == "no_race", "later runs have their processes"


def test_a_closed_detector_judges_nothing(cache: CompileCache) -> None:
    closed = RaceDetector(cache)
    closed.close()
    closed.close()
    found = closed.begin(
        PROBLEM, Source.parse("// pkb::Comm, of a closed one\n", "cuda"), COMPILED, config(), KEY
    ).result()
    assert found.report.verdict == "not_judged"
