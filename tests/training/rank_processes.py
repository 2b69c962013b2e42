"""The ranks of a run as processes, forked from one that has imported their program: imports of trainers take seconds.

WORLD_SIZE=2 python -m tests.training.rank_processes MODULE ARGUMENT ...

Where the module has a function `prepare`, it gets the arguments as they are and has returned before the ranks begin.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from pkb_gym.engine.rankside.confine import die_with_parent
from tests.garbage import pause_collections


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def run_ranks(
    module: str, arguments: list[object], environment: Mapping[str, str], timeout_s: float, *, count: int = 2
) -> None:
    """Runs the program of a module on each rank; what they print is shown where one of them fails.

    Args:
        module: Name of a module with a program, which neither starts threads nor asks for its rank when it is imported.
        arguments: Arguments of the program on each rank.
        environment: Variables of all ranks.
        timeout_s: Deadline in seconds.
        count: Number of ranks.
    """
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.training.rank_processes", module, *map(str, arguments)],
        env={**environment, **common, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as first:
        try:
            printed, _ = first.communicate(timeout=timeout_s)
        finally:
            first.kill()
    assert first.returncode == 0, printed[-6000:]


def _fork(work: Callable[[], object]) -> int:
    """Starts a process, which ends with this one."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        die_with_parent()
        if os.getppid() == parent:
            work()
            status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run_rank(module: str, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_well(processes: set[int]) -> bool:
    """Whether all end well; the first that does not ends the others."""
    failed = False
    while processes:
        pid, status = os.wait()
        processes.discard(pid)
        if status and not failed:
            failed = True
            for process in processes:
                os.kill(process, signal.SIGKILL)
    return not failed


def main() -> int:
    """Forks the ranks; the status is 0 if all end well."""
    del sys.argv[0]
    pause_collections()
    name, *arguments = sys.argv
    module = importlib.import_module(name)
    del sys.modules[name]  # each rank runs it as its main program
    gc.freeze()
    # In a process of its own: libraries that have computed may not be forked.
    if (prepare := getattr(module, "prepare", None)) and not _end_well({_fork(lambda: prepare(*arguments))}):
        return 1
    ranks = range(int(os.environ["WORLD_SIZE"]))
    return 0 if _end_well({_fork(partial(_run_rank, name, rank)) for rank in ranks}) else 1


if __name__ == "__main__":
    sys.exit(main())
