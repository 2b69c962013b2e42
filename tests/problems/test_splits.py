"""problems/splits.json: two lists that share nothing, not even near-duplicates, and hold every category."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from pkb_gym.engine.problem import CATEGORIES
from pkb_gym.problems.catalogue import catalogue
from pkb_gym.problems.splits import SPLITS, cluster_of

DATA = json.loads(SPLITS.read_text(encoding="utf-8"))
TRAIN, TEST, GROUPS = DATA["train"], DATA["test"], DATA["groups"]
CATEGORY = {problem.name: problem.category for problem in catalogue()}


def test_it_holds_the_lists_the_groups_and_the_rule():
    assert set(DATA) == {"rule", "groups", "train", "test"}
    assert all(isinstance(sentence, str) and sentence.endswith(".") for sentence in DATA["rule"])


def test_no_problem_is_listed_twice():
    assert [name for name, times in Counter(TRAIN + TEST).items() if times > 1] == []


def test_every_problem_is_listed():
    missing = sorted(set(CATEGORY) - set(TRAIN) - set(TEST))
    assert not missing, f"add {', '.join(missing)} to `train` or `test` of problems/splits.json"
    assert len(TRAIN + TEST) == 87


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_category_of_three_or_more_is_on_both_sides(category):
    members = {name for name, its in CATEGORY.items() if its == category}
    held_out = members & set(TEST)
    if len(members) >= 3:
        assert held_out and members - held_out
    assert len(held_out) <= max(1, len(members) / 2), "most of a category is for training"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["problems"][0])
def test_no_group_of_near_duplicates_crosses(group):
    assert set(group) == {"problems", "reason"} and group["reason"].endswith(".")
    members = set(group["problems"])
    assert len(members) >= 2
    assert members <= set(TRAIN) or members <= set(TEST), "one side only"


def test_a_problem_is_in_one_group_at_most():
    grouped = [name for group in GROUPS for name in group["problems"]]
    assert [name for name, times in Counter(grouped).items() if times > 1] == []


def test_a_fifth_to_a_third_is_held_out():
    assert 1 / 5 <= len(TEST) / len(TRAIN + TEST) <= 1 / 3


def test_near_duplicates_are_one_cluster_and_others_their_own():
    groups = [group["problems"] for group in DATA["groups"]]
    for group in groups:
        assert len(set(map(cluster_of, group))) == 1, group
    names = [*DATA["train"], *DATA["test"]]
    assert len(set(map(cluster_of, names))) == len(names) - sum(len(group) - 1 for group in groups)
