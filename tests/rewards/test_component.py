"""Composed rewards: they print as they are written, go through JSON, and stay finite."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pkb_gym.rewards
from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards import (
    BestSoFar,
    Component,
    Constant,
    Correctness,
    EpisodeScore,
    FastP,
    Ladder,
    LadderThenPerformance,
    LogSpeedup,
    OwnCommunication,
    OwnKernelShare,
    Scale,
    Speedup,
    Sum,
    find_reward,
    from_json,
    to_json,
)
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.presets import PRESETS
from tests.rewards.strategies import NOT_JUDGED, feedbacks
from tests.whole_tables import examples

NAMES = vars(pkb_gym.rewards)
numbers = st.floats(-1e6, 1e6)
leaves = st.one_of(
    st.sampled_from(
        [Correctness(), OwnCommunication(), Ladder(), LadderThenPerformance(), LogSpeedup(), OwnKernelShare()]
    ),
    st.builds(Constant, numbers),
    st.builds(FastP, st.floats(0, 10)),
    st.builds(Speedup, st.sampled_from(["low", "point"]), st.floats(1e-5, 1e5)),
)


def compositions(inner: st.SearchStrategy[Component]) -> st.SearchStrategy[Component]:
    limits = st.tuples(numbers, numbers).map(sorted)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner | numbers),
        st.builds(lambda a, b: a - b, inner, inner | numbers),
        st.builds(lambda a, b: b - a, inner, numbers),
        st.builds(lambda a, b: b * a, inner, numbers),
        st.builds(lambda a: -a, inner),
        st.builds(lambda a, low_high: a.clip(*low_high), inner, limits),
        st.builds(lambda a, condition, other: a.where(condition, other), inner, inner, inner | numbers),
    )


rewards = st.recursive(leaves, compositions, max_leaves=8)


@settings(max_examples=examples(100))
@given(reward=rewards)
def test_what_is_printed_can_be_read(reward):
    assert eval(repr(reward), dict(NAMES)) == reward


@settings(max_examples=examples(100))
@given(reward=rewards)
def test_round_trips_are_exact(reward):
    assert from_json(to_json(reward)) == pickle.loads(pickle.dumps(reward)) == reward
    assert hash(from_json(to_json(reward))) == hash(reward)


ANYTHING = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.just(10**400)),
        st.sampled_from(["", "low", "Correctness", "\ud800"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["component", "value", "p"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(200))
@given(reward=rewards, data=st.data())
def test_a_record_with_one_value_replaced_is_a_reward_or_refused(reward, data):
    content = json.loads(to_json(reward))
    place, key = content, "reward"
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(ANYTHING)
    try:
        found = from_json(json.dumps(content))
    except ConfigError as error:
        assert len(str(error)) < 1000
        return
    assert from_json(to_json(found)) == found


@settings(max_examples=examples(100))
@given(reward=rewards, feedback=feedbacks())
def test_finite_within_bounds_and_none_exactly_for_infrastructure_failures(reward, feedback):
    value, (low, high) = reward(feedback), reward.bounds()
    assert (value is None) == (feedback.failure in NOT_JUDGED)
    if value is not None:
        slack = 1e-9 * max(1.0, abs(low), abs(high))
        assert math.isfinite(value) and low - slack <= value <= high + slack
        assert sum(reward.parts(feedback).values()) == pytest.approx(value, rel=1e-6, abs=1e-3)
    else:
        assert reward.parts(feedback) == {}


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (
            0.3 * Correctness() + Speedup(),
            "0.3 * Correctness() + Speedup(estimate='point', cap=1000.0, baseline='eager')",
        ),
        (Correctness() - 0.5 * Ladder(), f"Correctness() - 0.5 * {Ladder()!r}"),
        (Correctness() - OwnCommunication(), "Correctness() - OwnCommunication()"),
        ((Correctness() + 1) * 0.5, "0.5 * (Correctness() + Constant(value=1.0))"),
        ((2 * Correctness()).clip(0, 1), "(2.0 * Correctness()).clip(0.0, 1.0)"),
        (Correctness().where(OwnCommunication(), -1), "Correctness().where(OwnCommunication(), otherwise=-1.0)"),
        (1 - Correctness(), "Constant(value=1.0) - Correctness()"),
        (
            Correctness() - (OwnCommunication() + 1),
            "Correctness() - (OwnCommunication() + Constant(value=1.0))",
        ),
    ],
)
def test_how_they_print(reward, text):
    assert repr(reward) == text


def test_values_by_hand():
    """Right, twice as fast as the baseline."""
    right, wrong = timed(speedup=2.0), failed("output_mismatch", earned_share=0.5)
    speed = Speedup(cap=3.0)
    reward = (0.3 * Correctness() + speed).where(Correctness(), otherwise=0.2 * Ladder() - 1)
    assert reward(right) == 2.3 and reward(wrong) == pytest.approx(0.2 * 0.08125 - 1)
    assert (speed * 2)(right) == 4.0 and (-speed)(right) == -2.0
    assert speed.clip(0, 1)(right) == 1.0 and (5 - speed)(right) == 3.0


def test_sums_are_flat():
    a, b, c = Correctness(), OwnCommunication(), FastP(1.0)
    assert a + (b + c) == (a + b) + c == Sum((a, b, c)) == Sum((a, Sum((b, c))))


def test_parts_of_the_same_name_are_added():
    reward = Correctness() + 0.5 * Correctness() + Speedup()
    assert reward.parts(timed(speedup=2.0)) == {"correctness": 1.5, "speedup": 2.0}
    assert reward.parts(failed("infrastructure")) == {}


def test_a_composition_can_be_an_episode_s_reward():
    score = EpisodeScore(BestSoFar(0.3 * Correctness() + Speedup()))
    paid = [score.add(feedback).reward for feedback in (timed(speedup=1.0), failed("timeout"), timed(speedup=2.0))]
    assert paid == [1.3, 0.0, pytest.approx(1.0)]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip(name):
    assert from_json(to_json(PRESETS[name])) == PRESETS[name]


def test_a_record_stands_for_its_reward_wherever_a_name_may():
    reward = 0.3 * Correctness() + Speedup()
    assert find_reward(to_json(reward)) == reward


def test_records_hold_defaults():
    assert json.loads(to_json(Ladder(almost=0.5)))["reward"] == {
        "component": "Ladder",
        "accepted": 0.01,
        "compiled": 0.03,
        "ran": 0.05,
        "almost": 0.5,
        "breach": -0.35,
    }


def test_whole_numbers_are_read_where_fractions_are_meant():
    assert from_json('{"schema_version": 3, "reward": {"component": "FastP", "p": 2}}') == FastP(2.0)


@dataclass(frozen=True)
class Halfway(Component):
    """A component of someone else's."""

    way: float = 0.5
    steps: int = 1
    title: str = ""

    def __call__(self, feedback):
        return self.way

    def bounds(self):
        return self.way, self.way


