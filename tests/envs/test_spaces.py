"""Spaces: cheap, and every observation inside."""

from __future__ import annotations

import copy
import doctest
import importlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.records.feedback import Failure
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.spaces import MAX_RATIO, SourceText, action_space, observation_space, observe
from pkb_gym.envs.text.feedback import ADVICE, MAX_FEEDBACK_CHARS, feedback_text
from pkb_gym.rewards.examples import failed, timed
from tests.rewards.strategies import feedbacks
from tests.whole_tables import examples

SPACE = observation_space()


@pytest.mark.parametrize("module", ["source_text", "text.formatting"])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(importlib.import_module(f"pkb_gym.envs.{module}"))
    assert result.attempted and not result.failed


def test_any_character_is_source_text():
    space = action_space()
    assert all(text in space for text in ("", "// αβγ 🦆", "a\0b", "\ud800", "\n" * 1000))
    assert "x" * (space.max_length + 1) not in space
    assert b"x" not in space and None not in space


def test_source_text_is_small():
    """gymnasium's Text keeps a table of its characters: 193 MB for all of Unicode."""
    assert len(pickle.dumps(action_space())) < 10_000


def test_source_text_copies_compares_and_seeds():
    space = SourceText(100, min_length=2, seed=3)
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert twin == space and twin.sample() == copy.deepcopy(space).sample()
    assert space != SourceText(100) and space != SourceText(99, min_length=2)
    assert repr(space) == "SourceText(100, min_length=2)"
    assert not space.is_np_flattenable


@given(limits=st.tuples(st.integers(0, 80), st.integers(0, 80)), seed=st.integers(0, 2**32 - 1))
def test_samples_are_short_printable_and_inside(limits, seed):
    shortest, longest = sorted(limits)
    space = SourceText(longest, min_length=shortest, seed=seed)
    sample = space.sample()
    assert sample in space and sample.isascii() and sample.isprintable()
    assert len(sample) <= max(SourceText.SAMPLE_CHARS, shortest)


def test_masks_work_as_in_gymnasium():
    space = SourceText(10, seed=0)
    mask = np.array([character == "a" for character in space.character_list], np.int8)
    assert space.sample(mask=(4, mask)) == "aaaa"


def test_samples_do_not_depend_on_the_hash_seed():
    code = "from pkb_gym.envs.spaces import SourceText; print(SourceText(100, seed=1).sample())"
    headings = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, cwd="/", text=True)
        for seed in ("0", "1")
    }
    assert len(headings) == 1


@settings(max_examples=examples(300))
@given(submitted=st.lists(feedbacks(), max_size=2), value=st.floats(-1e300, 1e300), source=st.text())
def test_every_observation_lies_in_the_space(submitted, value, source):
    episode = Episode(lambda _: value)
    for feedback in submitted:
        episode.record(source, feedback)
    observation = observe("task", episode)
    assert set(observation) == set(SPACE.spaces)
    for name, space in SPACE.items():
        assert observation[name] in space, name
    assert observation["is_timed"] == bool(submitted and submitted[-1].timing is not None)


def test_both_speedups_are_observed():
    episode = Episode(lambda _: 0.0)
    episode.record("x", timed(baseline_us=100.0, speedup=4.0, speedup_low=3.0, captured_us=40.0))
    observation = observe("task", episode)
    assert observation["speedup"].tolist() == [4.0, 3.0, 5.0]
    assert observation["speedup_captured"].tolist() == pytest.approx([1.6, 1.2, 2.0])


def test_numbers_beyond_the_space_are_cut():
    episode = Episode(lambda _: 1e12)
    episode.record("x" * 2**21, timed(baseline_us=1e15, speedup_low=1e12))
    observation = observe("x" * 10**6, episode)
    assert observation in SPACE
    assert observation["best_speedup"].tolist() == observation["best_value"].tolist() == [MAX_RATIO]


@given(feedback=feedbacks())
def test_feedback_text_is_never_empty_nor_too_long(feedback):
    text = feedback_text(feedback)
    assert 0 < len(text) <= MAX_FEEDBACK_CHARS
    headings = {None: "PASSED", Failure.COMPILED_ONLY: "COMPILED, NOT RUN: "}
    assert text.startswith(headings.get(feedback.failure, f"FAILED: {feedback.failure}"))
    assert len(feedback_text(feedback, max_chars=300)) <= 300


@pytest.mark.parametrize("failure", Failure)
def test_every_failure_has_advice(failure):
    assert ADVICE[failure].endswith(".")


def test_feedback_text_puts_the_error_first_and_says_where_it_is_wrong():
    paragraphs = feedback_text(failed("output_mismatch", earned_share=0.5, message="outputs differ")).split("\n\n")
    assert paragraphs[0].splitlines()[:2] == ["FAILED: output_mismatch, after stage run.", "outputs differ"]
    assert "50 of 100 outputs are right" in paragraphs[1]
    assert "rank 0, out (2,) bfloat16, trial 0: 1 of 2 elements differ" in paragraphs[1]


def test_feedback_text_of_a_right_kernel_says_how_fast_and_what_binds():
    text = feedback_text(timed(baseline_us=100, roofline_us=25, speedup_low=2.0))
    assert text.startswith("PASSED: every output of every rank was right, and it is faster than the baseline (2x).")
    assert "candidate 50 us, baseline 100 us; speedup 2, 95 % interval 2 to 2" in text
    assert "25 us per call at the hardware's peaks, bound by the link" in text
    assert "reaches 50 % of it, the baseline 25 %" in text and "No algorithm takes less than 12.5 us." in text


def test_the_compilers_log_is_shown_once():
    log = "kernel.cpp:1:1: error: expected unqualified-id"
    compile_error = failed("compile_error", message=f"it does not compile:\n{log}")
    report = {"duration_s": 1.0, "cached": False, "log": log, "binary_bytes": None}
    feedback = type(compile_error).model_validate(compile_error.model_dump() | {"compile": report})
    assert feedback_text(feedback).count(log) == 1
