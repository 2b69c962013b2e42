"""The search: it follows what was found, never repeats itself, and repeats as a whole under an equal seed."""

from __future__ import annotations

import pytest

from pkb_gym.agents.protocol import NotCovered
from pkb_gym.agents.registry import open_agent
from pkb_gym.kernels import FAMILIES
from tests.agents.conversations import CONVERSATION, answered, task

FAMILY = FAMILIES["AllReduce", "cpp"]
KNOBS = {variant.source: variant.knobs for variant in FAMILY.variants}


def search(value, turns, *, seed=1, options=None):
    """The knobs of each submission, where `value` gives the reward of one."""
    agent = open_agent("evolve", options or {}).begin(task(seed=seed))
    messages, found = list(CONVERSATION), []
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


def test_single_turns_may_begin_anywhere():
    firsts = [search(likes(TARGET), 1, seed=seed, options={"start": "random"})[0] for seed in range(9)]
    assert len({tuple(knobs.items()) for knobs in firsts}) > 4
    assert search(likes(TARGET), 1, seed=3, options={"start": "random"}) == [firsts[3]]


def test_feedback_steers_the_search():
    """Bred from the best, it comes to a target far sooner than in a random order, over many targets and seeds."""
    steps = []
    for target in (dict(FAMILY.variants[place].knobs) for place in (3, 40, 60, 100)):
        steps += [search(likes(target), len(KNOBS), seed=seed).index(target) + 1 for seed in range(6)]
    at_random = (len(KNOBS) + 1) / 2
    assert sum(steps) / len(steps) < 0.75 * at_random, steps


def test_children_lie_near_their_parents():
    """Without crossover and with one mutation, a child differs in one knob, and in others only if it must."""
    found = search(likes(TARGET), 12, options={"crossover": "0", "elite": "1", "initial": "2", "explore": "0"})
    value, variants = likes(TARGET), [variant.knobs for variant in FAMILY.variants]
    for number in range(2, 12):
        best = max(found[:number], key=lambda knobs: (value(knobs), -found.index(knobs)))
        child, untried = found[number], [knobs for knobs in variants if knobs not in found[:number]]
        changed = [name for name in best if best[name] != child[name]]
        fewest = {
            name: min(distance(best, knobs) for knobs in untried if knobs[name] == child[name]) for name in changed
        }
        assert len(changed) in fewest.values()


def distance(knobs, others):
    return sum(others[name] != value for name, value in knobs.items())


def test_every_choice_is_reached_although_few_combinations_make_sense():
    """Of AllReduce's algorithms one has most of the variants; single changes to the others make no sense."""
    found = search(lambda _: 0.5, 40)
    for name, values in FAMILY.choices.items():
        assert {knobs[name] for knobs in found} == {knobs[name] for knobs in KNOBS.values()} <= set(values)


def test_the_first_submissions_differ_as_much_as_they_can():
    first, second, *_ = search(likes(TARGET), 3)
    assert distance(first, second) == max(distance(first, knobs) for knobs in KNOBS.values())


def test_a_submission_that_was_not_judged_is_no_parent():
    found = search(lambda _: None, 6)
    assert len({tuple(knobs.items()) for knobs in found}) == 6


def test_a_problem_without_a_family_is_not_covered():
    with pytest.raises(NotCovered, match="no family of cpp kernels for DDP"):
        open_agent("evolve").begin(task("DDP"))
