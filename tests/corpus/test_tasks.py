"""Tasks: what is held out is never trained on."""

from __future__ import annotations

import json

import pytest

from pkb_gym.corpus.tasks import Task, TaskWorkload, parse_axes, part_of, train_problems, workloads
from pkb_gym.engine.errors import ConfigError, ProblemNotFound, SizeError
from pkb_gym.envs.suite import split_names
from pkb_gym.problems.catalogue import find_problem
from tests.whole_tables import sampled

TRAIN = split_names("train")


@pytest.mark.parametrize("name", sampled(TRAIN, 5))
def test_train_and_held_out_never_meet(name):
    problem = find_problem(name)
    train = workloads(problem, "tiny", 2, "train", variations=6)
    held_out = workloads(problem, "tiny", 2, "held_out", variations=6)
    assert train[0] == TaskWorkload("tiny", problem.dtypes[0])
    assert not set(train) & set(held_out)
    assert {part_of(problem, workload) for workload in train} == {"train"}
    assert {part_of(problem, workload) for workload in held_out} <= {"held_out"}
    for workload in train + held_out:
        Task(name, "cpp", 2, workload.size, workload.dtype, 0, "brief").resolved()


def test_most_problems_have_held_out_workloads():
    found = {name for name in TRAIN if workloads(find_problem(name), "tiny", 2, "held_out", variations=1)}
    assert len(found) >= 50, sorted(set(TRAIN) - found)


def test_the_part_hangs_on_nothing_but_axes_and_dtype():
    problem = find_problem("AllReduce")
    there = TaskWorkload('{"M": 64, "N": 96}', "float32")
    back = TaskWorkload('{"N": 96, "M": 64}', "float32")
    assert part_of(problem, there) == part_of(problem, back)
    named = TaskWorkload(json.dumps(dict(problem.sizes["tiny"])), "bfloat16")
    assert part_of(problem, named) == part_of(problem, TaskWorkload("tiny", "bfloat16")) == "train"


def test_more_variations_keep_the_first_ones():
    problem = find_problem("TPRMSNorm")
    few = workloads(problem, "tiny", 2, "train", variations=2)
    assert workloads(problem, "tiny", 2, "train", variations=5)[: len(few)] == few


def test_axes_come_back_as_tuples():
    assert parse_axes('{"x_shape": [4, 6], "group": null}') == {"x_shape": (4, 6), "group": None}
    task = Task("UlyssesAllGather", "cpp", 2, '{"x_shape": [4, 6]}', "bfloat16", 3, "brief")
    assert task.config().size == {"x_shape": (4, 6)} and task.config().seed == 3


def test_sizes_that_make_no_sense_are_refused():
    problem = find_problem("AllGatherGemm")
    with pytest.raises(ConfigError, match="no size 'huge'; there are tiny, published, large"):
        workloads(problem, "huge", 2, "train", variations=0)
    with pytest.raises(SizeError):
        workloads(problem, '{"M": 4, "K": 7, "N": 4}', 2, "train", variations=0)


def test_problems_of_the_test_part_are_refused():
    with pytest.raises(ConfigError, match="Broadcast belongs to the test part of the split"):
        train_problems(["AllReduce", "broadcast"], "cpp")
    with pytest.raises(ProblemNotFound):
        train_problems(["AllReduse"], "cpp")


def test_words_for_many_problems():
    assert [problem.name for problem in train_problems(["train"], "cpp")] == list(TRAIN)
    families = [problem.name for problem in train_problems(["families", "AllReduce"], "cuda")]
    assert len(families) == len(set(families)) >= 8 and "AllReduce" in families
