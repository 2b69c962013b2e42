"""Lessons: from a naive kernel to the expert, with figures that were measured and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pkb_gym.cli.export_lessons import naive_cuda
from pkb_gym.corpus import lessons
from pkb_gym.corpus.lessons import LessonRow, lesson_rows, measurement, steps_of
from pkb_gym.corpus.tasks import train_problems
from pkb_gym.envs.suite import split_names
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from pkb_gym.problems.expert_times import ExpertTime, expert_times
from pkb_gym.problems.splits import near_duplicates
from pkb_gym.training.inputs.rows import submissions

TIME = ExpertTime(
    problem="AllGatherGemm",
    size="large",
    world_size=2,
    gpu="NVIDIA H200",
    dtype="bfloat16",
    expert_us=1000.0,
    baseline_us=3000.0,
    captured_us=2000.0,
    speedup=3.0,
    speedup_low=2.5,
    utilisation=0.5,
    commit="0123456789ab",
    date="2026-11-28",
)


@pytest.fixture(scope="module")
def rows() -> list[LessonRow]:
    return lesson_rows(train_problems(["train"], "cuda"), naive_cuda, "brief")


def texts(row: LessonRow, role: str) -> Iterator[str]:
    return (message["content"] for message in row["messages"] if message["role"] == role)


def test_every_expert_of_the_training_part_has_a_lesson_and_no_other(rows):
    train = set(split_names("train"))
    experts = {problem.name for problem in catalogue() if expert_source(problem, "cu")}
    assert {row["problem"] for row in rows} == experts & train
    assert experts - train, "some experts are of the test part"
    assert len({row["id"] for row in rows}) == len(rows)


def test_the_expert_is_the_last_submission_and_stands_in_no_message_of_others(rows):
    for row in rows:
        *earlier, last = submissions(row["messages"])
        assert last == expert_source(find_problem(row["problem"]), "cu")
        assert len(earlier) == len(row["steps"]) - 1 == len(row["times"]) - 1
        asked = "".join((*texts(row, "system"), *texts(row, "user")))
        for name in near_duplicates(row["problem"]) | set(split_names("test")):
            source = expert_source(find_problem(name), "cu") or ""
            assert not [
                line for line in source.splitlines() if line.startswith("//") and len(line) > 3 and line in asked
            ]


def test_a_figure_is_one_that_was_measured(rows):
    for row in rows:
        *earlier, last = (json.loads(text) for text in row["times"])
        assert not any(earlier), "naive kernels were not measured"
        time = None if last is None else ExpertTime(**last)
        kept = [each for each in expert_times(row["problem"]) if each.size != "tiny"]
        assert time in kept if kept else time is None
        answers = list(texts(row, "user"))[1:]
        assert answers == [measurement(None)] * len(earlier) + [measurement(time)]


def test_a_measurement_names_its_conditions_and_its_absence():
    assert measurement(TIME) == (
        "Measured on NVIDIA H200, 2 ranks, size large, bfloat16, commit 0123456789ab, 2026-11-28: 1 ms a call, 3.00 "
        "times as fast as the eager baseline (at least 2.50), 2.00 times as fast as the captured one, 50 % of the "
        "roofline."
    )
    assert measurement(None) == "No measurement of this kernel is kept: its gain is unknown."


def test_steps_are_named_for_what_they_do():
    gemm, step = find_problem("AllGatherGemm"), find_problem("ZeRO1")
    assert [each.name for each in steps_of(gemm, "e", "n", TIME)] == ["naive", "overlapped"]
    assert [(each.name, each.source) for each in steps_of(step, "e", None, None)] == [("fused", "e")]
    assert all(expert_source(find_problem(name), "cu") for name in lessons.OVERLAPPED)


def test_an_expert_that_was_not_measured_has_one_lesson_that_says_so(monkeypatch):
    monkeypatch.setattr(lessons, "expert_times", lambda _problem: ())
    (row,) = lesson_rows([find_problem("AllReduce")], naive_cuda, "brief")
    assert (row["size"], row["world_size"], row["times"]) == ("published", 2, ["null", "null"])
    assert list(texts(row, "user"))[1:] == [measurement(None)] * 2
    assert list(texts(row, "assistant"))[-1].startswith("This kernel is the last step")
