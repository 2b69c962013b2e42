"""Evaluation through a service, which owns the devices of a machine for all of its clients.

pkb serve --port 8900 --results judged.jsonl
PKB_TOKEN=$(cat ~/.cache/pkb-gym/serve-token) python examples/service.py http://127.0.0.1:8900
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.rewards import find_reward


def judge(url: str, sources: list[str], token: str | None = None) -> list[tuple[str, float | None]]:
    """The verdict and the reward of each source for AllReduce; the token is that of PKB_TOKEN by default."""
    problem, reward = find_problem("AllReduce"), find_reward("default")
    config = EvalConfig(device="cpu", world_size=2, size="tiny")
    with RemoteEvaluator(url, token) as evaluator, ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda source: evaluator.evaluate(problem, source, config), sources))
    return [(str(feedback.failure or "passed"), reward(feedback)) for feedback in found]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", help="of a service that runs")
    print(judge(parser.parse_args().url, [expert_source(find_problem("AllReduce")) or "", "int solution;"]))
