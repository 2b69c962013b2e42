"""Correctness of the starters of `pkb new`: all problems in every language of the device, at `tiny`.

A language that a problem has no naive kernel in is left out: its starter is the Python one. On a machine without GPUs,
`--device cuda` compiles CUDA C++ and imports the others, and that is all.

python -m benchmarks.starters [--device cuda] [--world-size N] [--languages python cpp] [PROBLEM ...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks.common import make_parser, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig, Language
from pkb_gym.problems.catalogue import catalogue, find_problem
from pkb_gym.starters import Starter, make_starter

LANGUAGES: dict[Device, tuple[Language, ...]] = {"cpu": ("python", "cpp"), "cuda": ("python", "cuda", "triton")}
JOBS = 3
"""Evaluations at a time: some compile while one runs."""


@dataclass(frozen=True)
class Row:
    """The result for one starter.

    Attributes:
        problem: Name of the problem.
        language: Language of the source.
        stage: Furthest stage completed.
        failure: Failure of the kernel; None where it is right, `compiled_only` where it could not be run.
        message: Message of the failure; "" if none.
    """

    problem: str
    language: Language
    stage: str | None
    failure: str | None
    message: str


def main() -> int:
    """Evaluates and saves.

    Returns:
        1 if a starter failed.
    """
    parser = make_parser("starters", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="default: all of this package")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, default=2, metavar="N")
    parser.add_argument("--languages", nargs="+", choices=("python", "cpp", "cuda", "triton"))
    parser.add_argument("--name", default="starters", help="of the result (default: starters)")
    args = parser.parse_args()
    chosen = [find_problem(name) for name in args.problems] or list(catalogue())
    starters = starters_of(chosen, args.languages or LANGUAGES[args.device], args.device)
    config = EvalConfig(device=args.device, world_size=args.world_size, size="tiny", until="check", timeout_s=20)
    with LocalEvaluator() as evaluator, ThreadPoolExecutor(JOBS) as pool:
        rows = list(pool.map(lambda one: judge(evaluator, one, config), starters))
    failed = [row for row in rows if row.failure not in (None, "compiled_only")]
    counts = {
        language: {
            "starters": sum(row.language == language for row in rows),
            "right": sum(row.language == language and row.failure is None for row in rows),
            "compiled_only": sum(row.language == language and row.failure == "compiled_only" for row in rows),
        }
        for language in dict.fromkeys(row.language for row in rows)
    }
    about = {"device": args.device, "world_size": args.world_size, "size": "tiny", "until": config.until}
    save(args.name, {**about, "counts": counts, "rows": [asdict(row) for row in rows]})
    return 1 if failed else 0


def starters_of(problems: Sequence[Problem], languages: Sequence[Language], device: Device) -> list[Starter]:
    """The starters in the language asked for."""
    made = [make_starter(problem, language, device) for language in languages for problem in problems]
    return [starter for starter in made if not starter.why_python]


def judge(evaluator: LocalEvaluator, starter: Starter, config: EvalConfig) -> Row:
    """Evaluates one kernel, and reports its progress."""
    feedback = evaluator.evaluate(find_problem(starter.problem), starter.source, config)
    failure = None if feedback.failure is None else str(feedback.failure)
    stage = None if feedback.stage is None else str(feedback.stage)
    sys.stderr.write(f"{starter.problem} {starter.language}: {failure or 'right'}\n")
    return Row(starter.problem, starter.language, stage, failure, feedback.message if failure else "")


if __name__ == "__main__":
    sys.exit(main())
