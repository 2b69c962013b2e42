"""Faults of a cluster while it judges: a client, a gang or a node is killed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection

from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.records.feedback import Feedback
from tests.cluster.cases import CASES, Case
from tests.cluster.local_cluster import LocalCluster, placed_groups, ray_processes
from tests.cluster.on_cluster import NODE_CPUS, PROBLEM
from tests.waiting import PATIENCE_S, until

POOL = "faults"
ADDRESS = f"ray?pool={POOL}&shared_most=1&checks_per_gang=1&exclusive_most=1&cpus_per_rank=0.6&shrink_s=600&idle_s=45"
"""A client that is silent for `idle_s` counts as gone; one that waits asks again every 30 s."""


def planned(evaluations: int) -> list[tuple[Case, int]]:
    """Case and seed of each evaluation."""
    return [(CASES[number % len(CASES)], 1 + number // len(CASES)) for number in range(evaluations)]


def submit_and_die(cluster: LocalCluster, evaluations: int) -> None:
    """Has a process of its own submit the evaluations, and kills it when it has."""
    spawn = multiprocessing.get_context("spawn")  # a fork would share this process's connection
    mine, its = spawn.Pipe()
    process = spawn.Process(target=_first_client, args=(cluster.address, evaluations, its), daemon=True)
    process.start()
    try:
        if not mine.poll(PATIENCE_S) or mine.recv() != evaluations:
            raise RuntimeError("the first client did not submit its evaluations")
    finally:
        process.kill()
        process.join()


def _first_client(ray_address: str, evaluations: int, parent: Connection) -> None:
    os.environ["RAY_ADDRESS"] = ray_address
    client = RayEvaluator(ADDRESS)
    for case, seed in planned(evaluations):
        client.submit(PROBLEM, case.source, case.config(seed))
    parent.send(evaluations)
    parent.poll(None)  # until it is killed


def agrees(found: Feedback, expected: Feedback, seed: int) -> bool:
    """Whether a verdict is the local evaluator's, which had another seed."""
    of_candidate = ("failure", "stage", "failed_rank", "source_sha256", "problem_sha256")
    same = all(getattr(found, name) == getattr(expected, name) for name in of_candidate)
    return same and found.config == expected.config.model_copy(update={"seed": seed})


def wait_for_answers(waiting: Sequence[Future[Feedback]], number: int) -> None:
    """Waits until so many evaluations are answered."""
    until(lambda: sum(each.done() for each in waiting) >= number, "no answers come")


def kill_gang() -> None:
    """Kills one that runs a step: Ray shows it in the title of the process."""
    until(lambda: ray_processes("ray::GangActor.step"), "no gang runs")
    for gang in ray_processes("ray::GangActor.step")[:1]:
        gang.kill()


def kill_node(cluster: LocalCluster) -> None:
    """Kills a node with a gang on it, and adds another."""

    def with_gang() -> list[object]:
        places = set(placed_groups(POOL).values())
        return [node for node in cluster.nodes if node.node_id in places]

    until(with_gang, "no node has a gang")
    cluster.kill_node(with_gang()[0])
    cluster.add_node(cpus=NODE_CPUS)


def left_over() -> list[str]:
    """Placement groups and processes of gangs that do not go away."""

    def left() -> list[str]:
        return [*placed_groups(POOL), *(str(process) for process in ray_processes("ray::GangActor"))]

    try:
        until(lambda: not left(), "something stays behind")
    except TimeoutError:
        return left()
    return []
