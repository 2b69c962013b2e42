"""Times of rivals beside the expert: plain, and as candidates inside the evaluator.

python -m benchmarks.rivals [--problems NAME ...] [--bytes N ...] [--parts plain inside] [--world-size W]
                            [--device cuda|cpu] [--limit-s S] [--resume] [--out FOLDER]
python -m benchmarks.rivals --render FOLDER/rivals.json    prints its table

Plain: every kernel in ordinary processes, one a rank, its calls captured in a CUDA graph, blocks of all kernels in
turn, the expert among them, synchronised as in production, arguments in memory of the kernel's own kind. Inside: the
same file judged by the evaluator. What a native kernel takes more there is the evaluator's own cost per call, on
arguments that no cache holds; a Python candidate also copies what lies elsewhere. Collectives have tensors of so many
bytes a rank; products the size `large`, and edges of 1024.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.gpu_experts import EXPERT, cause, is_native, kernels_of, measured, resumed
from benchmarks.rivals.messages import Kernel, Measure
from benchmarks.rivals.plain_gang import PlainGang, PlainTime, measure_all
from pkb_gym.engine.compare.layout import Workload, align
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import compile_cpp
from pkb_gym.engine.compile.nvcc import compile_cuda
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.engine.wire.orders import DeviceName
from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source

BYTES = (8 << 10, 2 << 20, 64 << 20)
COLUMNS, ITEM_BYTES = 512, 2
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
PRODUCTS = ("AllGatherGemm", "GemmReduceScatter", "GemmAllReduce")
REFERENCE = "reference"
"""The name of the problem's reference as a kernel of its own, which the evaluator has as its baseline."""

CALLS, ROUNDS = 20, 12
MAX_SETS_BYTES = 512 << 20
"""Memory in bytes for the argument sets of a block's calls, which use them in turn."""

COMPILE_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Case:
    """One problem at one size.

    Attributes:
        problem: The problem.
        label: Size in a row: bytes of a collective's tensor, or the name of a product's size.
        size: Size as an `EvalConfig` takes it.
    """

    problem: Problem
    label: int | str
    size: str | dict[str, Any]

    @property
    def labels(self) -> dict[str, Any]:
        """The part of a row that names the case."""
        return {"problem": self.problem.name, "size": self.label}


