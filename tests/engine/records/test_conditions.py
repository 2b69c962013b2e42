"""The settings that must agree where results stand beside each other."""

from __future__ import annotations

from dataclasses import replace

from pkb_gym.engine.records.conditions import ConditionDifference, Conditions, condition_differences, problem_sha256
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.examples import timed

HERE = Conditions("an H200", "cuda", 4, 1, "published", "bfloat16", "robust", "0" * 64)


def test_the_conditions_of_an_evaluation():
    feedback = timed()
    found = Conditions.of_feedback(feedback)
    config = feedback.config
    assert found == Conditions.of(config, feedback.environment.hardware, feedback.problem_sha256)
    assert (found.device, found.world_size, found.dtype) == (config.device, config.world_size, config.dtype)
    axes = config.model_copy(update={"size": {"N": 8, "M": (1, 2)}})
    assert Conditions.of(axes, None, "").size == "M=(1, 2),N=8", "whatever the order"


def test_each_difference_is_named_once_with_its_problems():
    other = replace(HERE, world_size=2)
    names = ("AllReduce", "DDP", "Gather", "Reduce", "Scatter")
    a = {name: [HERE] for name in names}
    assert condition_differences(a, dict(a)) == []
    assert condition_differences(a, {"HyenaCP": [other]}) == [], "nothing in common"
    assert condition_differences(a, {name: [other] for name in (*names, "HyenaCP")}) == [
        ConditionDifference("world_size", "4", "2")
    ]
    mixed = {name: [replace(other, dtype="float32") if name == "DDP" else other] for name in names}
    assert condition_differences(a, mixed) == [
        ConditionDifference("world_size", "4", "2"),
        ConditionDifference("dtype", "bfloat16", "float32", ("DDP",)),
    ]


def test_a_side_may_have_several_conditions():
    both = {"DDP": [HERE, replace(HERE, world_size=2)]}
    assert condition_differences(both, {"DDP": [HERE]}) == [ConditionDifference("world_size", "2, 4", "4")]


def test_versions_of_problems_differ_in_their_text():
    digest = problem_sha256(find_problem("DDP"))
    assert len(digest) == 64 and digest != problem_sha256(find_problem("Gather"))
    (found,) = condition_differences({"DDP": [HERE]}, {"DDP": [replace(HERE, problem_sha256=digest)]})
    assert (found.setting, found.a, found.b) == ("problem_sha256", "0" * 12, digest[:12])
