"""Rewards of your own: a plain function, and a sum of components.

On the command line: `pkb eval AllReduce kernel.cpp --reward examples.custom_reward:squared_speedup`.
"""

from __future__ import annotations

import argparse

import gymnasium as gym

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.rewards import Correctness, LogSpeedup, Reward
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right


def squared_speedup(feedback: Feedback) -> float | None:
    """Pays right kernels for the square of their speedup; None where this machine could not judge one."""
    if is_infrastructure_failure(feedback):
        return None
    return (feedback.speedup or 0.0) ** 2 if is_right(feedback) else 0.0


composed = 0.2 * Correctness() + LogSpeedup().clip(0.0, 2.0)
"""Its parts stand in `info["reward_parts"]`, and it is recorded and pickled as any other."""


def rewards_of(source: str, rewards: list[Reward], evaluator: str | Evaluator = "local") -> list[float]:
    """The values of each reward for a source."""
    paid = []
    for reward in rewards:
        env = gym.make("PKB/AllReduce-v0", device="cpu", world_size=2, evaluator=evaluator, reward=reward)
        env.reset(seed=0)
        paid.append(float(env.step(source)[1]))
        env.close()
    return paid


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(rewards_of(expert_source(find_problem("AllReduce")) or "", [squared_speedup, composed]))
