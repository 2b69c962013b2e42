"""docs/feedback.md explains every stage, failure and finding, its code runs, and every field has a description."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Finding, Stage
from pkb_gym.envs import evaluator_registry
from tests.docs.pages import DOCS

PAGE = (DOCS / "feedback.md").read_text(encoding="utf-8")


def records(found: type[BaseModel] = Feedback) -> Iterator[type[BaseModel]]:
    """A record and those in its fields."""
    yield found
    for field in found.model_fields.values():
        yield from _records_in(field.annotation)


def _records_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from records(annotation)
    for part in typing.get_args(annotation):
        yield from _records_in(part)


@pytest.mark.parametrize("record", dict.fromkeys(records()), ids=lambda record: record.__name__)
def test_every_field_is_explained(record):
    requested = EvalConfig.model_fields if record is ResolvedConfig else {}
    fields = {**record.model_fields, **{name: field for name, field in requested.items() if field.description}}
    unexplained = [name for name in record.model_fields if not fields[name].description]
    assert not unexplained, f"give {record.__name__}.{', '.join(unexplained)} a docstring"


def test_every_stage_failure_and_finding_is_explained():
    codes = typing.get_args(Finding.model_fields["code"].annotation)
    for table, names in {"stage": Stage, "failure": Failure, "code": codes}.items():
        (rows,) = re.findall(rf"^\| {table} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
        assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == [str(name) for name in names]


def test_fields_that_the_page_names_exist():
    fields = {name for record in records() for name in (*record.model_fields, *vars(record))}
    (rows,) = re.findall(r"^\| question \| answer \|\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    named = re.findall(r"`(?:feedback\.)?([a-z_.]+)`", rows)
    assert len(named) > 20 and not {part for name in named for part in name.split(".")} - fields


def test_the_code_runs(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(evaluator_registry._started, (os.getpid(), "local"), evaluator)
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/feedback.md", "exec"), {})
