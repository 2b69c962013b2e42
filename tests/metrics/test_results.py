"""How attempts become episodes, and how files of them are read."""

from __future__ import annotations

import numpy as np
import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.metrics.results import results_by_agent
from pkb_gym.metrics.sources import read_results
from pkb_gym.report.content import report_content
from pkb_gym.report.markdown import report_markdown
from pkb_gym.report.page import page_html
from tests.metrics.attempts import attempt, write


def tasks(attempts):
    """Samples of each task of the one problem."""
    (results,) = results_by_agent(attempts)
    return [rows.stop - rows.start for _, rows in results.tasks()]


def test_turns_of_a_sample_are_one_episode_whose_best_counts():
    (results,) = results_by_agent([attempt(turn=1, speedup=2.0), attempt(turn=0), attempt(turn=2, speedup=1.5)])
    assert results.turns.position.tolist() == [0, 1, 2] and results.turns.is_right.tolist() == [False, True, True]
    assert results.episodes.is_right.tolist() == [True] and results.episodes.speedup.tolist() == [2.0]


def test_samples_tasks_and_files_are_distinguished_and_seeds_are_samples_of_one_task():
    assert tasks([attempt(), attempt(sample=1)]) == [2]
    assert tasks([attempt(file="a.cpp"), attempt(file="a.2.cpp")]) == [2]
    assert tasks([attempt(), attempt(requested={"size": "large"}), attempt(requested={"seed": 1})]) == [2, 1]
    sizes = [{"M": 4, "N": 2}, {"N": 2, "M": 4}]
    assert tasks([attempt(requested={"size": size}, sample=i) for i, size in enumerate(sizes)]) == [2]


def test_of_two_attempts_at_one_turn_the_last_counts():
    (results,) = results_by_agent([attempt(failure="infrastructure"), attempt(speedup=1.0)])
    assert results.episodes.is_right.tolist() == [True]


@pytest.mark.parametrize("failure", ["infrastructure", "compiled_only"])
def test_an_episode_that_could_not_be_judged_counts_for_nothing(failure):
    broken = [attempt(sample=1, turn=0, speedup=9.0), attempt(sample=1, turn=1, failure=failure)]
    (results,) = results_by_agent([attempt(speedup=2.0), *broken, attempt("Gather", failure=failure)])
    assert results.episodes.speedup.tolist() == [2.0]
    assert results.problems == ("AllReduce",) and results.names == ("AllReduce", "Gather")
    assert results.every_episode.is_judged.tolist() == [True, False, False]


def test_a_reply_without_a_submission_is_a_wrong_one():
    (results,) = results_by_agent([attempt(failure="no_submission")])
    assert results.episodes.is_right.tolist() == [False] and results.turns.is_evaluation.tolist() == [False]
    assert [outcome.verdict for outcome in results.turns.outcomes] == ["no_submission"]


def test_a_kernel_that_was_caught_is_not_right():
    caught = attempt(speedup=5.0).feedback.model_copy(update={"integrity": ({"code": "late_output", "detail": "x"},)})
    (results,) = results_by_agent([attempt(speedup=5.0).model_copy(update={"feedback": caught})])
    assert results.episodes.is_right.tolist() == [False] and np.isnan(results.episodes.speedup).all()


def test_agents_are_named_by_attempt_argument_file_or_folder(tmp_path):
    (tmp_path / "gpt").mkdir()
    folder = write(tmp_path / "gpt" / "results.jsonl", [attempt(agent=None)])
    other = write(tmp_path / "qwen.jsonl", [attempt(agent=None), attempt(agent="b")])
    assert {one.agent for one in read_results([str(folder)])} == {"gpt"}
    assert [one.agent for one in read_results([str(other), str(folder)])] == ["qwen", "b", "gpt"]
    assert {one.agent for one in read_results([f"b={other}"])} == {"b"}


@pytest.mark.parametrize(
    ("agent", "name"),
    [("\ud800", "\\ud800"), ("a\x1b]0;x\x07", "a\\x1b]0;x\\x07"), ("\u202eb", "\\u202eb"), ("c\n# d", "c # d")],
)
def test_names_of_agents_are_read_as_every_page_can_show_them(tmp_path, agent, name):
    """Half a character in one ended the making of a page in an error."""
    path = write(tmp_path / "results.jsonl", [attempt(agent=agent)])
    attempts = read_results([str(path)])
    assert [one.agent for one in attempts] == [name]
    content = report_content(attempts)
    for text in (page_html(content, attempts), report_markdown(content), content.model_dump_json()):
        text.encode()
        assert not set(agent) & set("\ud800\x1b\u202e") & set(text)


def test_a_file_of_no_use_is_named(tmp_path):
    empty, other = write(tmp_path / "e.jsonl", []), write(tmp_path / "o.jsonl", [attempt()])
    with pytest.raises(ConfigError, match=r"e\.jsonl holds no attempts$"):
        read_results([str(empty)])
    with pytest.raises(ConfigError, match=r"o\.jsonl holds no attempts of the agent 'z'; it has those of a$"):
        read_results([f"z={other}"])
    with pytest.raises(ConfigError, match="given as PATH or AGENT=PATH, got '=x'"):
        read_results(["=x"])
    with pytest.raises(ConfigError, match="cannot read"):
        read_results([str(tmp_path / "none.jsonl")])
    other.write_text(other.read_text() + "{}\n")
    with pytest.raises(ConfigError, match=r"o\.jsonl, line 2, is no result of this version: problem is missing"):
        read_results([str(other)])


def test_the_same_file_twice_is_no_more_evidence(tmp_path):
    path = str(write(tmp_path / "r.jsonl", [attempt(), attempt(sample=1)]))
    assert read_results([path, path]) == read_results([path])
