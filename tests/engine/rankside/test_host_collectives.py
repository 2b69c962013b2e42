"""Collectives through main memory give what gloo gives on the tensors themselves, and results come with `wait`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pkb_gym.engine.rankside import devices, host_collectives
from pkb_gym.engine.rankside.devices import CudaDevice
from tests.problems.lasting_ranks import LastingRanks

WORLD_SIZE = 4
DEADLINE_S = 60.0
Group = Any


def mine(rank: int, rows: int = WORLD_SIZE) -> torch.Tensor:
    """Rows of three numbers that differ from rank to rank."""
    return torch.arange(rows * 3.0).view(rows, 3) + 100 * rank


def all_reduce(group: Group, rank: int) -> list[torch.Tensor]:
    """Of a part of a larger tensor, whose rest stays as it is."""
    wide = torch.zeros(WORLD_SIZE, 3, dtype=torch.bfloat16)
    wide[1:3] = mine(rank)[1:3].bfloat16()
    part = wide[1:3]
    dist.all_reduce(part, op=dist.ReduceOp.MAX, group=group)
    return [wide]


def broadcast(group: Group, rank: int) -> list[torch.Tensor]:
    tensor = mine(rank)
    dist.broadcast(tensor, src=2, group=group)
    return [tensor]


def reduce(group: Group, rank: int) -> list[torch.Tensor]:
    tensor = mine(rank)
    dist.reduce(tensor, dst=1, group=group)
    return [tensor] if rank == 1 else []


def gather_and_scatter(group: Group, rank: int) -> list[torch.Tensor]:
    parts = [torch.empty(WORLD_SIZE, 3) for _ in range(WORLD_SIZE)] if rank == 3 else None
    dist.gather(mine(rank), parts, dst=3, group=group)
    out = torch.empty(WORLD_SIZE, 3)
    dist.scatter(out, [part + 1 for part in parts] if parts else None, src=3, group=group)
    return [*(parts or ()), out]


def all_gather(group: Group, rank: int) -> list[torch.Tensor]:
    parts = [torch.empty(WORLD_SIZE, 3) for _ in range(WORLD_SIZE)]
    dist.all_gather(parts, mine(rank), group=group)
    whole = torch.empty(WORLD_SIZE * WORLD_SIZE, 3)
    dist.all_gather_into_tensor(whole, mine(rank), group=group)
    return [*parts, whole]


def reduce_scatter(group: Group, rank: int) -> list[torch.Tensor]:
    out, single = torch.empty(3), torch.empty(1, 3)
    dist.reduce_scatter(out, list(mine(rank)), group=group)
    dist.reduce_scatter_tensor(single, mine(rank), group=group)
    return [out, single]


def all_to_all(group: Group, rank: int) -> list[torch.Tensor]:
    """With unequal splits, not waited for at once."""
    splits_in = [(rank + peer) % 3 for peer in range(WORLD_SIZE)]
    out = torch.full((sum(splits_in), 3), -1.0)
    work = dist.all_to_all_single(out, mine(rank, sum(splits_in)), splits_in, splits_in, group=group, async_op=True)
    work.wait()
    parts = [torch.empty(3) for _ in range(WORLD_SIZE)]
    dist.all_to_all(parts, list(mine(rank)), group=group)
    return [out, *parts]


def ring(group: Group, rank: int) -> list[torch.Tensor]:
    received, late = torch.empty(WORLD_SIZE, 3), torch.empty(WORLD_SIZE, 3)
    ahead, behind = (rank + 1) % WORLD_SIZE, (rank - 1) % WORLD_SIZE
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine(rank), ahead, group), dist.P2POp(dist.irecv, received, behind, group)]
    )
    for work in works:
        work.wait()
    if rank % 2:
        dist.send(mine(rank), dst=behind, group=group)
    else:
        dist.recv(late, src=ahead, group=group)
    return [received] if rank % 2 else [received, late]


def objects(group: Group, rank: int) -> list[torch.Tensor]:
    found: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(found, {"rank": rank}, group=group)
    dist.barrier(group=group)
    return [torch.tensor([one["rank"] for one in found])]


OPERATIONS: dict[str, Callable[[Group, int], list[torch.Tensor]]] = {
    each.__name__: each
    for each in (all_reduce, broadcast, reduce, gather_and_scatter, all_gather, reduce_scatter, all_to_all, ring)
} | {"objects": objects}


def join(store: str, rank: int) -> None:
    """With the process group that ranks on one GPU make."""
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # torch 2.13 renames some collectives
    device = CudaDevice(rank, WORLD_SIZE, 1, ranks_per_gpu=WORLD_SIZE)
    device.join(f"file://{store}")


def work(rank: int, name: str) -> tuple[str, list[torch.Tensor], list[torch.Tensor]]:
    """The group's name, what the operation gave in it, and what it gave on gloo."""
    gloo = dist.new_group(backend="gloo")
    return dist.get_backend(), OPERATIONS[name](None, rank), OPERATIONS[name](gloo, rank)


@pytest.fixture(scope="module")
def ranks(lasting: Any) -> Iterator[LastingRanks]:
    with tempfile.TemporaryDirectory() as folder:
        ranks = LastingRanks(WORLD_SIZE, partial(join, f"{folder}/store"), work)
        for pid in ranks.pids:
            lasting.keep_process(pid)
        yield ranks
        ranks.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_as_on_gloo(ranks: LastingRanks, name: str) -> None:
    for backend, got, expected in ranks.ask([name] * WORLD_SIZE, DEADLINE_S):
        assert backend == host_collectives.BACKEND
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one, other)


class HalfDone:
    """An operation of gloo that is not done until somebody waits."""

    def __init__(self, copy: torch.Tensor) -> None:
        self.copy, self.done = copy, False

    def wait(self) -> bool:
        self.copy.fill_(7)
        self.done = True
        return True

    def is_completed(self) -> bool:
        return self.done


def test_results_are_there_after_wait_and_copied_once() -> None:
    tensor, copy = torch.zeros(2), torch.zeros(2)
    half_done = HalfDone(copy)
    work = host_collectives.HostWork(half_done, [(tensor, copy)])
    assert not work.is_completed() and tensor.sum() == 0
    assert work.wait() and work.is_completed() and tensor.tolist() == [7, 7]
    tensor.zero_()
    assert work.wait() and tensor.sum() == 0, "what the caller wrote since stays"


def test_a_rank_with_a_gpu_of_its_own_joins_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = []
    monkeypatch.setattr(devices, "_init_process_group", lambda backend, *_, **__: backends.append(backend))
    monkeypatch.setattr(dist, "all_reduce", lambda _: None)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    CudaDevice(1, 2, 1).join()
    assert backends == ["nccl"]
