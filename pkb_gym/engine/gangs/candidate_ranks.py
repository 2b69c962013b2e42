"""The interface to the ranks of a candidate, whether they are processes of a gang or emulated in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.gangs.candidate_gang import BlockSetting, Job
from pkb_gym.engine.gangs.handover_ends import HandoverEnds
from pkb_gym.engine.gangs.heaps import SymmetricHeap
from pkb_gym.engine.gangs.rank_processes import Processors
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.wire.orders import Claims, Dialect


class CandidateRanks(Protocol):
    """Ranks that run one candidate; `CandidateGang` describes the methods.

    Attributes:
        timeout_s: Deadline of the next order.
    """

    timeout_s: float

    @property
    def pidfds(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def output(self) -> str: ...  # noqa: D102
    def output_of(self, rank: int) -> str: ...  # noqa: D102
    def map_heap(self, dialect: Dialect, heap: SymmetricHeap, handovers: HandoverEnds) -> None: ...  # noqa: D102
    def load(self, job: Job, artifact: Artifact, source: str) -> None: ...  # noqa: D102
    def bind(self, plan: BlockPlan) -> None: ...  # noqa: D102
    def run(  # noqa: D102
        self, sets: Sequence[int], stage: Callable[[], Processors | None], setting: BlockSetting
    ) -> tuple[int, list[Sequence[Claims]]]: ...
    def run_on(self, seconds: float) -> None: ...  # noqa: D102
    def thaw(self) -> None: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def processor_ticks(self) -> int: ...  # noqa: D102
    def loopback_bytes(self) -> int: ...  # noqa: D102
    def frozen_segments(self) -> int: ...  # noqa: D102
