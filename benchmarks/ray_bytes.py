"""Bytes of an evaluation on a cluster: its request, its artifact, and its records.

    python -m benchmarks.ray_bytes [PROBLEM ...]

Expert kernels in C++ at `tiny` on 2 ranks of the CPU device, each compiled, checked, timed and profiled by the local
evaluator. The network of a cluster carries the request to the pool and to each worker, the artifact once to
each gang that runs it, and the record back; sizes depend on neither the load nor the speed of the machine.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.common import read_problems, save
from pkb_gym.cluster.artifacts import RecordingCache
from pkb_gym.cluster.records import PoolRequest, to_text
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.problems.catalogue import expert_source, find_problem

PROBLEMS = ("AllReduce", "AllGather", "ReduceScatter", "AllGatherGemm", "HyenaCP")


@dataclass(frozen=True)
class Sizes:
    """The sizes of one evaluation's messages, in bytes.

    Attributes:
        problem: of it.
        source_bytes: text of the source.
        request_bytes: message of a client, source included.
        artifact_bytes: files of the compile cache.
        check_record_bytes: feedback of the check.
        record_bytes: feedback of all stages.
    """

    problem: str
    source_bytes: int
    request_bytes: int
    artifact_bytes: int
    check_record_bytes: int
    record_bytes: int


def measure(evaluator: LocalEvaluator, cache: RecordingCache, problem: Problem) -> Sizes:
    """Measures the expert kernel of a problem.

    Raises:
        RuntimeError: there is none, or it fails.
    """
    source = expert_source(problem) or ""
    config = EvalConfig(device="cpu", world_size=2, size="tiny")
    cache.take_used()
    checked, whole = (
        evaluator.evaluate(problem, source, config.model_copy(update={"until": last})) for last in ("check", None)
    )
    if not whole.passed:
        raise RuntimeError(f"{problem.name}: the expert kernel failed: {whole.message}")
    request = EvaluationRequest(problem=problem.name, source=source, config=config)
    return Sizes(
        problem=problem.name,
        source_bytes=len(source.encode()),
        request_bytes=len(to_text(PoolRequest(request=request, client="0" * 16, timeout_s=3600.0))),
        artifact_bytes=sum(map(len, cache.take_used().values())),
        check_record_bytes=len(checked.model_dump_json()),
        record_bytes=len(whole.model_dump_json()),
    )


def main() -> None:
    """Measures and saves."""
    problems = read_problems("ray_bytes", __doc__) or PROBLEMS
    with tempfile.TemporaryDirectory() as folder:
        cache = RecordingCache(Path(folder))
        with LocalEvaluator(cache=cache) as evaluator:
            rows = [measure(evaluator, cache, find_problem(name)) for name in problems]
    names = [each.name for each in fields(Sizes) if each.name.endswith("_bytes")]
    median = {name: statistics.median(getattr(row, name) for row in rows) for name in names}
    save("ray_bytes", {"median": median, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
