"""Arrival of the arguments of a candidate's block, and delays of its ranks; `docs/native-abi.md` has the contract.

Three kinds of blocks: everything in place before it begins (profiled, warming up), some lines handed over call by call
(timed), whole arguments handed over call by call (checked).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pkb_gym.engine.gangs.candidate_gang import BlockSetting
from pkb_gym.engine.problem.inputs import CALLS_OF_ROOT
from pkb_gym.engine.records.config import Device, ResolvedConfig
from pkb_gym.engine.reference.interruptions import MAX_INTERRUPTED_S
from pkb_gym.engine.reference.orders import CheckedCall, ConductCalls, ServeHandovers, StageInputs, StageOrder
from pkb_gym.engine.reference.preemption import MAX_PREEMPTION_S
from pkb_gym.engine.wire.orders import Dialect

MIN_DELAY_S: dict[tuple[Device, Dialect], float] = {
    ("cpu", "native"): 20e-3,
    ("cpu", "python"): 5e-3,
    ("cuda", "native"): 8e-3,
    ("cuda", "python"): 1e-3,
}
"""Longest delay of a rank, unless its calls take long. The delay ends as soon as the others go no further; CPU kernels
report that, so that the limit can leave a busy machine time to run them. On GPUs others come two calls ahead in that
time, if no other process uses them (`ANSWERS_OF_DELAY`)."""

MIN_HOLD_S: dict[Device, float] = {"cpu": 1e-3, "cuda": 4e-3}
"""Time that a held rank stands still after each wait, and on GPUs after it has signalled that its call has begun:
longer than another rank takes to reach its next call."""

MIN_CONGESTION_S = 2e-3
"""Time for which a congested rank's kernels run slowly at most, unless its calls take long."""

MIN_RUN_S, RUN_SHARE = 60e-6, 0.125
"""Longest time that an interrupted rank runs at a time, in seconds and as a share of a call of the baseline: the stops
of a call are spread over all of it."""

MAX_DELAY_S = 0.05
CALLS_OF_DELAY = 2.0
"""A delay lasts at least as many calls of the baseline: kernels that take long may look at their peers' memory late."""

ANSWERS_OF_DELAY, ANSWERS_OF_HOLD = 10, 4
"""By so many answers of the GPU a delay and a hold are longer: where other processes' kernels take turns on it, each of
a rank's kernels and copies waits for its turn, of which two calls have about ten, and the way to the next call four."""

MAX_ANSWERS_S = 0.1
"""The longest that a delay becomes by that."""


@dataclass(frozen=True)
class BlockStaging:
    """The staging of a block.

    Attributes:
        orders: Staging order for each rank of the reference gang.
        setting: Setting of the block in the candidate's gang.
    """

    orders: tuple[StageOrder, ...]
    setting: BlockSetting


@dataclass(frozen=True)
class Pace:
    """The present speed of the machine.

    Attributes:
        call_us: Time of one call in microseconds, of the baseline, or of a candidate that is known to be slower.
        answer_us: Response time of the slowest GPU to a small kernel, in microseconds, once it is idle or the wait for
            that has timed out (`CudaConditioner.answer_us`); 0 on the CPU.
    """

    call_us: float
    answer_us: float = 0.0


@dataclass(frozen=True)
class CallConditions:
    """The conditions of the ranks in one checked call.

    Attributes:
        together: Whether no rank begins before all arguments are there, and none departs before all have finished.
        late_rank: Rank whose arguments arrive late; None for no rank.
        held_ranks: Ranks that stand still after each wait and barrier of `pkb/symm.h`.
        holds: Length of a hold, as a multiple of the usual length.
        congested_rank: Rank whose memory is slow to answer, on GPUs of its own; None for no rank.
        interrupted_rank: Rank that runs for microseconds at a time, and is stopped in between; None for no rank.
        preempted_rank: Rank that stands still when its peers begin, on the CPU or a GPU of its own; None for no rank.
    """

    together: bool = False
    late_rank: int | None = None
    held_ranks: tuple[int, ...] = ()
    holds: int = 1
    congested_rank: int | None = None
    interrupted_rank: int | None = None
    preempted_rank: int | None = None


LONG_HOLD = 4
"""Times the usual hold: so long that a rank that is held in the next call still reaches its writes there."""

TOGETHER = CallConditions(together=True)


