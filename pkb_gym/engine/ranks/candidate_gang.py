"""The evaluator's handle on one candidate's gang; see `rankside/candidate.py` for its other end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pkb_gym.engine.compare.layout import BlockPlan, rank_runs
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.ranks.failure_attribution import GangFailed
from pkb_gym.engine.ranks.gang import Confinement, Gang, Processors
from pkb_gym.engine.ranks.heaps import SymmetricHeap
from pkb_gym.engine.ranks.zygote import Zygote
from pkb_gym.engine.rankside.results import Claim
from pkb_gym.engine.rankside.wire import Json
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import Device

PREPARE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Job:
    """What a gang is given to work on.

    Attributes:
        problem: what the candidate solves.
        heap: the candidate's heap.
        scratch_bytes: symmetric scratch of each rank.
        memory_bytes: main memory that each rank may allocate.
    """

    problem: Problem
    heap: SymmetricHeap
    scratch_bytes: int
    memory_bytes: int


class CandidateGang:
    """A gang that runs one candidate. It starts thawed; between blocks it is kept frozen.

    Args:
        zygote: the sandboxed one.
        device: what its ranks run on.
        world_size: number of ranks.
        allow_processes: whether ranks may start programs.
    """

    def __init__(self, zygote: Zygote, device: Device, world_size: int, *, allow_processes: bool = False) -> None:
        self.timeout_s = PREPARE_TIMEOUT_S
        self._device: Device = device
        self._native = True
        self._epoch = 1
        self._job: Job | None = None
        self._gang = Gang(zygote, ".candidate", world_size, Confinement(None, allow_processes=allow_processes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are running."""
        return self._gang.is_whole

    def close(self) -> None:
        """Ends it; calling it again changes nothing."""
        self._gang.close()

    @property
    def output(self) -> str:
        """The tail of what the ranks wrote."""
        return self._gang.output

    def prepare(self, *, join: bool, one_queue: bool = False) -> None:
        """Gets its ranks ready before a candidate is known.

        Args:
            join: whether to make a process group too.
            one_queue: whether a single hardware queue will do, see `rankside.devices.CudaDevice`.

        Raises:
            InfrastructureError: they could not be prepared.
        """
        order: dict[str, Json] = {
            "prepare": True,
            "alone": not join,
            "one_queue": one_queue,
            **self._place_of_ranks(),
        }
        try:
            self._ask(order, "prepared")
        except GangFailed as failed:
            raise InfrastructureError(f"a gang could not be prepared: {failed}\n{self.output}") from None

    def touch(self, stage: Callable[[], Processors | None]) -> int:
        """A block with as little in it as there is, while no candidate is loaded.

        Args:
            stage: as `run` takes it.

        Returns:
            Nanoseconds by the evaluator's clock.

        Raises:
            InfrastructureError: a rank fell, which no candidate can be blamed for.
        """
        orders: list[dict[str, Json]] = [{"touch": True}] * self._gang.world_size
        try:
            nanoseconds, _ = self._gang.run_block(orders, timeout_s=self.timeout_s, stage=stage)
        except GangFailed as failed:
            raise InfrastructureError(f"a gang failed before its candidate was loaded: {failed}") from None
        return nanoseconds

    def load(self, job: Job, artifact: Artifact, source: str) -> None:
        """Loads the candidate on every rank.

        Raises:
            GangFailed: it could not be loaded.
        """
        self._job = job
        self._native = artifact.binary is not None
        fds = [_memory_file("candidate", artifact.binary if artifact.binary is not None else source.encode())]
        extensions: dict[str, Json] = {}
        for name, library in artifact.extensions.items():
            extensions[name] = len(fds)
            fds.append(_memory_file(name, library))
        order: dict[str, Json] = {
            "load": True,
            "alone": self._native,
            **self._place_of_ranks(),
            "dialect": "native" if self._native else "python",
            "heap_fds": len(job.heap.fds),
            "segment_bytes": job.heap.segment_bytes,
            "scratch_bytes": job.scratch_bytes,
            "memory_bytes": job.memory_bytes,
            "returns": job.problem.returns,
            "signature": cpp_signature(job.problem),
            "extensions": extensions,
        }
        try:
            self._ask(order, "loaded", fds=(*job.heap.fds, *fds))
        finally:
            for fd in fds:
                os.close(fd)

    def _place_of_ranks(self) -> dict[str, Json]:
        return {
            "device": self._device,
            "threads": host.threads_per_rank(self._gang.world_size),
            "processors": host.processors(),
        }

    def _ask(self, order: dict[str, Json], expect: str, fds: Sequence[int] = ()) -> None:
        orders = [order] * self._gang.world_size
        self._gang.ask(orders, expect, timeout_s=self.timeout_s, fds=fds, where=self._where)

    @property
    def _where(self) -> Callable[[int], str] | None:
        return None if self._job is None else self._job.heap.place

    def bind(self, plan: BlockPlan) -> None:
        """Makes the arguments of a block.

        Raises:
            GangFailed: a rank fell.
        """
        assert self._job is not None
        problem, dialect = self._job.problem, "native" if self._native else "python"
        partitions: Json = [[list(ranks) for ranks in partition] for partition in plan.partitions]
        orders: list[dict[str, Json]] = [
            {"bind": rank_runs(problem, plan, rank, dialect), "partitions": partitions}  # type: ignore[arg-type]
            for rank in range(self._gang.world_size)
        ]
        self._gang.ask(orders, "bound", timeout_s=self.timeout_s, where=self._where)

    def run(
        self,
        sets: Sequence[int],
        stage: Callable[[], Processors | None],
        *,
        profile: Mapping[str, float | None] | None = None,
    ) -> tuple[int, list[dict[str, Any]]]:
        """Calls the candidate once on each of these sets, then freezes the gang.

        Args:
            sets: indices into the bound block.
            stage: puts the inputs into the heap; called while every rank stands frozen before the gate, so that no
                thread of a candidate sees them before the clock runs. Says where the ranks are to run then, if it
                matters.
            profile: what `Dialect.profile` takes besides, if ranks are to say where their time went.

        Returns:
            Nanoseconds by the evaluator's clock, and what each rank said of its block.

        Raises:
            GangFailed: a rank fell, or the deadline passed.
        """
        asked: Json = None if profile is None else dict(profile)
        order: dict[str, Json] = {"run": list(sets), "epoch": self._epoch, "profile": asked}
        self._epoch += len(sets)
        nanoseconds, replies = self._gang.run_block(
            [order] * self._gang.world_size, timeout_s=self.timeout_s, stage=stage, where=self._where
        )
        self._gang.freeze()
        return nanoseconds, [reply["done"] for reply in replies]

    def processor_ticks(self) -> int:
        """Processor time of all ranks so far, in clock ticks."""
        return self._gang.processor_ticks()

    def freeze(self) -> None:
        """Stops the ranks with all their threads."""
        self._gang.freeze()

    def thaw(self) -> None:
        """Lets the ranks go on."""
        self._gang.thaw()


def claims(done: Sequence[Any], calls: int) -> list[list[list[Claim]]]:
    """Per rank and call, the shapes that the candidate claims; nonsense becomes a claim that is then found wrong."""
    return [_rank_claims(said, calls) for said in done]


def _rank_claims(said: object, calls: int) -> list[list[Claim]]:
    returned = said.get("returned") if isinstance(said, dict) else None
    if not isinstance(returned, list) or len(returned) != calls:
        return [[] for _ in range(calls)]
    return [[_claim(leaf) for leaf in call] if isinstance(call, list) else [] for call in returned]


def _claim(leaf: object) -> Claim:
    if leaf is None:
        return None
    shape = leaf.get("shape") if isinstance(leaf, dict) else None
    sound = isinstance(shape, list) and all(isinstance(dim, int) and 0 <= dim < 1 << 40 for dim in shape)
    return {
        "shape": shape if sound else [],
        "dtype": ascii(leaf.get("dtype"))[:40].strip("'") if isinstance(leaf, dict) else "nothing",
    }


def _memory_file(name: str, content: bytes) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    return fd