def test_components_of_others_are_known_by_deriving():
    assert from_json(to_json(Halfway(0.25) + 1)) == Halfway(0.25) + 1
    with pytest.raises(TypeError, match="has a Ladder already"):
        type("Ladder", (Recorded,), {})


def read(reward: object) -> object:
    return from_json(json.dumps({"schema_version": 3, "reward": reward}))


LADDER = {"component": "Ladder"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"component": "Laddr"}, r"reward: no component 'Laddr'. Did you mean 'Ladder'\? There are .*'Speedup'"),
        ({"component": "Ladder", "rann": 0.1}, r"reward: Ladder has no field 'rann'. Did you mean 'ran'\?"),
        ({"component": "Correctness", "x": 1}, "reward: Correctness has no field 'x'; it has none"),
        ({"component": "Scale", "factor": 2.0}, "reward: Scale needs field 'value'"),
        ({"component": "Sum", "terms": [LADDER, 3]}, r'reward.terms\[1\]: expected \{"component": name, ...\}, got 3'),
        ({"component": "Sum", "terms": LADDER}, "reward.terms: expected a list"),
        ({"component": "Sum", "terms": [LADDER]}, "reward: Sum: Sum needs at least two values, got 1"),
        ({"component": "Scale", "factor": "2", "value": LADDER}, 'reward.factor: expected a finite number, got "2"'),
        ({"component": "Scale", "factor": True, "value": LADDER}, "reward.factor: expected a finite number, got true"),
        ({"component": "Constant", "value": float("nan")}, "reward.value: expected a finite number, got NaN"),
        ({"component": "Speedup", "estimate": "mean"}, "reward.estimate: expected one of 'low', 'point', got \"mean\""),
        ({"component": "Ladder", "almost": 1.5}, "reward: Ladder: rungs must not fall"),
        ({"component": "LadderThenPerformance", "ladder": {"component": "FastP"}}, "reward.ladder: FastP is no Ladder"),
        ({"component": "Halfway", "steps": 1.5}, "reward.steps: expected a whole number, got 1.5"),
        ({"component": "Halfway", "title": 1}, "reward.title: expected a text, got 1"),
        ([], r'reward: expected \{"component"'),
    ],
)
def test_unknown_names_and_fields_say_where_and_what_there_is(record, message):
    with pytest.raises(ConfigError, match=message):
        read(record)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("component: Ladder", "must be JSON"),
        ("{}", "a reward's record is"),
        ("3", "a reward's record is"),
        ('{"schema_version": 1, "reward": {}}', "schema_version: expected 3, got 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema_version": ' + "2" * 5000 + ', "reward": {}}', "must be JSON"),
        (" " * (1 << 20), "at most 262144 characters, got 1048576"),
    ],
)
def test_texts_that_are_no_records(text, message):
    with pytest.raises(ConfigError, match=message):
        from_json(text)