def check_conditions(world_size: int, calls: int, dialect: Dialect) -> tuple[CallConditions, ...]:
    """The conditions of the checked calls: all ranks together once, then four calls for each rank as the root.

    In two of them one rank each is late, the root and its neighbour, and others go as far ahead as they can: one that
    waits for nobody comes two calls ahead of the second. In the third call the same rank is held for long, and others
    come a call ahead of it. In the fourth the first is held, while others depart. So every rank is late twice and held
    twice, once as the root; whether the root or its neighbour is the second changes from root to root. On GPUs a rank
    is congested where it is held: kernels that do not wait by `pkb/symm.h` are slow there all the same.

    Args:
        world_size: Number of ranks.
        calls: Number of calls, at least `checked_calls`.
        dialect: Dialect of the candidate; only native kernels can be held.
    """
    conditions = [TOGETHER]
    for root in range(world_size if world_size > 1 else 0):
        neighbour = (root + 1) % world_size
        first, second = (neighbour, root) if root % 2 else (root, neighbour)
        conditions += [CallConditions(late_rank=rank) for rank in (first, second)]
        for rank, holds in ((second, LONG_HOLD), (first, 1)):
            held_ranks = (rank,) if dialect == "native" else ()
            conditions.append(CallConditions(held_ranks=held_ranks, holds=holds, congested_rank=rank))
        conditions += [CallConditions()] * (CALLS_OF_ROOT * (root + 1) + 1 - len(conditions))
    conditions += [CallConditions()] * (calls - len(conditions))
    return tuple(conditions[:calls])


@dataclass(frozen=True)
class Withheld:
    """Tensors of one rank.

    Attributes:
        rank: Rank that owns the tensors.
        names: Names of the withheld tensors.
        withdrawn: Whether the tensors are poisoned after the call, instead of before.
    """

    rank: int
    names: tuple[str, ...]
    withdrawn: bool


def plain(world_size: int) -> BlockStaging:
    """Everything in place before the block begins."""
    return BlockStaging((StageInputs(),) * world_size, BlockSetting())


def served(device: Device, orders: Sequence[ServeHandovers], pad_ns: int, stopped_rank: int | None) -> BlockStaging:
    """Some lines handed over call by call.

    Args:
        device: Device that the ranks run on.
        orders: Staging order for each rank of the reference gang.
        pad_ns: Padding of each handover, in nanoseconds, as in `EnqueuedHandover`.
        stopped_rank: Rank that is stopped during the block, as in `BlockSetting`; None for no rank.
    """
    setting = BlockSetting("enqueued" if device == "cuda" else "waiting", pad_ns, stopped_rank=stopped_rank)
    return BlockStaging(tuple(orders), setting)


WAITS_ALLOWED = 20
"""Number of waits in a call for which its deadline allows that a rank is held."""


def longest_delays_s(config: ResolvedConfig, conditions: Sequence[CallConditions], pace: Pace) -> float:
    """The time that the conditions of checked calls may add to them together, roughly.

    No more than that: a kernel that deadlocks is waited for all that time.
    """
    delay_s, hold_s = _delays_s(config, pace)
    holds = sum(min(one.holds * len(one.held_ranks), LONG_HOLD) for one in conditions)
    late = sum(one.late_rank is not None for one in conditions)
    interrupted = sum(one.interrupted_rank is not None for one in conditions)
    preempted = sum(one.preempted_rank is not None for one in conditions)
    preempted_s = preempted * (MAX_PREEMPTION_S + _slow_s(MIN_PREEMPTED_S[config.device], pace))
    return delay_s * late + WAITS_ALLOWED * hold_s * holds + MAX_INTERRUPTED_S * interrupted + preempted_s


def _delays_s(config: ResolvedConfig, pace: Pace) -> tuple[float, float]:
    """The longest delay of a rank, and the longest hold of one."""
    calls_s = min(CALLS_OF_DELAY * pace.call_us * 1e-6, MAX_DELAY_S)
    delay_s, hold_s = (
        max(MIN_DELAY_S[config.device, config.dialect], calls_s),
        max(MIN_HOLD_S[config.device], calls_s),
    )
    answer_s = min(pace.answer_us * 1e-6, MAX_ANSWERS_S / ANSWERS_OF_DELAY)
    return delay_s + ANSWERS_OF_DELAY * answer_s, hold_s + ANSWERS_OF_HOLD * answer_s


def _slow_s(least_s: float, pace: Pace) -> float:
    """The time for which a rank is slow inside of a call, which is longer where calls take long."""
    return max(least_s, min(CALLS_OF_DELAY * pace.call_us * 1e-6, MAX_DELAY_S))


