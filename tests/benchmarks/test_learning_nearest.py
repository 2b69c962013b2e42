"""Distances in words to the kernels of a corpus, by hand."""

from __future__ import annotations

import random

import pytest

from benchmarks.learning_nearest import Shown, edit_distance, nearest, nearness, shown_kernels, words_of
from pkb_gym.training.results.policy_summary import prompt_key
from tests.training.results.test_policy_summary import row


def plainly(one, other) -> int:
    """The distance by its recurrence."""
    if not one or not other:
        return len(one) + len(other)
    replaced = plainly(one[1:], other[1:]) + (one[0] != other[0])
    return min(replaced, plainly(one[1:], other) + 1, plainly(one, other[1:]) + 1)


def test_distances_are_those_of_the_recurrence():
    drawn = random.Random(0)
    for _ in range(40):
        one, other = ("".join(drawn.choices("abc", k=drawn.randrange(7))) for _ in range(2))
        assert edit_distance(one, other) == plainly(one, other)


def test_blanks_are_no_words():
    assert words_of("for (i = 0;\n  i < n_1;)") == words_of("for(i=0; i<n_1;)")


def corpus_row(problem: str, source: str, failure: str | None = None) -> dict:
    call = {"function": {"name": "submit", "arguments": {"source": source}}}
    broken = {"function": {"name": "submit", "arguments": {"source": "broken"}}}
    messages = [{"content": "prompt"}, {"tool_calls": [broken]}, {"content": "failed"}, {"tool_calls": [call]}]
    return {"problem": problem, "failure": failure, "messages": messages}


def test_right_kernels_of_the_corpus_count_once():
    rows = [corpus_row("A", "x = 1;"), corpus_row("A", "x=1;"), corpus_row("B", "y = 1;"), corpus_row("A", "z", "race")]
    assert shown_kernels(rows) == [Shown("A", ("x", "=", "1", ";")), Shown("B", ("y", "=", "1", ";"))]


def test_the_nearest_is_found_behind_a_worse_bound():
    """Order counts in the distance and not in the bound, so that the least bound may belong to a farther kernel."""
    reversed_, near = Shown("A", tuple("dcba")), Shown("B", tuple("abcx"))
    assert nearest("a b c d", [reversed_, near]) == (1, "B")
    assert nearest("a b c d", [near, Shown("C", tuple("abcx"))]) == (1, "B")


@pytest.mark.parametrize(("words", "name"), [(0, "verbatim"), (10, "1 to 10"), (11, "11 to 40"), (41, "more")])
def test_first_submissions_are_counted_by_distance(words, name):
    text = " ".join(f"w{number}" for number in range(60))
    corpus = [Shown("B", words_of(text))]
    rows = [
        {**row("B", 0, 0, 1.0, 2.0, turn=0), "source": " ".join(["other"] * words + text.split()[words:])},
        {**row("B", 0, 0, 1.0, 2.0, turn=1), "source": text},
        {**row("A", 0, 0, 0.0, None, turn=0), "source": text, "is_right": False},
        {**row("A", 0, 1, 0.0, None, turn=0), "source": None},
    ]
    found = nearness(rows, {prompt_key(one): "sizes" for one in rows[:1]}, corpus)
    assert found["sizes"][name] == {"submissions": 1, "right": 1}
    assert found["sizes"]["other problem"]["submissions"] == 0
    found = nearness(rows, {prompt_key(one): "test" for one in rows[2:]}, corpus)
    assert found["test"]["other problem"] == {"submissions": 1, "right": 0}
