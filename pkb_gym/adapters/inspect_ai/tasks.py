"""The tasks of `pkb export harbor` for Inspect AI, judged by the verifier that lies in their folders.

    pkb export harbor --out tasks --world-size 2
    inspect eval pkb_gym/adapters/inspect_ai/tasks.py -T folder=tasks --model openai/gpt-5

PKB_SERVICE_URL and PKB_TOKEN are the service's. The model submits with the tool `submit` and reads the verdict, up to
`max_turns` times; the score is the best reward. A sample whose every submission met a failure of the service has no
score, which Inspect writes as NaN and leaves out of its metrics.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import tomllib
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import execute_tools, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, tool

REWARDS, ATTEMPTS = "pkb_rewards", "pkb_attempts"
"""Keys of a sample's store: the rewards of what was judged, and the number of submissions."""

AGAIN = "Submit a source with the tool `submit`."


@task
def pkb_kernels(folder: str, max_turns: int = 4) -> Task:
    """One sample for each task folder.

    Args:
        folder: Folder that `pkb export harbor` wrote.
        max_turns: Number of messages of the model, and of submissions, of a sample, at least 1.

    Raises:
        ValueError: The folder holds no task.
        Unjudged: Url or token of the service are not set.
    """
    folders = [each for each in sorted(Path(folder).iterdir()) if (each / "task.toml").exists()]
    if not folders:
        raise ValueError(f"{folder} holds no task; `pkb export harbor --out {folder}` writes them")
    _judge_of(folders[0]).service()
    samples = [_sample(each) for each in folders]
    return Task(dataset=MemoryDataset(samples, name="pkb"), solver=submissions(max_turns), scorer=best_reward())


@solver
def submissions(max_turns: int) -> Solver:
    """Lets the model submit until its turns are used up or it sends no further message."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001  # the protocol of solvers
        model, tools = get_model(), [submit(Path(state.metadata["folder"]), state, max_turns)]
        for _ in range(max_turns):  # not submissions: a call with wrong arguments makes none
            state.output = await model.generate(state.messages, tools=tools)
            state.messages.append(state.output.message)
            if not state.output.message.tool_calls:
                break
            state.messages.extend((await execute_tools(state.messages, tools)).messages)
        return state

    return solve


@tool
def submit(folder: Path, state: TaskState, max_turns: int) -> Tool:
    """The tool of one sample, for so many submissions."""

    async def execute(source: str) -> str:
        """Compile, check and time a kernel on all ranks.

        Args:
            source: The complete source file of the kernel.
        """
        if (attempts := state.store.get(ATTEMPTS, 0)) >= max_turns:
            return f"There were {max_turns} submissions; no more are judged."
        state.store.set(ATTEMPTS, attempts + 1)
        judge = _judge_of(folder)
        request = json.loads((folder / "tests" / "request.json").read_text(encoding="utf-8"))
        try:
            judged = await asyncio.to_thread(judge.judge, request, source)
        except judge.Unjudged as error:
            return f"This submission was not judged, which is no fault of it: {error}"
        feedback, reward = judged["feedback"], judged["reward"]
        if reward is None:
            return f"This submission was not judged, which is no fault of it: {feedback['message']}"
        state.store.set(REWARDS, [*state.store.get(REWARDS, []), reward])
        return f"{feedback['failure'] or 'passed'}: {feedback['message']}\nreward {reward:.3f}"

    return execute


@scorer(metrics=[mean(), stderr()])
def best_reward() -> Scorer:
    """The best reward of a sample: 0 without a submission, no score where none of them was judged."""

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001  # the protocol of scorers
        rewards, attempts = state.store.get(REWARDS, []), state.store.get(ATTEMPTS, 0)
        if attempts and not rewards:
            return Score(value=math.nan, explanation="no submission was judged", reason="infrastructure")
        return Score(
            value=max(rewards, default=0.0), explanation=f"{attempts} submissions", metadata={"rewards": rewards}
        )

    return score


def _sample(folder: Path) -> Sample:
    config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    text = (folder / "instruction.md").read_text(encoding="utf-8").partition("\n## Submission")[0]
    metadata = {"folder": str(folder), "category": config["metadata"]["category"]}
    return Sample(input=f"{text}\n{AGAIN}", id=config["metadata"]["problem"], metadata=metadata)


def _judge_of(folder: Path) -> Any:  # noqa: ANN401  # a module
    """The verifier of a task folder, which posts a source to the service."""
    spec = importlib.util.spec_from_file_location("pkb_harbor_judge", folder / "tests" / "judge.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
