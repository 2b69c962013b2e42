"""Every expert kernel, corpus variants and candidates of tests/candidates/cuda on emulated GPUs: verdicts, seconds.

python -m benchmarks.emulated_experts [--only NAME ...] [--world-sizes 1 2 4 8] [--seeds N] [--variants N]
                                      [--candidates [NAME ...] [--candidate-ranks N]] [--jobs N] [--budget-s S]
                                      [--out DIR]
python -m benchmarks.emulated_experts --render FILE    prints its tables

A row is one evaluation at size tiny with the detector of races. Candidates have the verdict beside it that their first
line names, which is that of two H200, and the detector where synchronisation is the question. A run goes on where an
earlier one of the same kernels ended: experts, candidates and variants with the first seed, then experts and then
variants with one further seed after the other. Each row names the commit of the emulator that it was run on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, commit, header, make_parser
from benchmarks.sharded import sharded
from pkb_gym.corpus.conversations import sampled_variants
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.errors import ConfigError, SizeError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.kernels import CORPUS_FAMILIES
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from tests.engine.candidates import candidates

COMPILE_TIMEOUT_S = 600.0
SHARED = ("problem", "kernel", "expected", "world_size", "digest", "commit")
"""The columns that evaluations of several seeds share; a result holds them once."""


@dataclass(frozen=True)
class Run:
    """One evaluation.

    Attributes:
        problem: name.
        kernel: "expert", the knobs of a variant, or the path of a candidate.
        expected: verdict.
        source: of the kernel.
        world_size: number of ranks.
        seed: of inputs and order of execution.
        settings: what the evaluation is configured with beside these.
    """

    problem: str
    kernel: str
    expected: str
    source: str
    world_size: int
    seed: int
    settings: Mapping[str, object] = field(default_factory=lambda: {"size": "tiny", "detect_races": True})

    @property
    def key(self) -> tuple[object, ...]:
        """The key of its row."""
        return self.problem, self.kernel, self.world_size, self.seed, source_sha256(self.source)[:16]

    def evaluate(self, evaluator: LocalEvaluator) -> dict[str, Any]:
        """Its row."""
        here = {"device": "emulated", "world_size": self.world_size, "seed": self.seed}
        config = EvalConfig.model_validate({"compile_timeout_s": COMPILE_TIMEOUT_S, **self.settings, **here})
        began = time.monotonic()
        try:
            feedback = evaluator.evaluate(find_problem(self.problem), self.source, config)
        except (ConfigError, SizeError) as error:
            return self._row("refused", time.monotonic() - began) | {"message": str(error)}
        return self._row(_verdict(feedback), time.monotonic() - began) | _found(feedback)

    def _row(self, verdict: str, seconds: float) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "kernel": self.kernel,
            "world_size": self.world_size,
            "seed": self.seed,
            "expected": self.expected,
            "verdict": verdict,
            "seconds": round(seconds, 2),
            "digest": self.key[-1],
        }


def _verdict(feedback: Feedback) -> str:
    return "passed" if feedback.passed else str(feedback.failure)


def _found(feedback: Feedback) -> dict[str, Any]:
    emulation = feedback.emulation
    return {
        "compile_s": round(feedback.durations_s.get("compile", 0.0), 2),
        "check_s": round(feedback.durations_s.get("check", 0.0), 2),
        "warp_instructions": None if emulation is None else emulation.warp_instructions,
        "findings": [] if emulation is None else list(emulation.findings),
        "message": feedback.message.splitlines()[0] if feedback.message else "",
    }


def evaluate(evaluator: LocalEvaluator, run: Run) -> dict[str, Any]:
    """The row of a run."""
    return run.evaluate(evaluator)


def runs(only: Sequence[str], world_sizes: Sequence[int], seeds: int) -> Iterator[Run]:
    """Runs of experts."""
    problems = [find_problem(name) for name in only] if only else catalogue()
    sources = {problem.name: expert_source(problem, "cu") for problem in problems}
    for seed, world_size, (name, source) in product(range(seeds), world_sizes, sources.items()):
        if source is not None:
            yield Run(name, "expert", "passed", source, world_size, seed)


def variant_runs(only: Sequence[str], world_sizes: Sequence[int], seeds: int, variants: int) -> Iterator[Run]:
    """Runs of the corpus's kernels: so many of each family."""
    names = only or sorted(name for name, language in CORPUS_FAMILIES if language == "cuda")
    drawn = [
        variant
        for name in names
        if (name, "cuda") in CORPUS_FAMILIES
        for variant in sampled_variants(name, "cuda", variants, 0)
    ]
    for seed, world_size, variant in product(range(seeds), world_sizes, drawn):
        yield Run(variant.problem, variant.name, "passed", variant.source, world_size, seed)


def candidate_runs(ranks: int | None = None, only: Sequence[str] = ()) -> Iterator[Run]:
    """Runs of candidates, configured as by the first lines of their files.

    Args:
        ranks: instead of those that their files name.
        only: names, such as "good/copy.cu"; none for all.
    """
    for kind in ("good", "broken", "hostile", "racy"):
        for candidate in candidates(f"cuda/{kind}"):
            name = candidate.name.removeprefix("cuda/")
            if candidate.path.suffix != ".cu" or (only and name not in only):
                continue
            settings = candidate.config.model_dump(exclude={"device", "world_size", "seed"}) | {
                "detect_races": kind in ("good", "racy"),
                "until": "check",
                "timeout_s": 10.0 if candidate.outcome == "timeout" else 60.0,
                "compile_timeout_s": COMPILE_TIMEOUT_S,
            }
            world_size = ranks or candidate.world_size
            yield Run(
                candidate.problem,
                name,
                candidate.outcome,
                candidate.source,
                world_size,
                seed=0,
                settings=settings,
            )


