"""The evaluator's process is killed in the middle: nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from tests.leaks import SHM, used_by_others
from tests.waiting import PATIENCE_S, until
from tests.whole_tables import sampled

PROGRAM = """
import sys
from pathlib import Path

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.problems.catalogue import find_problem

if sys.argv[3] == "limits":
    from pkb_gym.engine.compile import sandboxed_compiler
    from pkb_gym.engine.gangs import zygote
    from pkb_gym.engine.stages import execution_environment

    for module in (sandboxed_compiler, execution_environment, zygote):
        module.bubblewrap_works = lambda: False
config = EvalConfig(device="cpu", world_size=2, size="tiny", timeout_s=60)
LocalEvaluator(cache_dir=Path(sys.argv[2])).evaluate(
    find_problem("AllReduce"), Path(sys.argv[1]).read_text(), config, progress=lambda stage: print(stage, flush=True)
)
"""
LOOP = """
#include "pkb/symm.h"
#include <thread>
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::thread([] { for (volatile long i = 0;; i = i + 1) {} }).detach();
  for (volatile long i = 0;; i = i + 1) {}
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
COMPILE_FOR_EVER = """
#if __INCLUDE_LEVEL__ < 190
#include __FILE__
#include __FILE__
#endif
void solution() {}
"""
NEEDS_BUBBLEWRAP = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap")
CASES = [
    pytest.param(mode, source, stage, id=f"{stage}-{mode}", marks=NEEDS_BUBBLEWRAP if mode == "bubblewrap" else ())
    for source, stage in ((LOOP, "check"), (COMPILE_FOR_EVER, "compile"))
    for mode in ("bubblewrap", "limits")
]


def files(temporary: Path) -> set[str]:
    found = {str(path) for path in SHM.iterdir()} if SHM.is_dir() else set()
    return found | {str(path) for path in temporary.iterdir()}


def new_files(temporary: Path, before: set[str]) -> set[str]:
    """Those that are there now, but for what other tests use."""
    left = files(temporary) - before
    return {path for path in left if not (Path(path).parent == SHM and used_by_others(Path(path).name))}


def family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


# Of the four, the first and the last: each stage, and each mode.
@pytest.mark.parametrize(("mode", "source", "stage"), sampled(CASES, 3))
def test_nothing_is_left_of_a_killed_evaluator(
    tmp_path: Path, compiled_before: Path, mode: str, source: str, stage: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = files(temporary)
    cache = compiled_before if stage == "check" else tmp_path / "cache"  # killed compilers get a cache of their own
    kernel = tmp_path / "kernel.cpp"
    kernel.write_text(source)
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(kernel), str(cache), mode],
        stdout=subprocess.PIPE,
        cwd=root,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if line.strip() == stage:
                break
        if stage == "check":
            wait_until_it_spins(process.pid)
        else:
            time.sleep(0.5)  # the compiler has begun
        children = family(process.pid)
        assert children
        process.send_signal(signal.SIGKILL)
        process.wait()
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive, [child.cmdline() for child in alive]
    assert len(gone) == len(children)
    until(lambda: not new_files(temporary, before), "files stay behind")


def wait_until_it_spins(pid: int) -> None:
    """Both candidate ranks, with their threads, are at work.

    All processes are looked at together: four spinning threads take the processors from everything else.
    """
    deadline = time.monotonic() + 60
    spent_s: dict[int, float] = {}
    while time.monotonic() < deadline:
        busy = 0
        for child in family(pid):
            try:
                times, threads = child.cpu_times(), child.num_threads()
            except psutil.Error:
                continue
            now_s = times.user + times.system
            busy += threads > 1 and now_s - spent_s.get(child.pid, now_s) > 0.01
            spent_s[child.pid] = now_s
        if busy >= 2:
            return
        time.sleep(0.05)
    pytest.fail("the candidate never began")
