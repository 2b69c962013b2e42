"""The sandbox: its arguments as text, what is to be seen from inside, and what holds without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.sandbox import (
    EMULATOR_INSIDE,
    ROOMS_INSIDE,
    Policy,
    bubblewrap_arguments,
    bubblewrap_works,
    gpu_devices,
    zygote_policy,
)
from pkb_gym.engine.gangs.visible_folders import is_below, python_paths
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.emulator_package import emulator_package
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, candidates, read
from tests.engine.joined_libraries import compile_together
from tests.waiting import PATIENCE_S

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap, which does not work here")


def test_arguments_as_text() -> None:
    policy = Policy(
        read_only=(("/usr", "/usr"), ("/here/rankside", "/pkb/rankside")),
        writable=(("/here/build", "/build"),),
        capabilities=("CAP_SYS_ADMIN",),
        temporary_bytes=1000,
        dies_with_parent=True,
    )
    assert " ".join(bubblewrap_arguments(policy, ["python", "-c", "pass"])) == (
        "bwrap --unshare-user --unshare-pid --unshare-ipc --unshare-net --unshare-uts --die-with-parent "
        "--cap-add CAP_SYS_ADMIN --proc /proc --tmpfs /dev --size 1000 --tmpfs /tmp --size 1000 --tmpfs /dev/shm "
        "--dev-bind /dev/null /dev/null --dev-bind /dev/zero /dev/zero --dev-bind /dev/full /dev/full "
        "--dev-bind /dev/random /dev/random --dev-bind /dev/urandom /dev/urandom --symlink /proc/self/fd /dev/fd "
        "--symlink /proc/self/fd/0 /dev/stdin --symlink /proc/self/fd/1 /dev/stdout "
        "--symlink /proc/self/fd/2 /dev/stderr --ro-bind /usr /usr --ro-bind /here/rankside /pkb/rankside "
        "--bind /here/build /build --remount-ro /dev --remount-ro / --chdir /tmp -- python -c pass"
    )


def test_the_zygote_sees_python_and_its_own_program_alone() -> None:
    policy = zygote_policy(1 << 20)
    assert policy.writable == ()
    rooms = {*ROOMS_INSIDE, (str(emulator_package()), EMULATOR_INSIDE)}
    assert rooms <= set(policy.read_only)
    assert is_below(str(Path(__file__).resolve().parents[3]), policy.hidden)
    root = Path(__file__).resolve().parents[3]
    for outside, inside in set(policy.read_only) - rooms:
        assert outside == inside
        assert not root.is_relative_to(outside), f"{outside} holds the problems"
        assert not Path.home().is_relative_to(outside), f"{outside} holds the home folder"


@needs_bubblewrap
def test_what_is_visible_inside(tmp_path: Path) -> None:
    """Run as the zygote is, by another program: no problems, no home, no other processes, no network, no tokens."""
    program = """
import json, os, socket
def can(path, flags):
    try:
        os.close(os.open(path, flags)); return True
    except OSError:
        return False
try:
    socket.create_connection(("192.0.2.1", 9), timeout=1); net = True
except OSError:
    net = False
print(json.dumps({
    "root": sorted(os.listdir("/")), "pids": [p for p in os.listdir("/proc") if p.isdigit()], "net": net,
    "interfaces": [name for _, name in socket.if_nameindex()], "repo": os.path.exists(REPO),
    "writable": [p for p in ("/", "/usr", "/etc", "/dev", "/pkb", "/tmp", "/dev/shm") if os.access(p, os.W_OK)],
    "create": [p for p in ("/x", "/dev/x", "/etc/x") if can(p, os.O_WRONLY | os.O_CREAT)],
    "zero": os.path.exists("/dev/zero"),
    "pkb": [sorted(os.listdir(path)) for path in ("/pkb", "/pkb/pkb_gym", "/pkb/pkb_gym/engine")],
}))
"""
    program = f"REPO = {str(FOLDER.parent)!r}\n{program}"
    command = bubblewrap_arguments(zygote_policy(1 << 20), [sys.executable, "-I", "-c", program])
    printed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd="/").stdout
    seen = json.loads(printed)
    # The interpreter and its packages stand at their own paths, which may begin anywhere.
    expected = {"dev", "pkb", "proc", "tmp"} | {Path(path).parts[1] for path, _ in python_paths()}
    assert set(seen["root"]) <= expected
    assert len(seen["pids"]) <= 2
    assert seen["net"] is False
    assert seen["interfaces"] == ["lo"]
    assert seen["repo"] is False
    assert set(seen["writable"]) <= {"/tmp", "/dev/shm"}
    assert seen["create"] == []
    assert seen["zero"] is bool(gpu_devices()), "mapped, it is memory that no limit counts"
    assert seen["pkb"] == [["pkb_gym", "rank_emulator"], ["engine"], ["rankside", "wire"]]


REPORT = """
import os

