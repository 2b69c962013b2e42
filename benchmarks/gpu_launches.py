"""The hosts' time to launch work, in plain PyTorch processes: nothing of pkb-gym runs in them.

Baselines at size "published" are bound by launches, so that their times follow those of the host, which differ from
machine to machine, and on shared machines from minute to minute. The same four pieces of work are timed several times
over in fresh processes, one for each GPU, started as `torch.multiprocessing` starts them.

python -m benchmarks.gpu_launches [--world-size 4] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.common import RESULTS, header
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.support.atomic_write import write_atomically

STARTS, ROUNDS, BLOCKS, CALLS = 3, 4, 11, 50
DEADLINE_S = 120.0


def works(device: torch.device) -> dict[str, Callable[[], object]]:
    """Work of the kinds that baselines are made of."""
    x = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    matrix = torch.randn(64, 64, device=device, dtype=torch.bfloat16)
    vector = torch.ones(1024, device=device)

    def additions() -> None:
        for _ in range(10):
            _ = vector + 1

    def products() -> None:
        for _ in range(10):
            _ = matrix @ matrix

    def all_reduce() -> None:
        dist.all_reduce(x.clone())

    def all_to_all() -> None:
        dist.all_to_all_single(torch.empty_like(x), x)

    return {
        "10 additions of 1024 numbers": additions,
        "10 products of 64 x 64": products,
        "clone and all_reduce of 2 MiB": all_reduce,
        "all_to_all_single of 2 MiB": all_to_all,
    }


def rank_main(rank: int, world_size: int, meet: str, answers: Any) -> None:  # noqa: ANN401  # a queue
    """One process: rank 0 answers with microseconds of each block, work by work, round by round."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{meet}", rank=rank, world_size=world_size, device_id=device)
    meeting = torch.zeros(1, device=device)
    found: dict[str, list[dict[str, list[float]]]] = {}
    for _ in range(ROUNDS):
        for name, work in works(device).items():
            for _ in range(10):
                work()
            launched, done = [], []
            for _ in range(BLOCKS):
                dist.all_reduce(meeting)
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(CALLS):
                    work()
                launched.append((time.perf_counter() - began) / CALLS * 1e6)
                torch.cuda.synchronize()
                done.append((time.perf_counter() - began) / CALLS * 1e6)
            found.setdefault(name, []).append({"launched_us": launched, "done_us": done})
    if rank == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def measure(world_size: int) -> dict[str, list[dict[str, list[float]]]]:
    """The figures of one start of fresh processes."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world_size, f"{folder}/meet", answers)
        ranks = [context.Process(target=rank_main, args=(rank, *arguments)) for rank in range(world_size)]
        for process in ranks:
            process.start()
        try:
            found: dict[str, list[dict[str, list[float]]]] = answers.get(timeout=DEADLINE_S)
            for process in ranks:
                process.join(10)
        finally:
            for process in ranks:
                process.kill()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and saves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_launches", description=main.__doc__)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    starts = [measure(args.world_size) for _ in range(STARTS)]
    rows = []
    for name in starts[0]:
        for which in ("launched_us", "done_us"):
            medians = [statistics.median(found[which]) for start in starts for found in start[name]]
            rows.append(
                {
                    "work": name,
                    "clock": which,
                    "least": round(min(medians), 1),
                    "median": round(statistics.median(medians), 1),
                    "most": round(max(medians), 1),
                    "medians_of_rounds": [round(value, 1) for value in medians],
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = header() | {"gpus": list(gpus.names()), "world_size": args.world_size, "starts": STARTS, "rows": rows}
    write_atomically(args.out / "gpu_launches.json", json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
