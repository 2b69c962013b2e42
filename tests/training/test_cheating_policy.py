"""A policy that only ever cheats, judged by the real evaluator, earns the floor and learns nothing."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from datasets import Dataset
from safetensors.torch import load_file

from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards import Ladder
from pkb_gym.rewards.examples import failed
from pkb_gym.rewards.presets import find_reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.results.archive import Archive
from tests.engine.candidates import FOLDER, read
from tests.training.conversations import prompt, submission
from tests.training.scripted import config, follow, row, run, submit, write_tiny_policy

STEPS = 3
"""Each of the two submissions of a step is the next of the list below: all come, and the first twice."""

CAUGHT = (
    "forges_done.py",
    "floods_the_connection.py",
    "half_of_it_once_timed.py",
    "sends_junk.py",
    "memoises_once_timed.cpp",
)
"""What is found out earns the floor, whatever it seemed to achieve."""

WRONG = ("claims_success.py", "forges_infrastructure.py", "patches_the_judges.py")
"""What lies about itself to no avail earns what it does without the lie, and no infrastructure failure."""


@pytest.mark.slow
def test_a_cheating_policy_earns_the_floor(monkeypatch, local_evaluator, tmp_path):
    sources = [read(FOLDER / "hostile" / name).source for name in CAUGHT]
    corpus = Dataset.from_list([{"messages": [*prompt("AllReduce"), submission(source)]} for source in sources])
    policy = write_tiny_policy(corpus, tmp_path / "policy")
    cheats = itertools.cycle(sources)
    follow(monkeypatch, lambda _: submit(next(cheats)))
    schedule = EvaluationSchedule(local_evaluator, HostGroup(), pausable=local_evaluator)
    settings = config(tmp_path / "run", max_steps=STEPS, max_completion_length=2000)
    try:
        trainer = run(policy, local_evaluator, settings, [row(language="auto")], max_turns=1, schedule=schedule)
    finally:
        local_evaluator.resume()
    records = read_jsonl(tmp_path / "run" / "rollouts.jsonl")
    others = [record for record in records if record["failure"] != "integrity"]
    assert not others, [(record["source"][:100], record["failure"], record["stage"]) for record in others]
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == STEPS
    assert all(entry["reward"] == pytest.approx(Ladder().breach) for entry in logged)
    assert all(entry["correct"] == 0 and entry["submissions"] == 2 for entry in logged)
    assert not any(entry[f"faults/{kind}"] for entry in logged for kind in ("infrastructure", "crashed", "late"))
    assert {record["source"] for record in records} == set(sources)
    assert Archive.read(tmp_path / "run" / "archive.jsonl").kernels() == []
    before, after = (load_file(folder / "model.safetensors") for folder in (policy, tmp_path / "run"))
    assert all(before[name].equal(after[name]) for name in before)


@pytest.mark.slow
def test_lies_earn_no_more_than_an_honest_failure(local_evaluator):
    evaluator = AsyncEvaluator(local_evaluator)

    async def all_of_them():
        read_ones = [read(FOLDER / "hostile" / name) for name in WRONG]
        return await asyncio.gather(
            *(evaluator.evaluate(find_problem("AllReduce"), one.source, one.config) for one in read_ones)
        )

    verdicts = asyncio.run(all_of_them())
    evaluator.close()
    reward = find_reward("default")
    honest = reward(failed("output_mismatch"))
    assert all(verdict.fault is None and reward(verdict.feedback) <= honest for verdict in verdicts)
