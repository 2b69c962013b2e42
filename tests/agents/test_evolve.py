"""The search: it follows what was found, never repeats itself, and repeats as a whole under an equal seed."""

from __future__ import annotations

import pytest

from pkb_gym.agents.protocol import NotCovered
from pkb_gym.agents.registry import open_agent
from pkb_gym.corpus.families import FAMILIES
from tests.agents.conversations import ASKED, answered, task

FAMILY = FAMILIES["AllReduce", "cpp"]
KNOBS = {variant.source: variant.knobs for variant in FAMILY.variants}


def search(value, turns, *, seed=1, options=None):
    """The knobs of each submission, where `value` says what one is worth."""
    agent = open_agent("evolve", options or {}).begin(task(seed=seed))
    messages, found = list(ASKED), []
    for number in range(turns):
        reply = agent.act(messages)
        if reply is None:
            break
        knobs = KNOBS[reply.submission]
        found.append(knobs)
        messages += answered(reply.submission, value(knobs), number + 1)
    return found


def likes(wanted):
    """A value that grows with the share of knobs that are as wanted."""
    return lambda knobs: sum(knobs[name] == choice for name, choice in wanted.items()) / len(wanted)


TARGET = dict(FAMILY.variants[-7].knobs)


def test_equal_seeds_search_alike_and_others_do_not():
    assert search(likes(TARGET), 12) == search(likes(TARGET), 12)
    assert search(likes(TARGET), 12) != search(likes(TARGET), 12, seed=2)


def test_nothing_is_submitted_twice_and_the_family_ends():
    found = search(lambda _: 0.5, 1000)
    assert len(found) == len({tuple(knobs.items()) for knobs in found}) == len(FAMILY.variants)


def test_the_first_is_the_plainest():
    assert search(likes(TARGET), 1)[0] == FAMILY.variants[0].knobs


def test_feedback_steers_the_search():
    """Bred from the best, it comes to the target far sooner than at random, over many seeds."""

    def steps(options):
        places = []
        for seed in range(30):
            found = search(likes(TARGET), 200, seed=seed, options=options)
            places.append(next(place for place, knobs in enumerate(found) if knobs == TARGET))
        return sum(places) / len(places)

    bred, random = steps({}), steps({"initial": "1000"})
    assert bred < 0.6 * random, (bred, random)


def test_children_lie_near_their_parents():
    """Without crossover and with one mutation, a child differs from one of the best in one knob."""
    found = search(likes(TARGET), 10, options={"crossover": "0", "elite": "1", "initial": "2"})
    value = likes(TARGET)
    for number in range(2, 10):
        best = max(found[:number], key=lambda knobs: (value(knobs), -found.index(knobs)))
        assert sum(best[name] != found[number][name] for name in best) == 1


def test_a_submission_that_was_not_judged_is_no_parent():
    found = search(lambda _: None, 6)
    assert len({tuple(knobs.items()) for knobs in found}) == 6


def test_a_problem_without_a_family_is_not_covered():
    with pytest.raises(NotCovered, match="no family of cpp kernels for DDP"):
        open_agent("evolve").begin(task("DDP"))
