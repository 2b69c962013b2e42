"""docs/feedback.md is what docs/generate_feedback.py writes, and leaves no field unexplained."""

from __future__ import annotations

import typing

import pytest

from pkb_gym.engine.records.feedback import Failure, Finding, Stage
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS

generator = load_module(DOCS / "generate_feedback.py", "tests.docs.generate_feedback")


def test_the_page_is_fresh():
    assert generator.PAGE == DOCS / "feedback.md"
    fresh = generator.render() == generator.PAGE.read_text(encoding="utf-8")
    assert fresh, "docs/feedback.md is stale: run `python docs/generate_feedback.py`"


@pytest.mark.parametrize("record", generator.records(), ids=lambda record: record.__name__)
def test_every_field_is_explained(record):
    unexplained = [name for name in record.model_fields if not generator.description(record, name)]
    assert not unexplained, f"give {record.__name__}.{', '.join(unexplained)} a docstring"


def test_every_stage_failure_and_finding_is_explained():
    assert set(generator.PRESENT) == set(Stage) and set(generator.docstrings(Stage)) == set(Stage.__members__)
    assert set(generator.REMEDIES) == set(Failure) and set(generator.docstrings(Failure)) == set(Failure.__members__)
    codes = typing.get_args(Finding.model_fields["code"].annotation)
    assert set(generator.FINDINGS) == set(codes)


def test_descriptions_of_the_generator_stand_in_for_missing_docstrings_only():
    fields = {
        f"{record.__name__}.{name}": field
        for record in generator.records()
        for name, field in record.model_fields.items()
    }
    assert set(generator.PLAIN) <= set(fields), "a field that is gone"
    both = [name for name in generator.PLAIN if fields[name].description]
    assert not both, f"{both} have docstrings of their own now: take them out of PLAIN"