import torch

FOUND = {name: value for name, value in os.environ.items() if "secret" in value}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(f"secrets: {sorted(FOUND)}; proc: {os.access('/proc/sys/kernel/core_pattern', os.W_OK)}")
"""


def test_tokens_of_the_environment_stay_outside(local_evaluator: LocalEvaluator) -> None:
    """All tests run with a secret in their environment."""
    assert any("secret" in value for value in os.environ.values())
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), REPORT, EvalConfig(device="cpu", world_size=1))
    assert "secrets: []" in feedback.message
    if bubblewrap_works():
        assert "proc: False" in feedback.message, "a sandboxed root could change the machine's settings"


BASIC = (
    "good/reads_peers.cpp", "good/reference.py", "good/load_inline.py", "good/own_symmetric_buffers.py",
    "good/shares_memory.py", "broken/syntax_error.cpp",
    "broken/exits_early.cpp", "broken/segfault_on_one_rank.cpp", "broken/lost_signal.cpp", "broken/endless_loop.cpp",
    "broken/allocates_without_end.cpp", "broken/fills_the_disk.cpp", "broken/floods_stdout.cpp",
    "hostile/fork_bomb.cpp",
    "hostile/fork_bomb.py", "hostile/leaves_processes_when_imported.py", "hostile/hoards_unlimited_memory.py",
    "hostile/finishes_in_a_thread.cpp", "hostile/forges_done.py",
)  # fmt: skip


WHERE_FILES_GO = """
import os, tempfile


def solution(tensor):
    raise RuntimeError(f"all in one folder: {tempfile.gettempdir() == os.path.expanduser('~') == os.getcwd()}")
"""


@pytest.fixture(scope="module")
def compiled(compiled_before: Path) -> None:
    """Compiles them together; the tests find them in the cache."""
    native = [candidate for candidate in map(read, map(FOLDER.joinpath, BASIC)) if candidate.path.suffix == ".cpp"]
    sources = [candidate.source for candidate in native if candidate.outcome != "compile_error"]
    compile_together(sources, CompileCache.in_folder(compiled_before))


@pytest.mark.skipif(bubblewrap_works(), reason="run it by `make limits`, without the sandbox")
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", BASIC)
def test_basic_candidates_without_bubblewrap(name: str, local_evaluator: LocalEvaluator) -> None:
    """Resource limits and the system call filter hold everywhere.

    Those that could harm the machine in this mode (see `needs: bubblewrap`) are not run.
    """
    good, candidate = read(FOLDER / BASIC[0]), read(FOLDER / name)
    assert candidate.options.get("needs") is None
    feedback = local_evaluator.evaluate(find_problem(candidate.problem), candidate.source, candidate.config)
    candidate.assert_as_expected(feedback)
    assert feedback.environment.sandbox == "limits"
    assert_passes(local_evaluator.evaluate(find_problem("AllReduce"), good.source, good.config))
    assert list(local_evaluator._pool.zygote(trusted=False).scratch.iterdir()) == []


@pytest.mark.skipif(bubblewrap_works(), reason="run it by `make limits`, without the sandbox")
def test_without_bubblewrap_temporary_files_lie_in_the_working_folder(local_evaluator: LocalEvaluator) -> None:
    feedback = local_evaluator.evaluate(
        find_problem("AllReduce"), WHERE_FILES_GO, EvalConfig(device="cpu", world_size=1)
    )
    assert "all in one folder: True" in feedback.message


def assert_passes(feedback: Feedback) -> None:
    assert feedback.failure is None, feedback.message


def test_what_could_harm_the_machine_is_marked() -> None:
    """Files that reach for other processes, the network or the file system are not for mode "limits"."""
    for candidate in candidates("hostile"):
        words = ("getppid", "create_connection", "rmtree", "/proc/sys", "/dev/shm")
        if any(word in candidate.source for word in words):
            assert candidate.options.get("needs") == "bubblewrap", candidate.name


@needs_bubblewrap
def test_the_record_names_the_sandbox(local_evaluator: LocalEvaluator) -> None:
    candidate = read(FOLDER / "broken" / "syntax_error.cpp")
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), candidate.source, candidate.config)
    assert (feedback.failure, feedback.environment.sandbox) == (Failure.COMPILE_ERROR, "bubblewrap")
    assert str(Path.cwd()) not in feedback.model_dump_json(), "the record names folders of this machine"
