"""Results of agents that do not exist, for measuring what reads results: real texts, invented verdicts and times."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pkb_gym.engine.records.attempt import Attempt, TokenCounts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import CompileReport, Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import catalogue, expert_source, reference_source
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.examples import LAST_STAGE, failed, timed

FAILURES = tuple(name for name in LAST_STAGE if name not in ("infrastructure", "compiled_only"))
NEW_LINES = 0.3
"""Share of a source's lines that come from elsewhere, so that samples of a problem are not copies of each other."""


def synthetic_attempts(agents: int, samples: int, turns: int = 1, seed: int = 0) -> Iterator[Attempt]:
    """Attempts at every problem of the catalogue, by agents of rising skill.

    Args:
        agents: Number of agents, at least 1.
        samples: Number of episodes of each problem and agent, at least 1.
        turns: Number of turns of each episode, at least 1.
        seed: Seed of everything that is drawn.
    """
    draw = random.Random(seed)
    reward = find_reward("default")
    texts = {problem.name: expert_source(problem) or reference_source(problem) for problem in catalogue()}
    lines = [line for text in texts.values() for line in text.splitlines()]
    for agent in range(agents):
        for problem, text in texts.items():
            for sample in range(samples):
                for turn in range(turns):
                    source = _varied(draw, text, lines)
                    feedback = _feedback(draw, (agent + 1 + turn) / (agents + turns + 1), lines)
                    update = {"problem": problem, "source_sha256": source_sha256(source)}
                    feedback = feedback.model_copy(update=update)
                    tokens = draw.randrange(2_000, 20_000)
                    yield Attempt(
                        problem=problem,
                        agent=f"agent {agent + 1}",
                        sample=sample,
                        turn=turn,
                        requested=EvalConfig(),
                        source=source,
                        reply=f"{' '.join(draw.choices(lines, k=8))}\n\n```cpp\n{source}```\n",
                        feedback=feedback,
                        reward=reward(feedback),
                        reward_name="default",
                        tokens=TokenCounts(prompt=10_000, completion=tokens, reasoning=tokens // 2),
                        cost_usd=tokens * 1e-5,
                        reply_s=draw.uniform(5, 60),
                        duration_s=draw.uniform(1, 10),
                    )


def _varied(draw: random.Random, text: str, lines: list[str]) -> str:
    return "".join(f"{draw.choice(lines) if draw.random() < NEW_LINES else line}\n" for line in text.splitlines())


def _feedback(draw: random.Random, skill: float, lines: list[str]) -> Feedback:
    if draw.random() < skill:
        speedup = draw.lognormvariate(0.2, 0.7)
        baseline_us = draw.lognormvariate(4, 1)
        captured_us = baseline_us * draw.uniform(0.6, 1.0)
        return timed(baseline_us, baseline_us * draw.uniform(0.02, 0.5), 0.95 * speedup, speedup, captured_us)
    failure = draw.choice(FAILURES)
    feedback = failed(failure, right_share=draw.random(), message=" ".join(draw.choices(lines, k=2)))
    log = "\n".join(f"kernel.cpp:{draw.randrange(200)}:7: error: {line}" for line in draw.choices(lines, k=12))
    report = CompileReport(duration_s=draw.random(), cached=False, log=log, binary_bytes=None)
    return feedback.model_copy(update={"compile": report}) if failure == "compile_error" else feedback
