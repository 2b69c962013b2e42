"""Harbor: its own trials, agents and verifier on exported tasks; kernels are judged by the service of all doors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from harbor.agents.base import BaseAgent
from harbor.lint import lint_task
from harbor.lint.models import LintRule
from harbor.models.task.task import Task
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from tests.doors import contract
from tests.doors.exported import export_tasks

SIDE_BY_SIDE = 8
AT_A_TIME = asyncio.Semaphore(SIDE_BY_SIDE)


class SubmittingAgent(BaseAgent):
    """Writes the submission that its model's name names: "Problem-case"."""

    @staticmethod
    def name() -> str:
        return "submitting"

    def version(self) -> str:
        return "1"

    async def setup(self, environment) -> None:
        pass

    async def run(self, instruction, environment, context) -> None:
        problem, case = str(self.model_name).split("-")
        assert contract.find(problem, case).task.split("\n", 1)[0] in instruction
        (source := self.logs_dir / "solution").write_text(contract.find(problem, case).source)
        await environment.upload_file(source, "/app/solution.cpp")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """All 87."""
    return export_tasks(tmp_path_factory.mktemp("harbor") / "tasks")


@pytest.fixture(autouse=True)
def service(monkeypatch):
    monkeypatch.setenv("PKB_SERVICE_URL", contract.url())


def folder_of(tasks: Path, problem: str) -> Path:
    return next(each for each in tasks.iterdir() if Task(each).config.metadata["problem"] == problem)


async def trial(folder: Path, trials: Path, agent: AgentConfig) -> TrialResult:
    environment = EnvironmentConfig(import_path="tests.doors.harbor.bubblewrap:BubblewrapEnvironment")
    config = TrialConfig(task=TaskConfig(path=folder), trials_dir=trials, agent=agent, environment=environment)
    async with AT_A_TIME:
        return await (await Trial.create(config)).run()


def test_every_task_is_one_of_harbor(tasks):
    found = [Task(folder) for folder in sorted(tasks.iterdir())]
    assert len({task.name for task in found}) == 87
    findings = {(each.rule, each.message) for task in found[::29] for each in lint_task(task.task_dir)}
    assert {rule for rule, _ in findings} <= {LintRule.UNPINNED_IMAGE}, findings


def test_the_oracle_passes_and_nothing_scores_0(tasks, tmp_path):
    folder = folder_of(tasks, "AllReduce")

    async def both():
        return await asyncio.gather(*(trial(folder, tmp_path, AgentConfig(name=name)) for name in ("oracle", "nop")))

    oracle, nop = asyncio.run(both())
    assert oracle.exception_info is nop.exception_info is None
    expert = contract.find("AllReduce", "expert")
    assert oracle.verifier_result.rewards["passed"] == 1 and oracle.verifier_result.rewards["reward"] == expert.value
    assert nop.verifier_result.rewards == {"reward": 0.0, "passed": 0, "submitted": 0}


def test_the_contract(tasks, tmp_path):
    """All submissions side by side: the reward of each is its own, and a failure of the service is no score."""
    agent = "tests.doors.harbor.test_door:SubmittingAgent"
    folders = {problem: folder_of(tasks, problem) for problem in contract.PROBLEMS}
    chosen = contract.expected()

    async def all_of_them():
        return await asyncio.gather(
            *(
                trial(
                    folders[each.problem],
                    tmp_path,
                    AgentConfig(import_path=agent, model_name=each.id, skip_model_parsing=True),
                )
                for each in chosen
            )
        )

    for each, result in zip(chosen, asyncio.run(all_of_them()), strict=True):
        if each.case == "infrastructure":
            assert result.verifier_result is None, each.id
            assert result.exception_info.exception_type == "RewardFileNotFoundError", each.id
            continue
        assert result.exception_info is None, (each.id, result.exception_info)
        rewards = result.verifier_result.rewards
        assert (rewards["reward"], rewards.get("speedup", 0)) == (each.value, each.speedup), each.id
        assert rewards["passed"] == (each.failure is None) and rewards["submitted"] == 1
        feedback = json.loads(next(tmp_path.glob(f"{result.trial_name}/verifier/feedback.json")).read_text())
        assert feedback["failure"] == each.failure


def test_the_agent_s_container_has_no_token(tasks):
    for folder in tasks.iterdir():
        assert not Task(folder).config.environment.env