def cases(names: Sequence[str], sizes_bytes: Sequence[int], world_size: int) -> Iterator[Case]:
    """The cases of these problems, in order.

    Raises:
        ValueError: a number of bytes is no multiple of a row for every rank.
    """
    for name in names:
        problem = find_problem(name)
        if problem.name not in COLLECTIVES:
            yield Case(problem, "large", "large")
            axes = dict.fromkeys(("M", "K", "N"), 1024)
            yield Case(problem, "1024^3", {**problem.sizes["published"], **axes})
            continue
        for nbytes in sizes_bytes:
            rows, rest = divmod(nbytes, COLUMNS * ITEM_BYTES)
            parts = world_size if problem.name in ("ReduceScatter", "AllToAll") else 1
            if rest or rows % parts or not rows:
                raise ValueError(f"--bytes: expected multiples of {COLUMNS * ITEM_BYTES * world_size}, got {nbytes}")
            size = dict(problem.sizes["published"]) | {"M": rows // parts, "N": COLUMNS}
            yield Case(problem, nbytes, size)


def kernels_on(device: DeviceName, problem: Problem, world_size: int) -> dict[str, str]:
    """The kernels of a problem by name, the expert first; on the CPU it has no rivals but the reference."""
    if device == "cpu":
        expert = expert_source(problem)
        found = {} if expert is None else {EXPERT: expert}
    else:
        found = kernels_of(problem, world_size)
    return found | {REFERENCE: reference_source(problem)}


class Plain:
    """Plain measurements, on one gang for all cases as long as it stands; a context manager that ends it.

    Args:
        device: Kind of device.
        world_size: Number of ranks.
        all_cases: Every case that will be measured.
        sets_bytes: Memory for argument sets, in bytes.
    """

    def __init__(
        self, device: DeviceName, world_size: int, all_cases: Sequence[Case], sets_bytes: int = MAX_SETS_BYTES
    ) -> None:
        self._device, self._world_size, self._sets_bytes = device, world_size, sets_bytes
        self._cache = CompileCache.in_folder(None)
        self._gang: PlainGang | None = None
        self._segment_bytes = align(max((self._order(case, (), 1, 1)[1] for case in all_cases), default=1), 64 << 20)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gang is not None:
            self._gang.__exit__(None, None, None)

    def compile(self, source: str) -> bytes | str:
        """The library of a native source, or why there is none."""
        compiler = compile_cpp if self._device == "cpu" else compile_cuda
        artifact = compiler(source, self._cache, COMPILE_TIMEOUT_S)
        return artifact.binary or f"it does not compile: {cause(artifact.log)}"

    def measure(
        self, case: Case, kernels: Mapping[str, str], calls: int = CALLS, rounds: int = ROUNDS
    ) -> dict[str, PlainTime]:
        """The plain time of each kernel of a case, side by side."""
        found: dict[str, PlainTime] = {}
        libraries: dict[str, bytes] = {}
        sides = []
        for name, source in kernels.items():
            native = is_native(source, self._device)
            library = self.compile(source) if native else b""
            if isinstance(library, str):
                found[name] = PlainTime(None, obstacle=library)
                continue
            libraries[name] = library
            sides.append(Kernel(name, "native") if native else Kernel(name, "python", source))
        order, _ = self._order(case, tuple(sides), calls, rounds)
        times, self._gang = measure_all(self._gang_in_hand, order, libraries)
        return found | times

    def _gang_in_hand(self) -> PlainGang:
        gang, self._gang = self._gang, None
        return gang or PlainGang(self._device, self._world_size, self._segment_bytes)

    def _order(self, case: Case, kernels: tuple[Kernel, ...], calls: int, rounds: int) -> tuple[Measure, int]:
        """The order for a case, and the bytes of a segment that it needs."""
        workload = Workload(case.problem, case.size, self._world_size, "bfloat16", "robust", b"rivals", seed=0, turn=0)
        one = workload.plan(range(1), True, 0).sets[0].nbytes
        scratch_bytes = align(max(1 << 20, 2 * one), 4096)
        sets = max(1, min(CALLS, self._sets_bytes // one))
        end = workload.plan(range(sets), True, scratch_bytes).end
        spec = WorkloadSpec.of(workload)
        reference = reference_source(case.problem)
        return Measure(spec, reference, scratch_bytes, kernels, sets, calls, rounds), end + (1 << 20)


def inside(evaluator: LocalEvaluator, case: Case, source: str, device: DeviceName, world_size: int) -> dict[str, Any]:
    """The figures of a kernel inside the evaluator."""
    config = EvalConfig(
        device=device,
        world_size=world_size,
        size=cast("Any", case.size),
        dtype="bfloat16",
        timing_budget_s=1.0,
        compile_timeout_s=COMPILE_TIMEOUT_S,
        race_check="off",  # the emulator judges elsewhere; here kernels are timed
    )
    found = measured(evaluator.evaluate(case.problem, source, config))
    if not found["passed"]:
        return {"inside_us": None, "inside_obstacle": found.get("message") or str(found.get("findings"))}
    baselines = ("baseline_us", "baseline_graph_us", "baseline_registered_us")
    return {"inside_us": found["candidate_us"]} | {name: found[name] for name in baselines}


def row_of(case: Case, kernel: str, plain: PlainTime | None, found_inside: dict[str, Any] | None) -> dict[str, Any]:
    """One row: a kernel's times, and what a call takes more inside the evaluator; None where not measured."""
    row: dict[str, Any] = case.labels | {"kernel": kernel}
    if plain is not None:
        rounded = {name: None if us is None else round(us, 2) for name, us in vars(plain).items() if name != "obstacle"}
        row |= {"plain_us": rounded["call_us"], "plain_quartiles_us": [rounded["low_us"], rounded["high_us"]]}
        row |= {"plain_obstacle": plain.obstacle}
    if found_inside is not None:
        row |= found_inside
        both = row.get("plain_us"), row["inside_us"]
        row["more_inside_us"] = None if None in both else round(both[1] - both[0], 2)
    return row


def measure_cases(
    planned: Sequence[Case],
    done: list[dict[str, Any]],
    parts: Sequence[str],
    device: DeviceName,
    world_size: int,
    keep: Callable[[list[dict[str, Any]]], object],
    end_s: float,
) -> int:
    """Measures case by case, and adds the rows to those that are done.

    Args:
        planned: Cases without rows.
        done: Rows so far, to which new ones are added.
        parts: Parts to measure, of "plain" and "inside".
        device: Kind of device.
        world_size: Number of ranks.
        keep: Function that keeps all rows, called after each case.
        end_s: Moment, by `time.monotonic`, after which no case begins.

    Returns:
        The number of cases that are missing.
    """
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(Plain(device, world_size, planned)) if "plain" in parts else None
        evaluator = stack.enter_context(LocalEvaluator()) if "inside" in parts else None
        if plain is not None:
            sources = {text for case in planned for text in kernels_on(device, case.problem, world_size).values()}
            natives = [text for text in sorted(sources) if is_native(text, device)]
            with ThreadPoolExecutor(processors()) as pool:
                list(pool.map(plain.compile, natives))
        for number, case in enumerate(planned):
            if time.monotonic() > end_s:
                return len(planned) - number
            kernels = kernels_on(device, case.problem, world_size)
            plain_times = {} if plain is None else plain.measure(case, kernels)
            for name, source in kernels.items():
                judged = None if evaluator is None else inside(evaluator, case, source, device, world_size)
                done.append(row_of(case, name, plain_times.get(name), judged))
                print(done[-1], file=sys.stderr, flush=True)
            keep(done)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and keeps the rows after each case."""
    parser = make_parser("rivals", __doc__)
    parser.add_argument("--problems", nargs="+", metavar="NAME", default=[*COLLECTIVES, *PRODUCTS])
    parser.add_argument("--bytes", nargs="+", type=int, default=BYTES, metavar="N", help="of a collective's tensor")
    parser.add_argument("--parts", nargs="+", choices=("plain", "inside"), default=["plain", "inside"])
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no case begins after this")
    parser.add_argument("--resume", action="store_true", help="add to the rows of the same commit in --out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the table of a result")
    args = parser.parse_args(argv)
    if args.render is not None:
        print(markdown(json.loads(args.render.read_text())["rows"]))
        return 0
    if args.device == "cuda" and len(gpus.names()) < args.world_size:
        print(f"{args.world_size} ranks need as many NVIDIA GPUs, here are {len(gpus.names())}", file=sys.stderr)
        return 3
    end_s = time.monotonic() + args.limit_s
    about = header() | {"gpus": list(gpus.names()), "driver": gpus.driver_version(), "world_size": args.world_size}
    path = args.out / "rivals.json"
    rows = resumed(path, about["commit"]) if args.resume else []
    planned = list(cases(args.problems, args.bytes, args.world_size))
    planned = [case for case in planned if not any(case.labels.items() <= row.items() for row in rows)]

    def keep(found: list[dict[str, Any]]) -> None:
        write_atomically(path, row_json(about | {"rows": found}))

    missing = measure_cases(planned, rows, args.parts, args.device, args.world_size, keep, end_s)
    if missing:
        print(f"{missing} of {len(planned)} cases are missing: go on with --resume", file=sys.stderr)
    print(markdown(rows))
    return 0


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table: kernels by cases, each with its plain time and the time inside the evaluator, in microseconds."""
    labels = list(dict.fromkeys(row["size"] for row in rows))
    lines = ["| problem | kernel | " + " | ".join(map(str, labels)) + " |", "| --- " * (2 + len(labels)) + "|"]
    for problem, kernel in dict.fromkeys((row["problem"], row["kernel"]) for row in rows):
        cells = {row["size"]: row for row in rows if (row["problem"], row["kernel"]) == (problem, kernel)}
        texts = [_cell(cells[label]) if label in cells else "-" for label in labels]
        lines.append(f"| {problem} | {kernel} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any]) -> str:
    times = [row.get(name) for name in ("plain_us", "inside_us")]
    obstacle = row.get("plain_obstacle") or row.get("inside_obstacle")
    return " / ".join("-" if us is None else f"{us:g}" for us in times) if any(times) else str(obstacle or "-")


if __name__ == "__main__":
    sys.exit(main())
