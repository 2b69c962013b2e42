"""The breach of the contract behind a race, found by calls that only one breach makes wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pkb_gym.engine.records.check_report import Mismatch, Race
from pkb_gym.engine.reference.orders import ConductCalls
from pkb_gym.engine.stages.block_staging import LONG_HOLD, CallConditions, Pace
from pkb_gym.engine.stages.race import INTERRUPTED_SEARCHES, SEARCHES, find_race
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import Bench

SEEN = mismatch(rank=1, trial=7)
"""What began the search."""

LATE, HELD = CallConditions(late_rank=0), CallConditions(held_ranks=(1,))
NOTHING_WITHHELD, X_WITHHELD, OUT_WITHHELD = 0, 2, 4
"""Calls of a search: every other call has everything in place, so that what went wrong in it began before."""


def found(conditions: CallConditions, *searches: Sequence[Mismatch], bench: Bench | None = None) -> Race:
    """The race, where the calls of each search show these."""
    bench = bench or Bench()
    bench.reference.mismatches = [list(mismatches) for mismatches in searches]
    with bench.run() as run:
        return find_race(run, conditions, SEEN, Pace(100.0))


def test_an_argument_that_was_read_before_its_rank_had_begun() -> None:
    wrong = mismatch(rank=1, trial=X_WITHHELD)
    race = found(LATE, [wrong])
    assert race == Race(kind="early_read", rank=1, owner=0, tensor="tensor", evidence=str(wrong))
    assert "rank 1" in str(race) and "rank 0's `tensor`" in str(race)


def test_the_reader_is_not_known_where_the_wrong_output_is_the_late_ranks_own() -> None:
    assert found(LATE, [mismatch(rank=0, trial=X_WITHHELD)]).rank is None


def test_an_output_that_was_written_before_its_rank_had_begun() -> None:
    """Wrong with every argument in place: the poison of outputs came after what a peer had written."""
    wrong = mismatch(rank=0, trial=NOTHING_WITHHELD)
    assert found(LATE, [wrong]) == Race(kind="early_write", owner=0, tensor="out", evidence=str(wrong))


def test_a_wait_that_is_missing() -> None:
    wrong = mismatch(rank=1, trial=NOTHING_WITHHELD)
    assert found(LATE, [wrong]) == Race(kind="missing_wait", rank=1, owner=0, evidence=str(wrong))


def test_an_argument_that_was_read_after_its_rank_had_finished() -> None:
    wrong = mismatch(rank=1, trial=X_WITHHELD)
    race = found(HELD, [wrong])
    assert race == Race(kind="late_read", rank=1, owner=0, tensor="tensor", evidence=str(wrong))


def test_an_argument_that_a_rank_read_late_though_it_was_not_held() -> None:
    """On a busy machine any rank may fall behind; that is no evidence of data of another call."""
    wrong = mismatch(rank=1, trial=4 + X_WITHHELD)
    race = found(LATE, [], [wrong])
    assert race == Race(kind="late_read", rank=1, owner=0, tensor="tensor", evidence=str(wrong))


def test_a_late_read_that_shows_in_the_last_search() -> None:
    """On a busy machine no other rank departed while the reader was held: it was named as one that used data again."""
    bench = Bench()
    assert found(HELD, [], [], [mismatch(rank=1, trial=12 + X_WITHHELD)], bench=bench).kind == "late_read"
    held_ns = [setting.holds_ns for setting in bench.candidate.settings]
    assert held_ns == [((0,) * 6, (LONG_HOLD * 1_000_000, 0) * 3)] * SEARCHES


def test_an_output_that_was_read_after_its_rank_had_finished() -> None:
    wrong = mismatch(rank=1, trial=OUT_WITHHELD)
    assert found(HELD, [wrong]) == Race(kind="late_read", rank=1, owner=0, tensor="out", evidence=str(wrong))


def test_readers_are_interrupted_again_and_again_where_that_showed_the_race() -> None:
    """Whether a stop meets the read is a matter of the moment."""
    bench = Bench()
    wrong = mismatch(rank=1, trial=6 + X_WITHHELD)
    race = found(CallConditions(interrupted_rank=1), [wrong], bench=bench)
    assert race == Race(kind="late_read", rank=1, owner=0, tensor="tensor", evidence=str(wrong))
    orders = [order for order in bench.reference.staged[0] if isinstance(order, ConductCalls)]
    runs = [[bool(call.run_s) for call in order.calls] for order in orders]
    assert runs == [[False] * 6 * INTERRUPTED_SEARCHES, [True, False] * 3 * INTERRUPTED_SEARCHES]
    assert not any(call.is_held for order in orders for call in order.calls)
    withdrawn = [call.withdrawn for call in orders[0].calls[::2]]
    assert withdrawn == [(), ("tensor",), ("out",)] * INTERRUPTED_SEARCHES


def test_a_late_rank_is_tried_before_a_held_one() -> None:
    both = CallConditions(late_rank=0, held_ranks=(1,))
    bench = Bench()
    assert found(both, [], [mismatch(rank=1, trial=4 + X_WITHHELD)], bench=bench).kind == "late_read"
    searches = [staged[0] for staged in bench.reference.staged]
    late = [[call.late_rank for call in order.calls] for order in searches if isinstance(order, ConductCalls)]
    assert late == [[0, None, 0, None], [None] * 6]
    first = bench.reference.staged[0]
    withheld = [[call.withheld for call in order.calls] for order in first if isinstance(order, ConductCalls)]
    assert withheld == [[(), (), ("tensor",), ()], [(), (), (), ()]], "one tensor of one rank in one call"


@pytest.mark.parametrize("conditions", [LATE, HELD])
def test_scratch_that_was_used_again_too_early(conditions: CallConditions) -> None:
    """No call alone shows it."""
    race = found(conditions)
    assert (race.kind, race.evidence) == ("reuse", str(SEEN))
    assert race.rank == (0 if conditions is LATE else 1)


def test_scratch_was_used_again_too_early_under_a_slow_rank_whose_output_is_wrong() -> None:
    assert found(CallConditions(late_rank=1, held_ranks=(0,))).rank == SEEN.rank == 1


def test_a_race_without_a_condition_is_not_named() -> None:
    bench = Bench()
    assert found(CallConditions(), bench=bench) == Race(kind="unknown", rank=1, evidence=str(SEEN))
    assert bench.reference.staged == [], "nothing to search for"


def test_an_error_with_everything_in_place_shows_no_race() -> None:
    """It began in the call before."""
    assert found(LATE, [mismatch(rank=1, trial=1)]).kind == "reuse"


def test_values_show_the_earliest_call() -> None:
    later, first = mismatch(rank=0, trial=X_WITHHELD), mismatch(rank=1, trial=NOTHING_WITHHELD)
    assert found(LATE, [later, first]).kind == "missing_wait"
