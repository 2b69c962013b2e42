"""How blocks of a candidate are staged: who is late, who is held, what is withheld."""

import pytest

from pkb_gym.engine.problem import Draw, Problem
from pkb_gym.engine.problem.inputs import TrialKey, checked_calls
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.reference.orders import CheckedCall, ConductCalls, ServeHandovers, StageInputs
from pkb_gym.engine.stages.block_staging import (
    ANSWERS_OF_DELAY,
    ANSWERS_OF_HOLD,
    LONG_HOLD,
    MAX_ANSWERS_S,
    MAX_DELAY_S,
    MIN_DELAY_S,
    MIN_HOLD_S,
    TOGETHER,
    WAITS_ALLOWED,
    CallConditions,
    Pace,
    Withheld,
    check_conditions,
    conducted,
    longest_delays_s,
    plain,
    served,
)
from pkb_gym.problems.catalogue import find_problem

PROBLEM: Problem = find_problem("AllReduce")


def config(world_size: int = 4, language: str = "cpp", **given: object) -> ResolvedConfig:
    requested = EvalConfig(world_size=world_size, **given)
    return resolve(requested, PROBLEM, device="cpu", language=language, memory_total_bytes=1 << 30)


def on_gpus(world_size: int) -> ResolvedConfig:
    return resolve(
        EvalConfig(world_size=world_size), PROBLEM, device="cuda", language="cuda", memory_total_bytes=1 << 30
    )


def root_of(trial: int, world_size: int) -> int:
    return Draw(TrialKey(b"key", 0, "Toy", 0, trial)).root(world_size)


def calls_of(staging, rank: int) -> tuple[CheckedCall, ...]:
    order = staging.orders[rank]
    assert isinstance(order, ConductCalls)
    return order.calls


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
@pytest.mark.parametrize("trials", [None, 1, 40])
def test_every_rank_is_late_twice_and_once_of_it_as_the_root(world_size, trials):
    resolved = config(world_size, trials=trials)
    conditions = check_conditions(world_size, resolved.trials, "native")
    assert len(conditions) == resolved.trials >= checked_calls(world_size)
    assert conditions[0] == TOGETHER
    late = [condition.late_rank for condition in conditions if condition.late_rank is not None]
    assert sorted(late) == (sorted([*range(world_size)] * 2) if world_size > 1 else [])
    as_root = {one.late_rank for trial, one in enumerate(conditions) if one.late_rank == root_of(trial, world_size)}
    assert as_root >= set(range(world_size) if world_size > 1 else [])


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_rank_is_held_twice_and_once_of_it_as_the_root(world_size):
    conditions = check_conditions(world_size, checked_calls(world_size), "native")
    held = [(trial, rank) for trial, one in enumerate(conditions) for rank in one.held_ranks]
    assert sorted(rank for _, rank in held) == sorted([*range(world_size)] * 2)
    assert {rank for trial, rank in held if rank == root_of(trial, world_size)} == set(range(world_size))
    assert all(conditions[trial].late_rank != rank for trial, rank in held)


def calls_ahead(trial: int, world_size: int) -> int:
    """Calls after this one in which the root is the same and nobody is late."""
    conditions = check_conditions(world_size, checked_calls(world_size), "native")
    ahead = 0
    for later in range(trial + 1, len(conditions)):
        if root_of(later, world_size) != root_of(trial, world_size) or conditions[later].late_rank is not None:
            break
        ahead += 1
    return ahead


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_others_can_come_ahead_of_slow_ranks_under_one_root(world_size):
    """Two halves of scratch are used again by a peer that is two calls ahead, one by one that is a call ahead."""
    conditions = check_conditions(world_size, checked_calls(world_size), "native")
    behind_late, behind_held = set(), set()
    for trial, one in enumerate(conditions[1:], 1):
        is_root = root_of(trial, world_size) in (one.late_rank, *one.held_ranks)
        if one.late_rank is not None and calls_ahead(trial, world_size) >= 2:
            behind_late.add(is_root)
        if one.held_ranks and calls_ahead(trial, world_size) >= 1:
            behind_held.add(is_root)
    assert behind_late == behind_held == {True, False}, "ahead of a root, and a root ahead of others"


def test_modules_are_late_and_never_held():
    conditions = check_conditions(4, checked_calls(4), "python")
    late = [condition.late_rank for condition in conditions]
    assert late == [None, 0, 1, None, None, 2, 1, None, None, 2, 3, None, None, 0, 3, None, None]
    assert not any(condition.held_ranks for condition in conditions)


