"""The time to make and to end CUDA contexts, by number of hardware queues (CUDA_DEVICE_MAX_CONNECTIONS).

Every candidate gets fresh processes, and no timing may run beside making or ending their contexts: this bounds how many
candidates a machine can time in a minute. Processes are forked from one that has imported torch, as gangs are, and make
their contexts at the same moment, each on its own GPU; on every GPU another process keeps a context meanwhile.

python -m benchmarks.gpu_contexts [--world-size 4] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # forked processes need not import it

from benchmarks.common import RESULTS, save
from pkb_gym.engine.hardware import gpus

ROUNDS, QUEUES = 5, (1, 2, 4, 8)


def start(gpu: int, queues: int | None, go: int) -> tuple[int, int]:
    """Forks a process that makes a context when `go` can be read; its pid, and the pipe that then reports it."""
    made, ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready)
        return pid, made
    try:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
        if queues is not None:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(queues)
        os.read(go, 1)
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()
        os.write(ready, b"x")
        signal.pause()
    finally:
        os._exit(1)


def make_and_end(world_size: int, queues: int | None) -> tuple[float, float]:
    """Milliseconds until every process has a context, and from ending them until all are gone."""
    go, let_go = os.pipe()
    processes = [start(gpu, queues, go) for gpu in range(world_size)]
    time.sleep(0.05)
    began = time.perf_counter()
    os.write(let_go, b"x" * world_size)
    for _, made in processes:
        if not os.read(made, 1):
            raise RuntimeError("a process could make no context")
    made_s = time.perf_counter() - began
    began = time.perf_counter()
    end([pid for pid, _ in processes])
    ended_s = time.perf_counter() - began
    for fd in (go, let_go, *(made for _, made in processes)):
        os.close(fd)
    return made_s * 1e3, ended_s * 1e3


def end(pids: Sequence[int]) -> None:
    """Ends processes and waits until they are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and saves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_contexts", description=main.__doc__)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # this process must not touch CUDA: it forks
    go, let_go = os.pipe()
    holders = [start(gpu, None, go) for gpu in range(args.world_size)]
    os.write(let_go, b"x" * args.world_size)
    rows: list[dict[str, Any]] = []
    try:
        for _, made in holders:
            os.read(made, 1)
        for processes in sorted({1, args.world_size}):
            for queues in QUEUES:
                rounds = [make_and_end(processes, queues) for _ in range(ROUNDS)]
                made_ms, ended_ms = (round(statistics.median(times), 1) for times in zip(*rounds, strict=True))
                rows.append({"processes": processes, "queues": queues, "made_ms": made_ms, "ended_ms": ended_ms})
    finally:
        end([pid for pid, _ in holders])
    save("gpu_contexts", {"gpus": list(gpus.names()), "rounds": ROUNDS, "rows": rows}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
