"""The settings that must agree where results stand beside each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pkb_gym.engine.records.conditions import (
    ConditionDifference,
    Conditions,
    condition_differences,
    problem_sha256,
    problem_text_sha256,
)
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


def test_a_comment_makes_no_other_version_of_a_problem(tmp_path):
    """An edit of a docstring refused to resume a run."""
    problem = find_problem("DDP")
    folder = Path(problem.declared_in).parent
    for name in ("problem.py", "reference.py"):
        (tmp_path / name).write_text((folder / name).read_text())
    copied = replace(problem, declared_in=str(tmp_path / "problem.py"))
    versions, texts = {problem_sha256(problem)}, {problem_text_sha256(problem)}
    text = (folder / "reference.py").read_text()
    for changed in (f"# a comment\n{text}", f"{text}\n\n\n", f"{text}X = 1\n"):
        (tmp_path / "reference.py").write_text(changed)
        versions.add(problem_sha256(copied))
        texts.add(problem_text_sha256(copied))
    assert len(versions) == 2 and len(texts) == 4, "the last change is one of the code"


def test_a_record_of_an_earlier_version_agrees_while_the_files_are_as_they_were():
    now = replace(HERE, problem_sha256="1" * 64, problem_text_sha256="0" * 64)
    assert condition_differences({"DDP": [HERE]}, {"DDP": [now]}) == []
    assert condition_differences({"DDP": [now]}, {"DDP": [HERE, now]}) == [], "both in one run"
    changed = replace(now, problem_text_sha256="2" * 64)
    (found,) = condition_differences({"DDP": [HERE]}, {"DDP": [changed]})
    assert (found.a, found.b) == ("0" * 12, "1" * 12)
    assert "digests count comments and docstrings" in found.where
