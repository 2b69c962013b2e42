"""Tools over untrusted text: what goes in, what comes out, what they may see and take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pkb_gym.engine.compile import sandboxed_compiler
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, Run, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import INCLUDE
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.support.priority import NICENESS

ROOT = Path(__file__).resolve().parents[3]
LIMITS = CompilerLimits(timeout_s=20)
needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap")
MODES = [pytest.param("bubblewrap", marks=needs_bubblewrap), "limits"]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "limits":
        monkeypatch.setattr(sandboxed_compiler, "bubblewrap_works", lambda: False)
    return request.param


def shell(text: str, limits: CompilerLimits = LIMITS, result: str = "", readable: tuple[Path, ...] = ()) -> Run:
    files = {"first": b"one\n", "second": b"two\n"}
    return run_sandboxed(["sh", "-c", text], files=files, limits=limits, result=result, readable=readable)


def test_files_go_in_and_the_result_comes_out(mode: str) -> None:
    run = shell("echo text; echo loud >&2; cat first second > made", result="made")
    assert (run.status, run.output, run.result) == (0, "text\nloud\n", b"one\ntwo\n")
    assert compiled_of(run, LIMITS).artifact.binary == b"one\ntwo\n"


def test_a_failure_has_a_status_and_no_result(mode: str) -> None:
    run = shell("echo wrong; echo half > made; exit 3", result="made")
    assert (run.status, run.output, run.result) == (3, "wrong\n", b"")
    compiled = compiled_of(run, LIMITS)
    assert not compiled.artifact.ok and compiled.lasting and "ended with status 3" in compiled.artifact.log


def test_a_result_that_was_not_made_is_a_failure(mode: str) -> None:
    run = shell("true", result="made")
    assert run.status != 0 and not compiled_of(run, LIMITS).artifact.ok


@needs_bubblewrap
def test_a_sandbox_that_cannot_be_made_is_no_compile_error(tmp_path: Path) -> None:
    """It was kept as the source's own, for all later evaluations."""
    with pytest.raises(InfrastructureError, match=r"sandbox of sh could not be made .*No such file or directory"):
        shell("true", readable=(tmp_path / "removed",))


@pytest.mark.parametrize(
    ("low_priority", "niceness"), [(False, os.nice(0)), (True, min(19, os.nice(0) + int(NICENESS)))]
)
def test_work_beside_what_is_measured_has_a_low_priority(mode: str, low_priority: bool, niceness: int) -> None:
    run = shell("cat /proc/self/stat", CompilerLimits(timeout_s=20, low_priority=low_priority))
    assert int(run.output.rpartition(")")[2].split()[16]) == niceness


def test_a_deadline_ends_everything(mode: str) -> None:
    run = shell("sleep 60 & sleep 60", CompilerLimits(timeout_s=0.3))
    assert run.status is None and run.duration_s < 50
    compiled = compiled_of(run, CompilerLimits(timeout_s=0.3))
    assert not compiled.artifact.ok and not compiled.lasting and "longer than 0.3 s" in compiled.artifact.log


def test_files_have_a_limit(mode: str) -> None:
    run = shell("head -c 100000 /dev/zero > made", CompilerLimits(timeout_s=20, file_blocks=10), result="made")
    assert run.status != 0 and run.result == b""


@needs_bubblewrap
def test_the_repository_is_out_of_sight() -> None:
    headers = shell(f"ls {INCLUDE}/pkb", readable=(INCLUDE,))
    assert headers.status == 0 and "symm.h" in headers.output
    for path in (ROOT / "README.md", ROOT / "problems", ROOT / "pkb_gym" / "problems", Path.home()):
        assert shell(f"test -e {path}", readable=(INCLUDE,)).status == 1, path


@needs_bubblewrap
def test_an_installation_among_what_is_readable_is_covered() -> None:
    """A toolkit of a Python distribution can share its folders with the installed package."""
    seen = shell(
        f"ls {INCLUDE}/pkb; find {ROOT} -name 'expert.*' -o -name README.md 2>/dev/null; true",
        readable=(ROOT, INCLUDE),
    )
    assert seen.status == 0
    assert "symm.h" in seen.output and str(ROOT) not in seen.output


@pytest.mark.parametrize("status", [-15, 143, -2])
def test_a_compiler_that_somebody_ended_is_no_fault_of_the_text(status: int) -> None:
    with pytest.raises(InfrastructureError, match="ended from outside"):
        compiled_of(Run(status=status, output="", result=b"", duration_s=0.1), LIMITS)


@pytest.mark.parametrize("status", [-9, 137])
def test_a_compiler_that_was_killed_may_have_been_short_of_memory(status: int) -> None:
    compiled = compiled_of(Run(status=status, output="", result=b"", duration_s=0.1), LIMITS)
    assert not compiled.artifact.ok and not compiled.lasting and compiled.killed


@pytest.mark.parametrize(
    ("log", "killed"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", True),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", True),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", True),
        ("g++: internal compiler error: Segmentation fault signal terminated program cc1plus", False),
        ("kernel.cpp:3: error: expected ';' before '}' token", False),
    ],
)
def test_a_stage_that_was_killed_is_recognised_by_the_log(log: str, killed: bool) -> None:
    assert compiled_of(Run(status=1, output=log, result=b"", duration_s=0.1), LIMITS).killed == killed


def test_a_full_disk_is_no_failure_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bubblewrap, compilers write to the disk: their message about it stood as a compile error."""
    monkeypatch.setattr(sandboxed_compiler, "bubblewrap_works", lambda: False)
    monkeypatch.setattr(sandboxed_compiler, "DISK_BYTES", 1 << 62)
    with pytest.raises(InfrastructureError, match=r"sh had \d+ bytes of disk left"):
        shell("exit 1")
    assert shell("exit 0").status == 0
