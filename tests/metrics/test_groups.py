"""Results grouped by the conditions that they were judged under."""

from __future__ import annotations

import pytest

from pkb_gym.metrics.best import best_kernels
from pkb_gym.metrics.groups import conditions_by_problem, grouped, read_grouped
from pkb_gym.report.content import report_content
from pkb_gym.rewards.examples import CONFIG, MACHINE
from tests.metrics.attempts import attempt, write


def under(problem="AllReduce", agent="a", *, hardware=MACHINE.hardware, sha="0" * 64, speedup=2.0, **config):
    """A right attempt under some conditions, at a request that leaves them open."""
    feedback = {
        "config": CONFIG.model_copy(update=config),
        "environment": MACHINE.model_copy(update={"hardware": hardware}),
        "problem_sha256": sha,
    }
    return attempt(problem, agent, speedup=speedup, feedback=feedback)


def agents(*sources):
    return [each.agent for each in grouped(sources).attempts]


def test_results_under_equal_conditions_are_one_group():
    """Dtypes differ between problems of one run, and files of one agent count as one."""
    found = grouped([[under(), under("Gather", dtype="float32")], [under("Scatter"), under(speedup=3.0)]])
    assert (found.groups, found.differing) == ((), ())
    assert [(each.problem, each.feedback.timing.speedup) for each in found.attempts] == [
        ("AllReduce", 3.0),
        ("Gather", 2.0),
        ("Scatter", 2.0),
    ]


@pytest.mark.parametrize(
    ("change", "names", "differing"),
    [
        ({"world_size": 8}, (f"{CONFIG.world_size} ranks", "8 ranks"), ("world_size",)),
        ({"size": "large"}, (CONFIG.size, "large"), ("size",)),
        ({"dtype": "float64"}, (CONFIG.dtype, "float64"), ("dtype",)),
        ({"protocol": "published"}, ("robust", "published"), ("protocol",)),
        ({"hardware": "an H200"}, (MACHINE.hardware, "an H200"), ("hardware",)),
        ({"hardware": "an H200", "device": "cuda"}, ("cpu", "cuda"), ("device", "hardware")),
    ],
)
def test_runs_of_one_agent_under_different_conditions_are_two_rows(change, names, differing):
    """The second replaced the first: the request left open what the machine decided."""
    found = grouped([[under()], [under(**change)]])
    assert (found.groups, found.differing) == (names, differing)
    assert [each.agent for each in found.attempts] == [f"a ({name})" for name in names]


def test_versions_of_a_problem_are_groups():
    found = grouped([[under(), under("Gather")], [under(sha="1" * 64), under("Gather")]])
    assert found.differing == ("problem_sha256",) and len(set(found.groups)) == 2
    assert all(name.startswith("problems ") for name in found.groups)


def test_each_agent_is_named_by_its_group():
    one, two, three = [under(agent="x")], [under(agent="y", world_size=8)], [under(agent="z", world_size=8)]
    ranks = CONFIG.world_size
    assert agents(one, two, three) == [f"x ({ranks} ranks)", "y (8 ranks)", "z (8 ranks)"]
    assert agents(two, [attempt(agent="q", failure="no_submission")], three) == ["y", "q", "z"], "nothing was judged"
    assert agents([under("Gather")], [under("Scatter", world_size=8)]) == [f"a ({ranks} ranks)", "a (8 ranks)"]


def test_what_one_file_mixes_stays_together():
    """Each task counts the same within a problem, as in results of a curriculum over ranks."""
    mixed = [under(), under("Gather", world_size=8)]
    assert grouped([mixed]).groups == ()


def test_attempts_that_were_not_judged_have_no_conditions():
    assert conditions_by_problem([attempt(failure="infrastructure"), attempt(failure="no_submission")]) == {}
    assert set(conditions_by_problem([attempt(failure="race")])) == {"AllReduce"}


def test_a_report_names_its_groups(tmp_path):
    one, two = write(tmp_path / "one.jsonl", [under()]), write(tmp_path / "two.jsonl", [under(world_size=8)])
    found = read_grouped([str(one), str(two)])
    content = report_content(found.attempts, (), found)
    assert [each.agent for each in content.agents] == [f"a ({CONFIG.world_size} ranks)", "a (8 ranks)"]
    assert content.notes[0].startswith("Results fall into 2 groups that do not compare with each other: (")
    assert "differ: world_size." in content.notes[0]
    assert not any("groups" in note for note in report_content([under()], (), grouped([[under()]])).notes)


def test_the_best_kernels_count_the_conditions_that_they_were_chosen_across():
    (best,) = best_kernels([under(), under(sha="1" * 64, speedup=3.0)])
    assert best.configurations == 2