def test_fewer_calls_than_asked_for_have_the_first_conditions():
    assert check_conditions(4, 2, "native") == check_conditions(4, 17, "native")[:2]


def test_a_conducted_block_names_the_late_rank_to_each_and_holds_one():
    conditions = check_conditions(2, 5, "native")
    staging = conducted(config(2), conditions, Pace(10))
    assert staging.setting.handovers == "waiting"
    assert [[call.is_held for call in calls_of(staging, rank)] for rank in (0, 1)] == [
        [False, False, False, False, True],
        [False, False, False, True, False],
    ]
    assert [call.late_rank for call in calls_of(staging, 0)] == [None, 0, 1, None, None]
    assert [call.together for call in calls_of(staging, 0)] == [True, False, False, False, False]
    hold_ns = int(MIN_HOLD_S["cpu"] * 1e9)
    assert staging.setting.holds_ns == ((0, 0, 0, 0, hold_ns), (0, 0, 0, LONG_HOLD * hold_ns, 0))


@pytest.mark.parametrize(
    ("baseline_us", "delay_s"),
    [(1.0, MIN_DELAY_S["cpu", "native"]), (15_000.0, 0.03), (1e9, MAX_DELAY_S)],
)
def test_delays_grow_with_the_call_up_to_a_limit(baseline_us, delay_s):
    """A kernel that takes long may look at its peers' memory late."""
    staging = conducted(config(2), check_conditions(2, 4, "native"), Pace(baseline_us))
    assert calls_of(staging, 0)[1].delay_s == pytest.approx(delay_s)
    assert longest_delays_s(config(2), [CallConditions(late_rank=1)], Pace(baseline_us)) == pytest.approx(delay_s)


@pytest.mark.parametrize(
    ("answer_us", "answer_s"), [(20.0, 20e-6), (4000.0, 4e-3), (1e9, MAX_ANSWERS_S / ANSWERS_OF_DELAY)]
)
def test_a_busy_gpu_makes_delays_and_holds_longer(answer_us, answer_s):
    """Each kernel waits for its turn: a rank that waits for nobody was not two calls ahead after the usual delay."""
    delay_s = MIN_DELAY_S["cuda", "native"] + ANSWERS_OF_DELAY * answer_s
    hold_s = MIN_HOLD_S["cuda"] + ANSWERS_OF_HOLD * answer_s
    here, conditions, pace = on_gpus(2), check_conditions(2, 4, "native"), Pace(10, answer_us)
    staging = conducted(here, conditions, pace)
    assert calls_of(staging, 0)[1].delay_s == pytest.approx(delay_s)
    assert staging.setting.holds_ns[1][3] == pytest.approx(LONG_HOLD * hold_s * 1e9, rel=1e-6)
    allowed_s = 2 * delay_s + WAITS_ALLOWED * LONG_HOLD * hold_s
    assert longest_delays_s(here, conditions, pace) == pytest.approx(allowed_s)


def test_a_deadline_allows_for_the_conditions_of_its_calls_alone():
    """Each call was allowed the longest of all delays and holds, and a kernel that deadlocks took all that time."""
    hold_s, delay_s = MIN_HOLD_S["cpu"], MIN_DELAY_S["cpu", "native"]
    conditions = check_conditions(2, 9, "native")
    holds = 2 * (LONG_HOLD + 1)
    assert longest_delays_s(config(2), [TOGETHER, CallConditions()], Pace(10)) == 0
    assert longest_delays_s(config(2), conditions, Pace(10)) == pytest.approx(
        4 * delay_s + WAITS_ALLOWED * holds * hold_s
    )
    everybody = CallConditions(together=True, held_ranks=tuple(range(8)))
    assert longest_delays_s(config(8), [everybody], Pace(10)) == pytest.approx(WAITS_ALLOWED * LONG_HOLD * hold_s)


def test_one_tensor_of_one_rank_is_withheld_before_the_call_or_after_it():
    condition = CallConditions(late_rank=1)
    alone = [Withheld(1, ("x",), withdrawn=False), Withheld(0, ("y", "z"), withdrawn=True)]
    staging = conducted(config(2), [condition, condition], Pace(10), alone)
    first, second = calls_of(staging, 0)
    assert (first.withheld, first.withdrawn) == ((), ())
    assert (second.withheld, second.withdrawn) == ((), ("y", "z"))
    first, second = calls_of(staging, 1)
    assert (first.withheld, first.withdrawn) == (("x",), ())
    assert (second.withheld, second.withdrawn) == ((), ())


def test_all_arguments_are_withheld_unless_some_are_named():
    call = calls_of(conducted(config(2), [TOGETHER], Pace(10)), 0)[0]
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
