"""Right, wrong, hanging and crashing kernels on a cluster whose parts die: every verdict is the local evaluator's.

    python -m benchmarks.ray_faults [--evaluations N] [--budget-s S] [--out FOLDER]

Three nodes on this machine, in rounds of a new cluster each. A first client submits a whole round and is killed; a
second one asks for the same. Meanwhile gangs are killed, and nodes with all their processes; each node is replaced.
Counted: verdicts that differ from the local evaluator's, evaluations that were lost or taken up twice, and what is left
behind. A run can be cut off by `--budget-s`; a further one of the same commit goes on behind the last whole round.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.common import RESULTS, make_parser, save, unfinished
from benchmarks.ray_cluster import LocalCluster, local_cluster, placed_groups, ray_processes, wait_until
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig, Until
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem

CANDIDATES = Path(__file__).resolve().parent.parent / "tests" / "candidates"
PROBLEM = find_problem("AllReduce")
POOL = "faults"
ADDRESS = f"ray?pool={POOL}&shared_most=1&checks_per_gang=1&exclusive_most=1&shrink_s=600&idle_s=45"
"""A client that is silent for `idle_s` counts as gone; one that waits asks again every 30 s."""

HEAD_CPUS = 1
"""Room for compiles alone: gangs take two."""

NODE_CPUS = 4
HANGS_S = 1.5
"""Deadline of kernels that hang."""

PATIENCE_S = 300.0


@dataclass(frozen=True)
class Case:
    """A kernel, and the failure that is expected; None where it is right.

    Attributes:
        name: of it.
        file: below tests/candidates.
        failure: expected.
        last: stage that is asked for.
    """

    name: str
    file: str
    failure: Failure | None
    last: Until = "check"

    @property
    def source(self) -> str:
        """Its text."""
        return (CANDIDATES / self.file).read_text(encoding="utf-8")

    def config(self, seed: int = 0) -> EvalConfig:
        """The request under a seed."""
        timeout_s = HANGS_S if self.failure is Failure.TIMEOUT else None
        return EvalConfig(device="cpu", world_size=2, size="tiny", until=self.last, seed=seed, timeout_s=timeout_s)


CASES = (
    Case("right", "good/waits_for_peers.cpp", None, last="time"),
    Case("wrong", "broken/never_written.cpp", Failure.OUTPUT_MISMATCH, last="time"),
    Case("hanging", "broken/endless_loop.cpp", Failure.TIMEOUT),
    Case("crashing", "broken/segfault_on_one_rank.cpp", Failure.RUNTIME_ERROR),
    Case("broken", "broken/syntax_error.cpp", Failure.COMPILE_ERROR),
    Case("unloadable", "broken/no_solution.cpp", Failure.LOAD_ERROR),
)


@dataclass(frozen=True)
class FaultRound:
    """Result of one round.

    Attributes:
        evaluations: of it.
        verdicts: failure or "passed" -> number.
        wrong: descriptions of verdicts that differ from the local evaluator's.
        submitted, finished, joined: of the pool: all, all, and all once more.
        clients_killed, gangs_killed, nodes_killed: faults.
        retries: steps that were taken again.
        infrastructure_faults: evaluations that came to nothing.
        left_over: placement groups and processes, after the last client has gone.
        wall_s: from the first request to the last answer.
    """

    evaluations: int
    verdicts: dict[str, int]
    wrong: list[str]
    submitted: int
    finished: int
    joined: int
    clients_killed: int
    gangs_killed: int
    nodes_killed: int
    retries: int
    infrastructure_faults: int
    left_over: list[str]
    wall_s: float


def judged_locally(evaluator: Evaluator) -> dict[str, Feedback]:
    """Case -> what the local evaluator finds."""
    return {case.name: evaluator.evaluate(PROBLEM, case.source, case.config()) for case in CASES}


def drill(
    cluster: LocalCluster,
    expected: dict[str, Feedback],
    evaluations: int,
    faults: Sequence[str],
    first: int = 0,
) -> FaultRound:
    """Runs one round on a cluster that this process is connected to.

    Args:
        cluster: with two nodes beside the head.
        expected: of `judged_locally`.
        evaluations: a multiple of the number of cases is even.
        faults: "gang" or "node", spread evenly over the answers.
        first: number of the first evaluation: other rounds have other seeds.
    """
    plan = planned(first, evaluations)
    began = time.monotonic()
    submit_and_die(cluster, first, evaluations)
    client = RayEvaluator(ADDRESS, timeout_s=24 * 3600.0)
    with ThreadPoolExecutor(min(evaluations, 256)) as threads:
        waiting = [threads.submit(client.evaluate, PROBLEM, case.source, case.config(seed)) for case, seed in plan]
        for number, fault in enumerate(faults, 1):
            _wait_for_answers(waiting, evaluations * number // (len(faults) + 2))
            FAULTS[fault](cluster)
        found = [future.result() for future in waiting]
    wall_s = time.monotonic() - began
    status = client.status()
    client.close()
    return FaultRound(
        evaluations=evaluations,
        verdicts=dict(Counter(str(each.failure or "passed") for each in found)),
        wrong=[
            f"{case.name}, seed {seed}: {feedback.failure} at {feedback.stage}: {feedback.message}"
            for (case, seed), feedback in zip(plan, found, strict=True)
            if not _agrees(feedback, expected[case.name], seed)
        ],
        submitted=status.submitted,
        finished=status.finished,
        joined=status.joined,
        clients_killed=1,
        gangs_killed=list(faults).count("gang"),
        nodes_killed=list(faults).count("node"),
        retries=status.retries,
        infrastructure_faults=status.infrastructure_faults,
        left_over=_left_over(),
        wall_s=wall_s,
    )


def planned(first: int, evaluations: int) -> list[tuple[Case, int]]:
    """Case and seed of each evaluation of a round."""
    return [(CASES[number % len(CASES)], 1 + number // len(CASES)) for number in range(first, first + evaluations)]


def submit_and_die(cluster: LocalCluster, first: int, evaluations: int) -> None:
    """Has a process of its own submit a round, and kills it when it has."""
    spawn = multiprocessing.get_context("spawn")  # a fork would share this process's connection
    mine, its = spawn.Pipe()
    process = spawn.Process(target=_first_client, args=(cluster.address, first, evaluations, its), daemon=True)
    process.start()
    try:
        if not mine.poll(PATIENCE_S) or mine.recv() != evaluations:
            raise RuntimeError("the first client did not submit its evaluations")
    finally:
        process.kill()
        process.join()


def _first_client(ray_address: str, first: int, evaluations: int, parent: Connection) -> None:
    os.environ["RAY_ADDRESS"] = ray_address
    client = RayEvaluator(ADDRESS)
    for case, seed in planned(first, evaluations):
        client.submit(PROBLEM, case.source, case.config(seed))
    parent.send(evaluations)
    parent.poll(None)  # until it is killed


def _agrees(found: Feedback, expected: Feedback, seed: int) -> bool:
    of_candidate = ("failure", "stage", "failed_rank", "source_sha256", "problem_sha256")
    same = all(getattr(found, name) == getattr(expected, name) for name in of_candidate)
    return same and found.config == expected.config.model_copy(update={"seed": seed})


def _wait_for_answers(waiting: Sequence[Future[Feedback]], number: int) -> None:
    wait_until(lambda: sum(each.done() for each in waiting) >= number, "no answers come", PATIENCE_S)


def _kill_gang(_: LocalCluster) -> None:
    """One that runs a step: Ray shows it in the title of the process."""
    wait_until(lambda: ray_processes("ray::GangActor.step"), "no gang runs", PATIENCE_S)
    for gang in ray_processes("ray::GangActor.step")[:1]:
        gang.kill()


def _kill_node(cluster: LocalCluster) -> None:
    def with_gang() -> list[object]:
        places = set(placed_groups(POOL).values())
        return [node for node in cluster.nodes if node.node_id in places]

    wait_until(with_gang, "no node has a gang", PATIENCE_S)
    cluster.kill_node(with_gang()[0])
    cluster.add_node(cpus=NODE_CPUS)


FAULTS: dict[str, Callable[[LocalCluster], None]] = {"gang": _kill_gang, "node": _kill_node}


def _left_over() -> list[str]:
    def left() -> list[str]:
        return [*placed_groups(POOL), *(str(process) for process in ray_processes("ray::GangActor"))]

    try:
        wait_until(lambda: not left(), "something stays behind", PATIENCE_S)
    except TimeoutError:
        return left()
    return []


def summary(rounds: Sequence[FaultRound]) -> dict[str, object]:
    """The result: sums over all rounds, and each round."""
    verdicts: Counter[str] = Counter()
    for outcome in rounds:
        verdicts.update(outcome.verdicts)
    counts = ("evaluations", "submitted", "finished", "joined", "clients_killed", "gangs_killed", "nodes_killed")
    sums = {name: sum(getattr(outcome, name) for outcome in rounds) for name in (*counts, *COSTS)}
    lists = {name: [each for outcome in rounds for each in getattr(outcome, name)] for name in ("wrong", "left_over")}
    return sums | lists | {"verdicts": dict(verdicts), "rounds": [asdict(outcome) for outcome in rounds]}


COSTS = ("retries", "infrastructure_faults", "wall_s")


def main() -> None:
    """Runs rounds until the number or the budget is reached, and saves after each."""
    parser = make_parser("ray_faults", __doc__)
    parser.add_argument("--evaluations", type=int, default=500, help="in all runs together (default: 500)")
    parser.add_argument("--round", type=int, default=100, help="evaluations of a round (default: 100)")
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=sorted(FAULTS),
        default=["gang", "node", "gang"],
        help="of a round, in their order (default: gang node gang)",
    )
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    args = parser.parse_args()
    began = time.monotonic()
    before = unfinished(args.out / "ray_faults.json")
    rounds = [FaultRound(**outcome) for outcome in before["rounds"]] if before is not None else []
    with LocalEvaluator() as local:
        expected = judged_locally(local)
    while (done := sum(outcome.evaluations for outcome in rounds)) < args.evaluations:
        if time.monotonic() - began > args.budget_s:
            break
        with local_cluster(head_cpus=HEAD_CPUS) as cluster:
            for _ in range(2):
                cluster.add_node(cpus=NODE_CPUS)
            rounds.append(drill(cluster, expected, min(args.round, args.evaluations - done), args.faults, done))
        save("ray_faults", summary(rounds), args.out)


if __name__ == "__main__":
    main()
