"""Right, wrong, hanging and crashing kernels on a cluster whose parts die: every verdict is the local evaluator's.

    python -m benchmarks.ray_faults

Three nodes on this machine. A first client submits everything and falls silent; a second one asks again. Meanwhile
gangs are killed, and nodes with all that runs on them; each node is replaced. Counted: verdicts that differ from the
local evaluator's, evaluations that were lost or taken up twice, and what is left behind.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import make_parser, save
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
ADDRESS = f"ray?pool={POOL}&shared_most=1&checks_per_gang=1&exclusive_most=1&shrink_s=600"
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
class Outcome:
    """What came of a drill.

    Attributes:
        evaluations: that were asked for.
        verdicts: failure or "passed" -> number.
        wrong: verdicts that differ from the local evaluator's, in words.
        submitted, finished, joined: of the pool: all, all, and all once more.
        gangs_killed, nodes_killed: faults.
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
    address: str = ADDRESS,
) -> Outcome:
    """Runs it on a cluster that this process is connected to.

    Args:
        cluster: with two nodes beside the head.
        expected: of `judged_locally`.
        evaluations: a multiple of the number of cases is even.
        faults: "gang" or "node", spread evenly over the answers.
        address: of a pool of its own.
    """
    plan = [(CASES[number % len(CASES)], 1 + number // len(CASES)) for number in range(evaluations)]
    client = RayEvaluator(address, timeout_s=24 * 3600.0)
    silent: RayEvaluator = pickle.loads(pickle.dumps(client))
    began = time.monotonic()
    for case, seed in plan:
        silent.submit(PROBLEM, case.source, case.config(seed))
    with ThreadPoolExecutor(min(evaluations, 256)) as threads:
        waiting = [threads.submit(client.evaluate, PROBLEM, case.source, case.config(seed)) for case, seed in plan]
        for number, fault in enumerate(faults, 1):
            _wait_for_answers(waiting, evaluations * number // (len(faults) + 2))
            FAULTS[fault](cluster)
        found = [future.result() for future in waiting]
    wall_s = time.monotonic() - began
    status = client.status()
    silent.close()
    client.close()
    return Outcome(
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
        gangs_killed=list(faults).count("gang"),
        nodes_killed=list(faults).count("node"),
        retries=status.retries,
        infrastructure_faults=status.infrastructure_faults,
        left_over=_left_over(),
        wall_s=wall_s,
    )


def _agrees(found: Feedback, expected: Feedback, seed: int) -> bool:
    of_candidate = ("failure", "stage", "failed_rank", "source_sha256", "problem_sha256")
    same = all(getattr(found, name) == getattr(expected, name) for name in of_candidate)
    return same and found.config == expected.config.model_copy(update={"seed": seed})


def _wait_for_answers(waiting: Sequence[Future[Feedback]], number: int) -> None:
    wait_until(lambda: sum(each.done() for each in waiting) >= number, "no answers come", PATIENCE_S)


def _kill_gang(_: LocalCluster) -> None:
    """One that runs a step: Ray shows it in the title of the process."""
    wait_until(lambda: ray_processes("ray::Gang.step"), "no gang runs", PATIENCE_S)
    for gang in ray_processes("ray::Gang.step")[:1]:
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
        return [*placed_groups(POOL), *(str(process) for process in ray_processes("ray::Gang"))]

    try:
        wait_until(lambda: not left(), "something stays behind")
    except TimeoutError:
        return left()
    return []


def main() -> None:
    """Runs the drill and saves."""
    parser = make_parser("ray_faults", __doc__)
    parser.add_argument("--evaluations", type=int, default=500, help="default: 500")
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=sorted(FAULTS),
        default=["gang", "node", "gang", "node", "gang"],
        help="in their order (default: gang node gang node gang)",
    )
    args = parser.parse_args()
    with LocalEvaluator() as local:
        expected = judged_locally(local)
    with local_cluster(head_cpus=2) as cluster:
        for _ in range(2):
            cluster.add_node(cpus=NODE_CPUS)
        outcome = drill(cluster, expected, args.evaluations, args.faults)
    save("ray_faults", asdict(outcome))


if __name__ == "__main__":
    main()
