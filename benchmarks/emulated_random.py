"""Random PTX programs on the emulator and on a GPU: results compared bit for bit, approximations within their bounds.

python -m benchmarks.emulated_random [--programs N] [--first N] [--jobs N] [--budget-s S] [--out FOLDER]
                                     (--gpu [--device N] | --stand-in SEED | --kept)

--gpu        the other side is a GPU; digests of its results go to emulated_random_digests.json
--stand-in   the other side is the emulator, with one instruction of each program in place of another
--kept       the emulator against the digests in benchmarks/data

Exit status: 0 if nothing differs (--stand-in: if each fault was found and nothing else), else 1.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.random_ptx.comparison import Compared, Difference, compare, digest
from benchmarks.random_ptx.program import Program, make_program
from benchmarks.random_ptx.sides import EmulatedSide, FaultySide, GpuSide, Side, SideError, emulator_at
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.support.atomic_write import write_atomically

KEPT = Path(__file__).resolve().parent / "data" / "emulated_random_digests.json"
CHUNK = 25
"""Programs of one process."""
MOST_EXAMPLES = 8


@dataclass(frozen=True)
class Order:
    """What one process does.

    Attributes:
        seeds: of its programs.
        emulator: path of the compiled emulator.
        other: "gpu", "stand-in" or "kept".
        number: of the GPU, or seed of the faults.
    """

    seeds: tuple[int, ...]
    emulator: Path
    other: str
    number: int = 0


@dataclass
class Answer:
    """What a process found.

    Attributes:
        digests: of the other side's results (of the emulator's if there is no other side), by seed.
        compared: all uses of forms.
        faults: of the stand-in: seed -> form.
        problems: seed -> why a program was not compared.
        undone: seeds that another process has to do.
    """

    digests: dict[int, str] = field(default_factory=dict)
    compared: list[tuple[int, Compared]] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    undone: tuple[int, ...] = ()


def work(order: Order) -> Answer:
    """Runs programs on both sides and compares them; in a process of its own."""
    answer = Answer()
    programs = [make_program(seed) for seed in order.seeds]
    with emulator_at(order.emulator) as emulator:
        try:
            other = _other_side(order, programs, emulator)
        except SideError as error:
            if len(programs) == 1:
                answer.problems[programs[0].seed] = str(error)
            else:
                answer.undone = order.seeds
            return answer
        for index, program in enumerate(programs):
            try:
                expected = None if other is None else other.run(program)
            except SideError as error:
                answer.problems[program.seed] = f"{order.other}: {error}"
                if order.other == "gpu":  # which this process has lost
                    answer.undone = order.seeds[index + 1 :]
                    return answer
                continue
            if expected is not None:
                answer.digests[program.seed] = digest(program, expected)
            try:
                got = emulator.run(program)
            except SideError as error:
                answer.problems[program.seed] = f"emulator: {error}"
                continue
            if expected is None:
                answer.digests[program.seed] = digest(program, got)
                continue
            answer.compared += [(program.seed, each) for each in compare(program, got, expected)]
            if isinstance(other, FaultySide) and (fault := other.fault(program)):
                answer.faults[program.seed] = fault[0].form.name
    return answer


def _other_side(order: Order, programs: Sequence[Program], emulator: EmulatedSide) -> Side | None:
    if order.other == "gpu":
        return GpuSide(programs, order.number)
    return FaultySide(emulator, order.number) if order.other == "stand-in" else None


def answers(orders: Sequence[Order], jobs: int, until_s: float) -> Iterator[Answer]:
    """Of all orders; what a process leaves undone goes to further ones, a program alone if it was the first of them."""
    todo = list(orders)
    running: set[Future[Answer]] = set()
    of_future: dict[Future[Answer], Order] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        while todo or running:
            while todo and len(running) < jobs and time.monotonic() < until_s:
                order = todo.pop(0)
                running.add(future := pool.submit(work, order))
                of_future[future] = order
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                order, answer = of_future.pop(future), future.result()
                if answer.undone == order.seeds:
                    todo += [Order((seed,), order.emulator, order.other, order.number) for seed in order.seeds]
                elif answer.undone:
                    todo.append(Order(answer.undone, order.emulator, order.other, order.number))
                yield answer


@dataclass
class Tally:
    """Of one form."""

    group: str
    bound: str = ""
    compared: int = 0
    different: int = 0
    within_bound: int = 0
    examples: list[Difference] = field(default_factory=list)

    def add(self, each: Compared) -> None:
        """Counts one use."""
        self.compared += each.compared
        self.different += each.different
        self.within_bound += each.within
        nan_only = sum(example.both_nan for example in self.examples)
        if each.example and (len(self.examples) < MOST_EXAMPLES or (nan_only and not each.example.both_nan)):
            if len(self.examples) >= MOST_EXAMPLES:
                self.examples.remove(next(example for example in self.examples if example.both_nan))
            self.examples.append(each.example)


def summary(tallies: dict[str, Tally]) -> dict[str, dict[str, int]]:
    """Of each group: forms, results compared, different, and within an error bound."""
    groups: dict[str, dict[str, int]] = {}
    for tally in tallies.values():
        counts = groups.setdefault(tally.group, {"forms": 0, "compared": 0, "different": 0, "within_bound": 0})
        counts["forms"] += 1
        counts["compared"] += tally.compared
        counts["different"] += tally.different
        counts["within_bound"] += tally.within_bound
    return groups


def main(argv: Sequence[str] | None = None) -> int:
    """Runs, compares and saves."""
    parser = make_parser("emulated_random", __doc__)
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=float("inf"), metavar="S", help="no process starts after this")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    sides = parser.add_mutually_exclusive_group(required=True)
    sides.add_argument("--gpu", action="store_true", help="the other side is a GPU")
    sides.add_argument("--stand-in", type=int, metavar="SEED", help="the other side is the emulator with faults")
    sides.add_argument("--kept", action="store_true", help="the emulator against kept digests")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    args = parser.parse_args(argv)
    until_s = time.monotonic() + args.budget_s
    args.out.mkdir(parents=True, exist_ok=True)
    emulator = args.out / "emulator.so"
    write_atomically(emulator, build_emulator(CompileCache.in_folder(args.out / "compiled")))
    other = "gpu" if args.gpu else "kept" if args.kept else "stand-in"
    number = args.device if args.gpu else args.stand_in or 0
    seeds = range(args.first, args.first + args.programs)
    chunk = max(1, min(CHUNK, args.programs // args.jobs))
    orders = [Order(tuple(seeds[i : i + chunk]), emulator, other, number) for i in range(0, len(seeds), chunk)]
    total, tallies = Answer(), dict[str, Tally]()
    for answer in answers(orders, args.jobs, until_s):
        total.digests |= answer.digests
        total.faults |= answer.faults
        total.problems |= answer.problems
        for _, each in answer.compared:
            tallies.setdefault(each.form, Tally(each.group, each.bound)).add(each)
        total.compared += [(seed, each) for seed, each in answer.compared if each.different]
    emulator.unlink()
    return report(args.out, other, len(seeds), total, tallies)


def report(out: Path, other: str, programs: int, total: Answer, tallies: dict[str, Tally]) -> int:
    """Prints and saves; the exit status."""
    if other == "kept":
        kept = json.loads(KEPT.read_text(encoding="utf-8"))["digests"]
        wrong = [seed for seed, found in sorted(total.digests.items()) if kept.get(str(seed)) != found]
        print(f"{len(total.digests)} programs, {len(wrong)} unlike the GPU's: {wrong[:50]}; not run: {total.problems}")
        return 1 if wrong or total.problems or len(total.digests) < programs else 0
    different = {name: tally for name, tally in tallies.items() if tally.different}
    result: dict[str, Any] = header() | {
        "programs": programs,
        "compared_programs": len(total.digests),
        "programs_alike": len(total.digests) - len({seed for seed, _ in total.compared} | set(total.problems)),
        "groups": summary(tallies),
        "different": {name: asdict(tally) for name, tally in sorted(different.items())},
        "approximations": {name: asdict(tally) for name, tally in sorted(tallies.items()) if tally.bound},
        "problems": {str(seed): problem for seed, problem in sorted(total.problems.items())},
    }
    write_atomically(out / "emulated_random.json", json.dumps(result, indent=1) + "\n")
    digests = {str(seed): found for seed, found in sorted(total.digests.items())}
    if other == "gpu":
        kept = {name: result[name] for name in ("date", "commit", "command")} | {"digests": digests}
        write_atomically(out / "emulated_random_digests.json", json.dumps(kept, indent=0) + "\n")
    for group, counts in result["groups"].items():
        print(group, counts)
    for name, tally in sorted(different.items()):
        print(f"{name}: {tally.different} of {tally.compared} differ, e.g. {tally.examples[0]}")
    print(f"{result['programs_alike']} of {programs} programs alike; problems: {len(total.problems)}")
    if other == "stand-in":
        found = {(seed, each.form) for seed, each in total.compared}
        wrong = found ^ set(total.faults.items())
        print(f"{len(found)} of {len(total.faults)} faults found; unexpected or missed: {sorted(wrong)[:20]}")
        return 1 if {seed for seed, _ in found} - set(total.faults) or not found else 0
    return 1 if different or total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
