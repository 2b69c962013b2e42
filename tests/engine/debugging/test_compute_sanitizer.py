"""Reports of compute-sanitizer: read off texts in the form of its manual, and of a run in the sandbox."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pkb_gym.engine.debugging import sanitize
from pkb_gym.engine.debugging.sanitizer_reports import MAX_REPORTS, MAX_SUMMARY_CHARS, reports_in
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.records.config import Device, EvalConfig, Language, ResolvedConfig, Sanitizer, resolve
from pkb_gym.engine.records.feedback import SanitizerReport
from pkb_gym.problems.catalogue import find_problem

MEMCHECK = """rank 0:
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at store(float *, int)+0xd0 in /tmp/kernel.cu:9
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f241b0001e0 is out of bounds
=========     and is 33 bytes after the nearest allocation at 0x7f241b000000 of size 448 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: solution(tvm::ffi::TensorView) in /tmp/kernel.cu:25 [0x8a81] in kernel-release.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at store(float *, int)+0xd0 in /tmp/kernel.cu:9
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f241b0001e4 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to \
cudaDeviceSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 3 errors
"""
IN_A_HEADER = """========= Misaligned Shared or Local Address
=========     at pkb::Device::copy(void *, const void *)+0x40 in /opt/include/pkb/moves_cuda.h:31
=========     by thread (3,0,0) in block (1,0,0)
=========     Device Frame: gather(float *, pkb::Device)+0x70 in /tmp/kernel.cu:14
=========
"""
OLDER = """========= Invalid __shared__ read of size 4 bytes
=========     at 0x578 in /tmp/kernel.cu:120:tile(float*)
=========     by thread (0,0,0) in block (0,0,0)
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(int *)+0x90 in /tmp/kernel.cu:13
=========     and Read access at sum(int *)+0xa0 in /tmp/kernel.cu:14 [2048 hazards]
=========     and Read access at sum(int *)+0xb0 in /tmp/kernel.cu:15 [2048 hazards]
=========
========= Warning: Race reported between Write access at sum(int *)+0xc0 in /tmp/kernel.cu:20
=========     and Write access at sum(int *)+0xd0 in /tmp/kernel.cu:21 [32 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at reduce(int *)+0xb0 in /tmp/kernel.cu:20
=========     by thread (63,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at add(int *)+0x70 in /tmp/kernel.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = """rank 0:
========= COMPUTE-SANITIZER
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to \
cuGetProcAddress_v2.
=========     Saved host backtrace up to driver entry point at error
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("tool", "text", "summary"),
    [
        ("memcheck", MEMCHECK, "Invalid __global__ write of size 4 bytes at store(float *, int) in kernel.cu:9"),
        ("memcheck", OLDER, "Invalid __shared__ read of size 4 bytes at kernel.cu:120:tile(float*)"),
        (
            "memcheck",
            IN_A_HEADER,
            "Misaligned Shared or Local Address at pkb::Device::copy(void *, const void *) in pkb/moves_cuda.h:31 "
            "(kernel.cu:14)",
        ),
        (
            "racecheck",
            RACECHECK,
            "Error: Race reported between Write access at sum(int *) in kernel.cu:13 "
            "and Read access at sum(int *) in kernel.cu:14 and Read access at sum(int *) in kernel.cu:15",
        ),
        (
            "synccheck",
            SYNCCHECK,
            "Barrier error detected. Divergent thread(s) in block. at reduce(int *) in kernel.cu:20",
        ),
        ("initcheck", INITCHECK, "Uninitialized __global__ memory read of size 4 bytes at add(int *) in kernel.cu:41"),
    ],
)
def test_a_finding_names_kind_function_and_line_once_for_all_threads(tool: Sanitizer, text: str, summary: str) -> None:
    (report,) = reports_in(tool, text, 86)
    assert (report.found, report.summary) == (True, summary)
    assert "kernel.cu:" in report.report and "/tmp/kernel" not in report.report, "the whole text, without folders"


def test_a_failed_call_counts_where_nothing_explains_it() -> None:
    text = MEMCHECK[MEMCHECK.index("========= Program hit") :]
    (report,) = reports_in("memcheck", text, 86)
    assert report.found and report.summary.startswith("Program hit cudaErrorLaunchFailure (error 719)")


def test_what_the_runtime_asks_of_an_older_driver_is_no_finding() -> None:
    (report,) = reports_in("memcheck", CLEAN, 0)
    assert (report.found, report.summary) == (False, "nothing found")


def test_reports_are_bounded_and_escaped() -> None:
    many = "".join(
        f"========= Invalid __global__ read of size {size}\n=========     at \x1b[31m{'f' * 5000} in kernel.cu:9\n"
        for size in range(100)
    )
    reports = reports_in("memcheck", many, 86)
    assert len(reports) == MAX_REPORTS
    assert all(report.summary.isprintable() and len(report.summary) < MAX_SUMMARY_CHARS + 100 for report in reports)
    assert "\x1b" not in reports[0].report and "characters left out" in reports[0].report
    assert [bool(report.report) for report in reports] == [True] + [False] * (MAX_REPORTS - 1)


TOOL = """#!/bin/sh
# A stand-in that finds something on rank 1, while rank 0 waits for it; rank 0 has written before, unless it is `late`.
for last; do heap=$rank; rank=$last; done
folder="$(dirname "$0")/../compute-sanitizer"
meet() { until [ -e "$heap.$1" ]; do sleep 0.02; done; }
case "$rank" in
  1) [ -e "$folder/late" ] || meet written
     cat "$folder/report"; echo "rank 1 ran: $*"; touch "$heap.found"; exit 86 ;;
esac
if [ -e "$folder/late" ]; then meet found; cat "$folder/report"; echo "rank 0 was late"; exit 86; fi
echo "rank 0 ran: $*"; touch "$heap.written"
exec sleep 60
"""


def config_of(language: Language, *sanitizers: str, device: Device = "cuda") -> ResolvedConfig:
    requested = EvalConfig(device=device, world_size=2, sanitize=sanitizers)  # type: ignore[arg-type]
    problem = find_problem("AllReduce")
    return resolve(requested, problem, device=device, language=language, memory_total_bytes=1 << 36, gpus=2)


def reports_of(config: ResolvedConfig, grace_s: int = 0) -> list[SanitizerReport]:
    run: Any = SimpleNamespace(feedback=SimpleNamespace(source=SimpleNamespace(text="a kernel")), config=config)
    script = sanitize.run_script(2, sanitize.SANITIZERS["cuda"], grace_s).encode()
    return sanitize._reports(run, None, config.sanitize[0], {"run.sh": script})  # type: ignore[arg-type]


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a stand-in, as the kit's: a script beside nvcc that uses a folder beside its own."""
    for name in ("bin", "compute-sanitizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "compute-sanitizer").write_text(TOOL)
    (tmp_path / "bin" / "compute-sanitizer").chmod(0o755)
    (tmp_path / "compute-sanitizer" / "report").write_text(MEMCHECK.removeprefix("rank 0:\n"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    made = SimpleNamespace(binary=b"a library", log="")
    monkeypatch.setattr(sanitize, "compile_sanitized", lambda *_: made)
    monkeypatch.setattr(sanitize, "build_harness", lambda *_: b"a program")
    return tmp_path


@pytest.mark.parametrize("sandboxed", [True, False])
def test_findings_come_from_the_tool_in_the_sandbox(
    toolkit: Path, sandboxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sandboxed:
        monkeypatch.setattr("pkb_gym.engine.compile.sandboxed_compiler.bubblewrap_works", lambda: False)
    elif not bubblewrap_works():
        pytest.skip("needs bubblewrap")
    (report,) = reports_of(config_of("cuda", "memcheck"))
    assert report.found
    assert report.summary == "Invalid __global__ write of size 4 bytes at store(float *, int) in kernel.cu:9"
    ranks = report.report.split("rank 1:\n")
    assert ranks[0].startswith("rank 0:\nrank 0 ran: --tool memcheck"), "not mixed, whoever writes first"
    assert "rank 1 ran: --tool memcheck --error-exitcode 86 ./harness-release . ./kernel-release.so" in ranks[1]


def test_what_other_ranks_find_at_the_same_time_is_kept(toolkit: Path) -> None:
    (toolkit / "compute-sanitizer" / "late").touch()
    (report,) = reports_of(config_of("cuda", "memcheck"), grace_s=60)
    assert "rank 0 was late" in report.report.partition("rank 1:\n")[0]


def test_without_the_tool_the_message_names_its_package(toolkit: Path) -> None:
    (toolkit / "bin" / "compute-sanitizer").unlink()
    with pytest.raises(InfrastructureError, match="install it with the CUDA toolkit, or set CUDA_HOME"):
        reports_of(config_of("cuda", "memcheck"))


@pytest.mark.parametrize(
    ("language", "device", "sanitizer", "words"),
    [
        (
            "cuda",
            "cuda",
            "address",
            "sanitizers of 'cuda' sources are memcheck, racecheck, synccheck, initcheck; 'addr",
        ),
        ("cpp", "cpu", "memcheck", "sanitizers of 'cpp' sources are address, undefined, thread; 'memcheck' is not"),
        ("python", "cuda", "memcheck", r"sanitizers are for C\+\+ and CUDA sources; this one is 'python'"),
    ],
)
def test_a_sanitizer_belongs_to_a_language(language: Language, device: Device, sanitizer: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(language, sanitizer, device=device)
