"""Records from any JSON: a record, or the one error that says so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.records.service import ErrorReport, EvaluationRequest, EvaluationState, PauseState, ServiceStatus
from pkb_gym.engine.records.timing import Timing
from tests.rewards.strategies import feedbacks

RECORDS: tuple[type[Record], ...] = (
    *(EvalConfig, ResolvedConfig, Feedback, Timing, Roofline, Attempt),
    *(EvaluationRequest, EvaluationState, PauseState, ServiceStatus, ErrorReport),
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 80), 1 << 80),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(["time", "cpu", "AllReduce", "infrastructure", "native", "\ud800"]),
)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def names(kind: type[Record]) -> st.SearchStrategy[dict[str, object]]:
    """Objects with the fields of a record, or nearly, that hold anything."""
    fields = st.sampled_from([*kind.model_fields, "another"])
    return st.dictionaries(fields, ANYTHING, max_size=len(kind.model_fields) + 1)


@pytest.mark.parametrize("kind", RECORDS)
@given(data=st.data())
def test_any_json_is_a_record_or_a_validation_error(kind: type[Record], data: st.DataObject) -> None:
    text = json.dumps(data.draw(st.one_of(ANYTHING, names(kind))))
    try:
        found = kind.model_validate_json(text)
    except ValidationError:
        return
    assert isinstance(found, kind)


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b'"' + b"\\ud800" + b'"', b"NaN"]
)
def test_what_is_no_json_is_a_validation_error(kind: type[Record], text: bytes) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate_json(text)


@given(feedback=feedbacks(), data=st.data())
def test_a_record_with_one_value_replaced_is_a_record_or_a_validation_error(
    feedback: Feedback, data: st.DataObject
) -> None:
    content = json.loads(feedback.model_dump_json())
    place = content
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not (isinstance(place[key], dict) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(ANYTHING)
    try:
        found = Feedback.model_validate_json(json.dumps(content))
    except ValidationError:
        return
    assert Feedback.model_validate_json(found.model_dump_json()) == found
