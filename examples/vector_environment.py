"""Several submissions side by side: compiled in parallel, timed in turns, by one evaluator."""

from __future__ import annotations

import argparse

import gymnasium as gym

from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.problems.catalogue import expert_source, find_problem


def step(sources: list[str], evaluator: str | Evaluator = "local") -> list[tuple[float, str]]:
    """The reward and the verdict of each source."""
    envs = gym.make_vec("PKB/AllReduce-v0", num_envs=len(sources), device="cpu", world_size=2, evaluator=evaluator)
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(sources)
    envs.close()
    return [
        (float(reward), str(found.failure or "passed"))
        for reward, found in zip(rewards, infos["feedback"], strict=True)
    ]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(step([expert_source(find_problem("AllReduce")) or "", "int solution;"]))
