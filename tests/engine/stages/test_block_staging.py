"""How blocks of a candidate are staged: who is late, who is held, what is withheld."""

import pytest

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.ranks.reference_orders import CheckedCall, ConductCalls, ServeHandovers, StageInputs
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.stages.block_staging import (
    LEAST_DELAY_S,
    LEAST_HOLD_S,
    MOST_DELAY_S,
    TOGETHER,
    CallConditions,
    Withheld,
    check_conditions,
    conducted,
    longest_delay_s,
    plain,
    served,
)
from pkb_gym.problems.catalogue import find_problem

PROBLEM: Problem = find_problem("AllReduce")


def config(world_size: int = 4, language: str = "cpp", **given: object) -> ResolvedConfig:
    asked = EvalConfig(world_size=world_size, **given)
    return resolve(asked, PROBLEM, device="cpu", language=language, memory_total_bytes=1 << 30)


def calls_of(staging, rank: int) -> tuple[CheckedCall, ...]:
    order = staging.orders[rank]
    assert isinstance(order, ConductCalls)
    return order.calls


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("trials", [None, 1, 20])
def test_there_are_calls_enough_for_every_rank_to_be_late_twice(world_size, trials):
    resolved = config(world_size, trials=trials)
    conditions = check_conditions(world_size, resolved.trials, "native")
    assert len(conditions) == resolved.trials
    assert conditions[0] == TOGETHER
    late = [condition.late_rank for condition in conditions if condition.late_rank is not None]
    assert sorted(late) == (sorted([*range(world_size)] * 2) if world_size > 1 else [])


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_rank_is_held_twice_and_late_only_in_the_call_after(world_size):
    """Late in the next call, it lets all others go ahead of it into that call."""
    conditions = check_conditions(world_size, 2 * world_size + 2, "native")
    held = [condition.held_ranks for condition in conditions]
    assert sorted(rank for ranks in held for rank in ranks) == sorted([*range(world_size)] * 2)
    for condition, following in zip(conditions, conditions[1:], strict=False):
        for rank in condition.held_ranks:
            assert condition.late_rank != rank
            assert following.late_rank in (rank, None)
    assert conditions[-1] == CallConditions(), "nobody follows the last held rank"


def test_modules_are_late_and_never_held():
    conditions = check_conditions(4, 10, "python")
    assert [condition.late_rank for condition in conditions] == [None, 0, 1, 2, 3, 0, 1, 2, 3, None]
    assert not any(condition.held_ranks for condition in conditions)


def test_fewer_calls_than_asked_for_have_the_first_conditions():
    assert check_conditions(4, 2, "native") == check_conditions(4, 10, "native")[:2]


def test_a_conducted_block_tells_each_rank_who_is_late_and_holds_one():
    conditions = check_conditions(2, 4, "native")
    staging = conducted(config(2), conditions, baseline_us=10)
    assert staging.setting.handovers == "waiting"
    assert calls_of(staging, 0) == calls_of(staging, 1)
    assert [call.late_rank for call in calls_of(staging, 0)] == [None, 0, 1, 0]
    assert [call.together for call in calls_of(staging, 0)] == [True, False, False, False]
    hold_ns = int(LEAST_HOLD_S["cpu"] * 1e9)
    assert staging.setting.holds_ns == ((0, 0, hold_ns, 0), (0, hold_ns, 0, hold_ns))


@pytest.mark.parametrize(
    ("baseline_us", "delay_s"),
    [(1.0, LEAST_DELAY_S["cpu", "native"]), (15_000.0, 0.03), (1e9, MOST_DELAY_S)],
)
def test_delays_grow_with_the_call_up_to_a_limit(baseline_us, delay_s):
    """A kernel that takes long may look at its peers' memory late."""
    staging = conducted(config(2), check_conditions(2, 4, "native"), baseline_us)
    assert calls_of(staging, 0)[1].delay_s == pytest.approx(delay_s)
    assert longest_delay_s(config(2), baseline_us) >= delay_s


def test_one_tensor_of_one_rank_is_withheld_before_the_call_or_after_it():
    condition = CallConditions(late_rank=1)
    alone = [Withheld(1, ("x",), withdrawn=False), Withheld(0, ("y", "z"), withdrawn=True)]
    staging = conducted(config(2), [condition, condition], 10, alone)
    first, second = calls_of(staging, 0)
    assert (first.withheld, first.withdrawn) == ((), ())
    assert (second.withheld, second.withdrawn) == ((), ("y", "z"))
    first, second = calls_of(staging, 1)
    assert (first.withheld, first.withdrawn) == (("x",), ())
    assert (second.withheld, second.withdrawn) == ((), ())


def test_all_arguments_are_withheld_unless_some_are_named():
    call = calls_of(conducted(config(2), [TOGETHER], 10), 0)[0]
    assert call.withheld is None and call.withdrawn is None


def test_a_plain_block_has_no_handovers():
    staging = plain(3)
    assert staging.orders == (StageInputs(),) * 3 and staging.setting.handovers == "none"


def test_a_timed_block_is_served_on_the_stream_of_gpus_and_by_the_host_of_the_cpu():
    orders = [ServeHandovers((1, 2)), ServeHandovers((3, 4))]
    assert served("cuda", orders, 7, None).setting.handovers == "enqueued"
    staging = served("cpu", orders, 0, 1)
    assert staging.setting.handovers == "waiting" and staging.setting.stopped_rank == 1
    assert staging.orders == tuple(orders)