def in_order(planned: Sequence[Run]) -> list[Run]:
    """All with their first seed, then experts and then variants with one further seed after the other."""
    return sorted(planned, key=lambda run: (run.seed > 0, run.seed > 0 and run.kernel != "expert", run.seed))


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Tables: experts by problem and world size, then candidates whose verdict is another."""
    lines = ["| problem | ranks | seeds | right | findings | seconds of an evaluation | warp instructions |"]
    lines.append("|---|---|---|---|---|---|---|")
    experts = [row for row in rows if not row["kernel"].endswith(".cu")]
    for key in dict.fromkeys((_name(row), row["world_size"]) for row in sorted(experts, key=_order)):
        of_key = [row for row in experts if (_name(row), row["world_size"]) == key]
        right = sum(row["verdict"] == "passed" for row in of_key)
        findings = sum(len(row.get("findings", ())) for row in of_key)
        seconds = max(row["seconds"] for row in of_key)
        instructions = max(row.get("warp_instructions") or 0 for row in of_key)
        lines.append(f"| {key[0]} | {key[1]} | {len(of_key)} | {right} | {findings} | {seconds} | {instructions} |")
    candidates = [row for row in rows if row["kernel"].endswith(".cu")]
    if candidates:
        lines += ["", "| candidate | on GPUs | emulated | message |", "|---|---|---|---|"]
        for row in candidates:
            same = row["verdict"] in row["expected"].split("|")
            message = "" if same else row.get("message", "")
            lines.append(f"| {row['kernel']} | {row['expected']} | {row['verdict']} | {message} |")
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    """Problem, and whether these are the corpus's kernels."""
    problem: str = row["problem"]
    return problem if row["kernel"] == "expert" else f"{problem}, variants"


def _order(row: dict[str, Any]) -> tuple[bool, str, int]:
    return row["kernel"] != "expert", row["problem"], row["world_size"]


def packed(evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a result: the columns that evaluations share, and `evaluations` with the rest."""
    rows: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for each in evaluations:
        own = {name: value for name, value in each.items() if name not in SHARED and value not in ("", [])}
        rows.setdefault(tuple(each[name] for name in SHARED), []).append(own)
    return [dict(zip(SHARED, key, strict=True)) | {"evaluations": of} for key, of in rows.items()]


def unpacked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations in the rows of a result."""
    return [{name: row[name] for name in SHARED} | each for row in rows for each in row["evaluations"]]


def continued(path: Path, now: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of a result of this run, and the rows of earlier runs, each with the commit that it was run on.

    Args:
        path: of the result, if there is one. Its header stays, with those of runs of other commits as `later_runs`.
        now: the header of this run.
    """
    if not path.exists():
        return now, []
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = unpacked(result.pop("rows"))
    if result["commit"] == now["commit"]:
        return result | now, rows
    others = [run for run in result.get("later_runs", []) if run["commit"] != now["commit"]]
    return result | {"later_runs": [*others, now]}, rows


def main() -> None:
    """Measures and saves, or renders what was saved."""
    parser = make_parser("emulated_experts", __doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="problems (default: all with an expert)")
    parser.add_argument("--world-sizes", nargs="*", type=int, default=(1, 2, 4, 8))
    parser.add_argument("--seeds", type=int, default=1, help="of each (default: %(default)s)")
    about = "those of tests/candidates/cuda too (default: all, such as good/copy.cu)"
    parser.add_argument("--candidates", nargs="*", metavar="NAME", help=about)
    parser.add_argument("--candidate-ranks", type=int, metavar="N", help="of each (default: as their files say)")
    parser.add_argument("--variants", type=int, default=0, metavar="N", help="of each corpus family (default: none)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="what is not done by then is left out")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="of compiled files (default: the user's cache)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the tables of a result")
    args = parser.parse_args()
    if args.render is not None:
        print(markdown(unpacked(json.loads(args.render.read_text())["rows"])))
        return
    unknown = set(args.candidates or ()) - {run.kernel for run in candidate_runs(only=args.candidates or ())}
    if unknown:
        parser.error(f"no such file below tests/candidates/cuda: {', '.join(sorted(unknown))}; name it as good/copy.cu")
    until_s = time.monotonic() + args.budget_s
    planned = in_order(
        [
            *runs(args.only, args.world_sizes, args.seeds),
            *(candidate_runs(args.candidate_ranks, args.candidates) if args.candidates is not None else ()),
            *variant_runs(args.only, args.world_sizes, args.seeds, args.variants),
        ]
    )
    path = args.out / "emulated_experts.json"
    head, rows = continued(path, header())
    here = commit()
    known = {tuple(row[name] for name in ("problem", "kernel", "world_size", "seed", "digest")) for row in rows}
    left = [run for run in planned if run.key not in known]
    found = sharded(
        evaluate,
        left,
        jobs=args.jobs,
        until_s=until_s,
        compiled=args.compiled,
        key=b"emulated experts",
        prepare=build_emulator,
    )
    for _, row in found:
        rows.append(row | {"commit": here})
        print(*(row[name] for name in ("problem", "kernel", "world_size", "seed", "verdict", "seconds")), flush=True)
        write_atomically(path, json.dumps(head | {"planned": len(planned), "rows": packed(rows)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
