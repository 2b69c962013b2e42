"""A real model on a real server writes for a problem, end to end."""

from __future__ import annotations

import json

import pytest

from pkb_gym.cli import main
from pkb_gym.engine.records.attempt_file import read_attempts
from tests.agents.smollm2 import model_folder, served
from tests.packages import needs
from tests.whole_tables import by_make_all

pytestmark = [needs("openai", extra="agents"), needs("transformers", extra="train")]

MAX_TOKENS = 24
"""Of a reply: the model takes up to a second for each on a busy machine."""


class Borrowed:
    """The evaluator of all tests, which a command must not close."""

    def __init__(self, evaluator):
        self.evaluate = evaluator.evaluate

    def close(self):
        pass


@by_make_all
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_plays_a_problem(local_evaluator, tmp_path, monkeypatch, capsys):
    def run(*more):
        words = ["run", "--agent", f"openai:{model}", "--name", "smollm2", "--problems", "AllReduce"]
        words += ["--set", f"max_tokens={MAX_TOKENS}", "--set", "temperature=0", "--style", "brief", "--jobs", "1"]
        words += [
            "--device",
            "cpu",
            "--world-size",
            "2",
            "--until",
            "check",
            "--output",
            str(tmp_path / "run"),
            "--json",
        ]
        status = main([*words, *more], lambda _: Borrowed(local_evaluator))
        return status, json.loads(capsys.readouterr().out)

    model = model_folder()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with served(model, tmp_path / "server.log") as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        status, summary = run()
    assert status == 0 and (summary["complete"], summary["problems"], summary["failed"]) == (1, 1, {})
    attempts = read_attempts(tmp_path / "run" / "results.jsonl")
    assert sorted(attempt.problem for attempt in attempts) == ["AllReduce"]
    for attempt in attempts:
        assert attempt.reply and attempt.agent == "smollm2"
        assert 0 < attempt.tokens.completion <= MAX_TOKENS and attempt.tokens.prompt > 100
        assert attempt.verdict not in ("passed", "infrastructure"), "not with so few tokens"
    # The server is gone, and nothing is left to ask it for.
    status, again = run()
    assert status == 0 and again == summary