@pytest.mark.parametrize("field", ["value", "condition"])
@pytest.mark.parametrize("depth", [70, 400, 2000])
def test_records_within_records_without_end_are_refused(field, depth):
    """They ended in a RecursionError, wherever the reader of the record stood at that time."""
    one, other = '{"component": "Correctness"}', "value" if field == "condition" else "condition"
    before, behind = f'{{"component": "Where", "otherwise": {one}, "{other}": {one}, "{field}": ', "}"
    with pytest.raises(ConfigError, match="nested too deeply: at most 64 objects"):
        from_json(f'{{"schema_version": 3, "reward": {before * depth}{one}{behind * depth}}}')


def test_a_number_beyond_all_floats_is_refused():
    with pytest.raises(ConfigError, match="expected a finite number, got 1000"):
        read({"component": "Constant", "value": 10**400})


@pytest.mark.parametrize("record", ["A" * 100_000, {"component": "A" * 100_000}, LADDER | {"A" * 100_000: 1}])
def test_an_error_shows_the_beginning_of_what_is_wrong(record):
    with pytest.raises(ConfigError) as raised:
        read(record)
    assert len(str(raised.value)) < 1000


def test_a_plain_function_has_no_record():
    with pytest.raises(ConfigError, match="only rewards that derive from Recorded"):
        to_json(BestSoFar(lambda feedback: 0.5))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant(math.inf), "a reward must be finite"),
        (lambda: 1e300 * (1e300 * Correctness()), "a reward must be finite"),
        (lambda: Scale(math.nan, Correctness()), "a reward must be finite"),
        (lambda: Constant(1e308) + Constant(1e308), "a reward must be finite"),
        (lambda: Constant(math.inf) + 1, "a reward must be finite"),
        (lambda: Correctness().clip(1, 0), "low <= high is needed, got 1.0 and 0.0"),
        (lambda: Sum((Correctness(),)), "Sum needs at least two values, got 1"),
    ],
)
def test_what_might_not_be_finite_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("other", [True, "1", None, lambda feedback: 1.0])
def test_only_components_and_numbers_compose(other):
    with pytest.raises(TypeError, match="composed of components and numbers"):
        Correctness() + other


def test_rewards_are_multiplied_by_numbers_alone():
    with pytest.raises(TypeError, match="real number"):
        Correctness() * Speedup()
