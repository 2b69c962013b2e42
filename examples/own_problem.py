"""A problem of your own: a folder that is registered, found by its name, and trained on as the 87 are.

`docs/own_problem/` is the package that the folder is from; `pkb check-problem FOLDER` proves a declaration.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym

import pkb_gym
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.problems.catalogue import expert_source, find_problem

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "own_problem" / "my_pkb_problems" / "sharded_softmax"


def rewards_of(sources: list[str], evaluator: str | Evaluator = "local") -> list[float]:
    """Registers the problem; what the submissions of one episode are paid."""
    env_id = pkb_gym.register_problem(FOLDER)
    env = gym.make(env_id, device="cpu", world_size=2, evaluator=evaluator)
    observation, _ = env.reset(seed=0)
    assert "softmax" in observation["task"]  # the reference, the signature and the rules of this problem
    paid = [float(env.step(source)[1]) for source in sources]
    env.close()
    return paid


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    pkb_gym.register_problem(FOLDER)
    problem = find_problem("ShardedSoftmax")
    print(rewards_of(["def solution(x):\n    return x\n", expert_source(problem) or ""]))
