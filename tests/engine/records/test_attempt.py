"""The one format of results: what is written is read back, and what is none is named by file, line and field."""

from __future__ import annotations

import json

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt, ChatMessage, TokenCounts, request_key
from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.examples import failed, timed

FULL = Attempt(
    problem="AllReduce",
    sample=2,
    turn=1,
    file="all_reduce.cpp",
    requested=EvalConfig(world_size=2, size={"M": 4, "pg": ((0, 1),)}),
    request_key="0" * 64,
    source="// \ud800 \u2028 \r\n",
    reply="```cpp\n// αβγ\n```",
    messages=(ChatMessage(role="user", content="Write AllReduce."),),
    feedback=timed(),
    reward=1.0,
    reward_name="default",
    tokens=TokenCounts(prompt=5, completion=7),
    duration_s=0.5,
)
LITTLE = Attempt(problem="AllReduce", requested=EvalConfig(), reply="I do not know.")


def write(path, *attempts):
    with AttemptFile(path, writer="test", option="--output") as file:
        for attempt in attempts:
            file.append(attempt)


def test_what_was_written_is_read(tmp_path):
    """Lone surrogates too: a model's text may hold anything."""
    path = tmp_path / "r.jsonl"
    write(path, FULL, LITTLE)
    assert len(path.read_bytes().splitlines()) == 2
    assert read_attempts(path) == [FULL, LITTLE]
    with AttemptFile(path, writer="test", option="--output") as file:
        assert file.attempts == [FULL, LITTLE]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    path = tmp_path / "r.jsonl"
    write(path, FULL, LITTLE)
    path.write_bytes(path.read_bytes()[:-10])
    assert read_attempts(path) == [FULL]
    write(path, LITTLE)
    assert read_attempts(path) == [FULL, LITTLE]


def wrong(**changes):
    content = json.loads(LITTLE.to_line()) | changes
    return json.dumps({name: value for name, value in content.items() if value != "left out"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON: "),
        ("[1]", "expected an attempt as a JSON object, got list"),
        (wrong(problem="left out"), "problem is missing"),
        (wrong(trun=3), "trun is no field of an attempt"),
        (wrong(schema_version=7), "schema_version: Input should be 1, got '7'"),
        (wrong(turn="one"), "turn: Input should be a valid integer.*, got 'one'"),
        (wrong(requested={"device": "gpu"}), "requested.device: Input should be 'auto', .* or 'emulated', got 'gpu'"),
        (wrong(source=5), "source: Value error, expected text, got int, got '5'"),
    ],
)
def test_what_is_no_attempt_is_named_with_file_and_line(tmp_path, line, message):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{FULL.to_line()}\n{line}\n")
    with pytest.raises(ConfigError, match=rf"r.jsonl, line 2, is no result of this version: {message}") as raised:
        read_attempts(path)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="--output names another file"):
        AttemptFile(path, writer="test", option="--output")


def test_the_configuration_is_read_by_its_earlier_name_too():
    line = FULL.to_line()
    assert '"requested"' in line and Attempt.from_line(line.replace('"requested"', '"asked"')) == FULL


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.jsonl: No such file"):
        read_attempts(tmp_path / "nowhere.jsonl")


def test_verdicts():
    submitted = LITTLE.model_copy(update={"source": "x"})
    assert LITTLE.verdict == "no_submission" and submitted.verdict == "infrastructure"
    found = [timed(), failed("compiled_only"), failed("deadlock")]
    assert [submitted.model_copy(update={"feedback": one}).verdict for one in found] == [
        "passed",
        "compiled_only",
        "deadlock",
    ]


def test_equal_requests_share_a_key():
    assert request_key("AllReduce", "x", timed()) == request_key("AllReduce", "x", failed("deadlock"))
    assert request_key("AllReduce", "x", timed()) != request_key("AllReduce", "y", timed())