def conducted(
    config: ResolvedConfig,
    conditions: Sequence[CallConditions],
    pace: Pace,
    withheld: Sequence[Withheld] = (),
) -> BlockStaging:
    """Whole arguments handed over call by call.

    Args:
        config: Configuration of the evaluation.
        conditions: Conditions of each call.
        pace: Pace of the machine.
        withheld: Tensors of each call that are not there the whole time; empty where all of them are, on every rank.
    """
    world_size = config.world_size
    delay_s, hold_s = _delays_s(config, pace)
    run_s = max(MIN_RUN_S, RUN_SHARE * pace.call_us * 1e-6)
    orders = []
    for rank in range(world_size):
        of_rank = [
            CheckedCall(
                one.together,
                one.late_rank,
                delay_s,
                rank in one.held_ranks,
                run_s if rank == one.interrupted_rank else 0.0,
                one.preempted_rank,
                _slow_s(MIN_PREEMPTED_S[config.device], pace),
            )
            for one in conditions
        ]
        if withheld:
            of_rank = [_withheld_alone(call, alone, rank) for call, alone in zip(of_rank, withheld, strict=True)]
        orders.append(ConductCalls(tuple(of_rank)))
    holds_ns = tuple(
        tuple(int(one.holds * hold_s * 1e9) if rank in one.held_ranks else 0 for one in conditions)
        for rank in range(world_size)
    )
    staging = BlockStaging(tuple(orders), BlockSetting("waiting", holds_ns=holds_ns))
    return with_congestion(staging, config, conditions, pace)


INTERRUPTED_RUN = 4
"""Number of calls in a row that one rank is interrupted in: its peers are in the next one meanwhile, at full speed."""


def interrupted_calls(world_size: int, calls: int) -> tuple[CallConditions, ...]:
    """The conditions of so many calls, in each of which one rank is interrupted: all ranks are in turn."""
    return tuple(CallConditions(interrupted_rank=call // INTERRUPTED_RUN % world_size) for call in range(calls))


MIN_PREEMPTED_S: dict[Device, float] = {"cpu": 4e-3, "cuda": 2e-3}
"""Time for which a preempted rank stands still at most, unless its calls take long: on GPUs a slice of their time."""


def preempted_calls(world_size: int, calls: int) -> tuple[CallConditions, ...]:
    """The conditions of so many calls, in every second of which one rank is preempted: all ranks are in turn.

    Its peers begin the call in between at once, while it may still stand still in the one before.
    """
    return tuple(CallConditions(preempted_rank=None if call % 2 else call // 2 % world_size) for call in range(calls))


def can_be_preempted(config: ResolvedConfig) -> bool:
    """Whether a rank can stand still in a call while its peers do not."""
    return config.world_size > 1 and (config.device == "cpu" or has_gpu_each(config))


def has_gpu_each(config: ResolvedConfig) -> bool:
    """Whether one rank's GPU can be slow alone. Ranks that share one take turns on it, and are slow by that."""
    return config.device == "cuda" and config.world_size > 1 and config.ranks_per_gpu == 1


CONGESTED_RUN = 4
"""Number of calls in a row that one rank is congested in."""


def congested_calls(world_size: int, calls: int) -> tuple[CallConditions, ...]:
    """The conditions of so many calls of a congested block: all ranks are congested in turn."""
    return tuple(CallConditions(congested_rank=call // CONGESTED_RUN % world_size) for call in range(calls))


def with_congestion(
    staging: BlockStaging, config: ResolvedConfig, conditions: Sequence[CallConditions], pace: Pace
) -> BlockStaging:
    """The same staging, with one rank congested in some calls.

    Where some lines are handed over call by call, its peers depart within microseconds, as these handovers are
    enqueued: sooner than in conducted calls.

    Args:
        staging: Staging of the block.
        config: Configuration of the evaluation.
        conditions: Conditions of each call, of which the congested rank counts.
        pace: Pace of the machine.
    """
    return replace(staging, setting=replace(staging.setting, congestions_ns=_congestions_ns(config, conditions, pace)))


def _congestions_ns(
    config: ResolvedConfig, conditions: Sequence[CallConditions], pace: Pace
) -> tuple[tuple[int, ...], ...]:
    """The congestions of each rank's calls; none where ranks have no GPU of their own."""
    if not has_gpu_each(config):
        return ()
    longest_ns = int(1e9 * _slow_s(MIN_CONGESTION_S, pace))
    return tuple(
        tuple(longest_ns if one.congested_rank == rank else 0 for one in conditions)
        for rank in range(config.world_size)
    )


def _withheld_alone(call: CheckedCall, alone: Withheld, rank: int) -> CheckedCall:
    names = alone.names if alone.rank == rank else ()
    if alone.withdrawn:
        return replace(call, withheld=(), withdrawn=names)
    return replace(call, withheld=names, withdrawn=())
