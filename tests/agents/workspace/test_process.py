"""The process of a program in its workspace: its output, its reports, its end from another thread."""

from __future__ import annotations

import json

import pytest

from pkb_gym.agents.protocol import AgentError
from pkb_gym.agents.workspace import process as of_process
from pkb_gym.engine.records.attempt import TokenCounts
from tests.waiting import until


@pytest.fixture
def start(programs, tmp_path):
    started = []

    def run(script):
        provider = programs.provider(script)
        process = provider.start(tmp_path, tmp_path / "output", "solution.cpp", {})
        started.append((provider, process))
        return provider, process

    yield run
    for provider, process in started:
        provider.end(process)


def test_of_much_output_the_last_is_kept(start, monkeypatch):
    monkeypatch.setattr(of_process, "MAX_TRANSCRIPT_CHARS", 10)
    provider, process = start("seq 100000; echo the end")
    until(lambda: process.exit_status is not None)
    assert process.take_transcript() == "0\nthe end\n" and process.take_transcript() == ""
    provider.end(process)
    assert process.take_transcript() == ""


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"usage": 5}',
        '{"usage": {"input_tokens": -1, "output_tokens": 0}}',
        '{"usage": {"input_tokens": 1}}',
        '{"total_cost_usd": "much"}',
        '{"total_cost_usd": NaN}',
        "[" * 9999,
    ],
)
def test_a_line_that_reports_nothing_is_output_alone(start, line):
    _, process = start(f"echo '{line}'")
    until(lambda: process.exit_status is not None)
    assert process.take_transcript() == f"{line}\n" and (process.tokens, process.cost_usd) == (None, None)


def test_a_report_without_a_line_break_is_read_at_the_end(start):
    report = json.dumps({"usage": {"input_tokens": 1, "output_tokens": 2, "unknown": {}}})
    provider, process = start(f"printf '{report}'")
    until(lambda: process.exit_status is not None)
    provider.end(process)
    assert process.tokens == TokenCounts(prompt=1, completion=2)


def test_closing_the_provider_ends_programs_and_starts_no_other(start, tmp_path):
    provider, process = start("sleep 600")
    provider.close()
    until(lambda: process.exit_status is not None)
    with pytest.raises(AgentError, match="the run has ended"):
        provider.start(tmp_path, tmp_path / "output", "solution.cpp", {})


def test_a_program_that_cannot_be_started_is_the_agents_failure(programs, tmp_path):
    provider = programs.provider("true")
    with pytest.raises(AgentError, match="could not be started"):
        provider.start(tmp_path / "no folder", tmp_path / "output", "solution.cpp", {})


def test_files_have_a_bounded_size(start, monkeypatch):
    monkeypatch.setattr(of_process, "_LIMITED", (*of_process._LIMITED[:-1], "8"))
    _, process = start("yes | head -c 100000")
    until(lambda: process.exit_status is not None)
    assert len(process.take_transcript()) <= 4096
