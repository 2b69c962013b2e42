"""Near names, for errors."""

from __future__ import annotations

import doctest

import pytest

from pkb_gym.engine.records import config_request
from pkb_gym.engine.support import suggestions
from pkb_gym.engine.support.suggestions import did_you_mean


@pytest.mark.parametrize("module", [suggestions, config_request])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_case_does_not_matter_and_the_known_spelling_is_shown():
    assert did_you_mean("allreduce", ["AllReduce", "Gather"]) == " Did you mean 'AllReduce'?"


def test_a_synonym_of_what_is_not_known_here_is_no_hint():
    assert did_you_mean("gpu", ["robust", "published"], {"gpu": "cuda"}) == ""
