"""The evaluator's handle on one candidate's gang; see `rankside/candidate.py` for its other end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self

from pkb_gym.engine.compile.artifact import Artifact
from pkb_gym.engine.layout import BlockPlan, rank_spec
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.ranks.gang import Confinement, Gang
from pkb_gym.engine.ranks.shared_heap import SharedHeap
from pkb_gym.engine.ranks.zygote import Zygote
from pkb_gym.engine.rankside.wire import Json
from pkb_gym.engine.signature import cpp_signature


class CandidateGang:
    """A gang that runs one candidate. It starts thawed; between blocks it is kept frozen.

    Args:
        zygote: the sandboxed one.
        problem: what the candidate solves.
        heap: the candidate's heap.
        scratch_bytes: symmetric scratch of each rank.
        memory_bytes: what each rank may allocate.
        threads: processor threads per rank.
        processors: of the machine.
        timeout_s: deadline of every step.
    """

    def __init__(
        self,
        zygote: Zygote,
        problem: Problem,
        heap: SharedHeap,
        *,
        scratch_bytes: int,
        memory_bytes: int,
        threads: int,
        processors: int,
        timeout_s: float,
    ) -> None:
        self._problem, self._heap = problem, heap
        self._scratch_bytes, self._threads, self._processors = scratch_bytes, threads, processors
        self.timeout_s = timeout_s
        self._native = True
        self._epoch = 1
        heap_bytes = heap.segment_bytes * heap.world_size
        self._gang = Gang(zygote, ".candidate", heap.world_size, Confinement(memory_bytes + heap_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gang.close()

    @property
    def output(self) -> str:
        """The tail of what the ranks wrote."""
        return self._gang.output

    def load(self, artifact: Artifact, source: str) -> None:
        """Loads the candidate on every rank.

        Raises:
            GangFailed: it could not be loaded.
        """
        self._native = artifact.binary is not None
        fds = [_memory_file("candidate", artifact.binary if artifact.binary is not None else source.encode())]
        extensions: dict[str, Json] = {}
        for name, library in artifact.extensions.items():
            fds.append(_memory_file(name, library))
            extensions[name] = len(fds)  # the heap comes first
        order: dict[str, Json] = {
            "load": True,
            "dialect": "native" if self._native else "python",
            "segment_bytes": self._heap.segment_bytes,
            "scratch_bytes": self._scratch_bytes,
            "threads": self._threads,
            "processors": self._processors,
            "returns": self._problem.returns,
            "signature": cpp_signature(self._problem),
            "extensions": extensions,
        }
        try:
            self._gang.ask(
                [order] * self._heap.world_size,
                "loaded",
                timeout_s=self.timeout_s,
                fds=(self._heap.fd, *fds),
                where=self._heap.place,
            )
        finally:
            for fd in fds:
                os.close(fd)

    def bind(self, plan: BlockPlan) -> None:
        """Makes the arguments of a block.

        Raises:
            GangFailed: a rank fell.
        """
        dialect = "native" if self._native else "python"
        partitions: Json = [[list(ranks) for ranks in partition] for partition in plan.partitions]
        orders: list[dict[str, Json]] = [
            {
                "bind": [rank_spec(self._problem, plan, planned, rank, dialect) for planned in plan.sets],  # type: ignore[arg-type]
                "partitions": partitions,
            }
            for rank in range(self._heap.world_size)
        ]
        self._gang.ask(orders, "bound", timeout_s=self.timeout_s, where=self._heap.place)

    def run(
        self, sets: Sequence[int], stage: Callable[[], None], *, profile: bool = False
    ) -> tuple[int, list[dict[str, Any]]]:
        """Calls the candidate once on each of these sets, then freezes the gang.

        Args:
            sets: indices into the bound block.
            stage: puts the inputs into the heap; called while every rank stands frozen before the gate, so that no
                thread of a candidate sees them before the clock runs.
            profile: whether ranks say where their time went.

        Returns:
            Nanoseconds by the evaluator's clock, and what each rank said of its block.

        Raises:
            GangFailed: a rank fell, or the deadline passed.
        """
        order: dict[str, Json] = {"run": list(sets), "epoch": self._epoch, "profile": profile}
        self._epoch += len(sets)
        nanoseconds, replies = self._gang.run_block(
            [order] * self._heap.world_size, timeout_s=self.timeout_s, stage=stage, where=self._heap.place
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


def claims(done: Sequence[Any], calls: int) -> list[list[list[dict[str, Any]]]]:
    """Per rank and call, the shapes that the candidate claims; nonsense becomes no claim, which is then found wrong."""
    return [_rank_claims(said, calls) for said in done]


def _rank_claims(said: object, calls: int) -> list[list[dict[str, Any]]]:
    returned = said.get("returned") if isinstance(said, dict) else None
    if not isinstance(returned, list) or len(returned) != calls:
        return [[] for _ in range(calls)]
    return [[_claim(leaf) for leaf in call] if isinstance(call, list) else [] for call in returned]


def _claim(leaf: object) -> dict[str, Any]:
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
