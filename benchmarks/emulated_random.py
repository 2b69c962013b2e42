"""Random PTX programs on the emulator and on a GPU: results compared bit for bit, approximations within their bounds.

python -m benchmarks.emulated_random [--programs N] [--first N] [--jobs N] [--budget-s S] [--out FOLDER]
                                     [--compiled FOLDER]
                                     (--gpu [--device N] | --stand-in SEED | --kept | --merge FILE)

--gpu        the other side is a GPU; digests of its results go to emulated_random_digests.json
--stand-in   the other side is the emulator, with one instruction of each program in place of another
--kept       the emulator against the digests in benchmarks/data, less the programs that it lists as unlike
--merge      takes the digests of a GPU's results from a file into benchmarks/data, and lists the programs whose results
             the emulator does not reproduce as unlike; refused if it reproduced one of them before

Exit status: 0 if nothing differs but for known causes (--stand-in: if each fault was found and nothing else), else 1.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.random_ptx.comparison import Compared, Difference, compare, digest
from benchmarks.random_ptx.kept import KEPT, Kept, KeptError
from benchmarks.random_ptx.known_differences import cause
from benchmarks.random_ptx.program import Program, make_program
from benchmarks.random_ptx.sides import (
    EmulatedSide,
    FaultySide,
    GpuSide,
    RefusedError,
    Side,
    SideError,
    emulator_at,
    gpu_name,
)
from benchmarks.random_ptx.tally import Tally, summary
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.support.atomic_write import write_atomically

CHUNK = 50
"""Programs of one process."""
MOST_UNEXPLAINED = 100
MOST_SILENT_S, MOST_SET_UP_S = 20.0, 90.0
"""A process that takes longer for one program, or until the first one, is ended."""
SAVED_EVERY_S = 5.0


@dataclass(frozen=True)
class Order:
    """The part of one process.

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

    def of(self, seeds: Sequence[int]) -> Order:
        """The same with other programs."""
        return replace(self, seeds=tuple(seeds))


@dataclass
class Answer:
    """Findings on some programs.

    Attributes:
        digests: of the other side's results (of the emulator's if there is no other side), by seed.
        compared: all uses of forms.
        faults: of the stand-in: seed -> form.
        problems: seed -> why a program was not compared.
        gpu: name of the GPU that is the other side; "" if it is none.
    """

    digests: dict[int, str] = field(default_factory=dict)
    compared: list[tuple[int, Compared]] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    gpu: str = ""

    def add(self, other: Answer) -> None:
        """Takes in what was found of others; of uses of forms, those that differ."""
        self.digests |= other.digests
        self.faults |= other.faults
        self.problems |= other.problems
        self.compared += [(seed, each) for seed, each in other.compared if each.different]


def work(order: Order) -> Iterator[Answer | str]:
    """Runs programs on both sides and compares them: before each step its name, after each program what was found.

    Raises:
        SideError: the other side could not be set up, or is lost for this process.
    """
    yield "start"
    programs = [make_program(seed) for seed in order.seeds]
    with emulator_at(order.emulator) as emulator:
        yield f"set up {order.other}"
        other = _other_side(order, programs, emulator)
        for program in programs:
            answer = Answer()
            expected = None
            if other is not None:
                yield f"{order.other} {program.seed}"
                try:
                    expected = other.run(program)
                except RefusedError as error:
                    answer.problems[program.seed] = str(error)
                    yield answer
                    continue
                answer.digests[program.seed] = digest(program, expected)
            yield f"emulator {program.seed}"
            try:
                got = emulator.run(program)
            except SideError as error:
                answer.problems[program.seed] = f"emulator: {error}"
                yield answer
                continue
            if expected is None:
                answer.digests[program.seed] = digest(program, got)
            else:
                answer.compared = [(program.seed, each) for each in compare(program, got, expected)]
            if isinstance(other, FaultySide) and (fault := other.fault(program)):
                answer.faults[program.seed] = fault[0].form.name
            yield answer


def _other_side(order: Order, programs: Sequence[Program], emulator: EmulatedSide) -> Side | None:
    if order.other == "gpu":
        return GpuSide(programs, order.number)
    return FaultySide(emulator, order.number) if order.other == "stand-in" else None


def _work(order: Order, to: Connection) -> None:
    try:
        for message in work(order):
            to.send(message)
    except SideError as error:
        to.send(error)


class Worker:
    """A process that has an order.

    Args:
        order: what it does.
    """

    def __init__(self, order: Order) -> None:
        context = get_context("spawn")
        self.messages, to = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(order, to))
        self._process.start()
        to.close()
        self._order, self._left = order, list(order.seeds)
        self._step, self._last_message_s = "begin", time.monotonic()

    def receive(self) -> tuple[Answer, list[Order]] | None:
        """A message that is there: what was found, and what is left if the process has ended; None: a step began."""
        try:
            message = self.messages.recv()
        except EOFError:
            message = SideError(f"the process ended in step {self._step!r}")
        self._last_message_s = time.monotonic()
        if isinstance(message, str):
            self._step = message
            return None
        if isinstance(message, Answer):
            self._left.pop(0)
            return message, []
        return self._lost(str(message)) if self._left else (Answer(), [])

    def overdue(self) -> tuple[Answer, list[Order]] | None:
        """As `receive`, where the process has been silent for too long; it is ended."""
        setting_up = self._step in ("begin", "start") or self._step.startswith("set up")
        silent_s = time.monotonic() - self._last_message_s
        if silent_s < (MOST_SET_UP_S if setting_up else MOST_SILENT_S):
            return None
        return self._lost(f"no answer within {silent_s:.0f} s in step {self._step!r}")

    def _lost(self, problem: str) -> tuple[Answer, list[Order]]:
        """Attributes it to the program that it was at; where that is not known, programs are tried again one by one."""
        self.end()
        setting_up = self._step in ("begin", "start") or self._step.startswith("set up")
        left, self._left = self._left, []
        if setting_up and len(left) > 1:
            return Answer(), [self._order.of((seed,)) for seed in left]
        rest = [self._order.of(left[1:])] if left[1:] else []
        return Answer(problems={left[0]: f"{self._step}: {problem}"}), rest

    @property
    def is_done(self) -> bool:
        """Whether all programs were reported or given up."""
        return not self._left

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join(timeout=10)


def answers(orders: Sequence[Order], jobs: int, until_s: float) -> Iterator[Answer]:
    """The answers to all orders, until the deadline; a process that fails or is silent is replaced.

    Args:
        orders: begun in this order.
        jobs: number of processes.
        until_s: deadline, by `time.monotonic`.
    """
    todo = list(reversed(orders))
    workers: list[Worker] = []
    try:
        while (todo or workers) and time.monotonic() < until_s:
            while todo and len(workers) < jobs:
                workers.append(Worker(todo.pop()))
            ready = wait([worker.messages for worker in workers], timeout=1.0)
            for worker in list(workers):
                found = worker.receive() if worker.messages in ready else worker.overdue()
                if found is None:
                    continue
                answer, more = found
                todo += more
                yield answer
                if worker.is_done:
                    worker.end()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.end()


def causes(total: Answer) -> dict[str, dict[str, int]]:
    """Uses of forms, and programs, for each known cause of differences, and for none ("")."""
    found: dict[str, list[int]] = {}
    for seed, each in total.compared:
        if each.example:
            found.setdefault(cause(each.example), []).append(seed)
    return {name: {"uses": len(seeds), "programs": len(set(seeds))} for name, seeds in sorted(found.items())}


def unexplained(total: Answer) -> list[Difference]:
    """One difference of each use without a known cause."""
    return [each.example for _, each in total.compared if each.example and not cause(each.example)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs, compares and saves."""
    parser = make_parser("emulated_random", __doc__)
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N", help="processes (default: %(default)s)")
    parser.add_argument(
        "--budget-s", type=float, default=3600, metavar="S", help="programs not done by then are left out"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    sides = parser.add_mutually_exclusive_group(required=True)
    sides.add_argument("--gpu", action="store_true", help="the other side is a GPU")
    sides.add_argument("--stand-in", type=int, metavar="SEED", help="the other side is the emulator with faults")
    sides.add_argument("--kept", action="store_true", help="the emulator against kept digests")
    sides.add_argument("--merge", type=Path, metavar="FILE", help="take digests of a GPU's results into those kept")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="of compiled files (default: the user's cache)")
    args = parser.parse_args(argv)
    until_s = time.monotonic() + args.budget_s
    total = Answer()
    try:
        merged = Kept.load().joined(Kept.load(args.merge)) if args.merge else None
        total.gpu = gpu_name(args.device) if args.gpu else ""
    except (KeptError, SideError) as error:
        parser.error(str(error))
    seeds = merged.seeds if merged else range(args.first, args.first + args.programs)
    other = "gpu" if args.gpu else "stand-in" if args.stand_in is not None else "kept"
    number = args.device if args.gpu else args.stand_in or 0
    chunk = max(1, min(CHUNK, len(seeds) // args.jobs))
    tallies, saved_s = dict[str, Tally](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        emulator = Path(folder) / "emulator.so"
        emulator.write_bytes(build_emulator(CompileCache.in_folder(args.compiled)))
        print(f"emulator built; {len(seeds)} programs by {args.jobs} processes", file=sys.stderr, flush=True)
        orders = [Order(tuple(seeds[i : i + chunk]), emulator, other, number) for i in range(0, len(seeds), chunk)]
        for answer in answers(orders, args.jobs, until_s):
            total.add(answer)
            for _, each in answer.compared:
                tallies.setdefault(each.form, Tally(each.group, each.bound)).add(each)
            if time.monotonic() - saved_s > SAVED_EVERY_S:
                saved_s = time.monotonic()
                save(args.out, other, len(seeds), total, tallies)
                done = f"{len(total.digests)} programs, {len(total.problems)} problems"
                print(f"{done}, {sum(tally.different for tally in tallies.values())} differences", file=sys.stderr)
    if merged:
        return merge(merged, total)
    return report(args.out, other, len(seeds), total, tallies)


def merge(merged: Kept, total: Answer) -> int:
    """Keeps digests with the list of programs that the emulator does not reproduce; the exit status."""
    try:
        kept = merged.with_emulated(total.digests, Kept.load())
    except KeptError as error:
        print(error, file=sys.stderr)
        return 1
    kept.save()
    print(f"{len(kept.digests)} programs kept, {len(kept.digests) - len(kept.unlike)} like the GPU's")
    return 0


def save(out: Path, other: str, programs: int, total: Answer, tallies: dict[str, Tally]) -> None:
    """Writes what there is so far."""
    if other == "kept":
        return
    different = {name: tally for name, tally in tallies.items() if tally.different}
    result: dict[str, Any] = header() | {
        "gpu": total.gpu,
        "programs": programs,
        "compared_programs": len(set(total.digests) - set(total.problems)),
        "programs_alike": len(set(total.digests) - {seed for seed, _ in total.compared} - set(total.problems)),
        "groups": summary(tallies),
        "causes": causes(total),
        "unexplained": [asdict(each) for each in unexplained(total)[:MOST_UNEXPLAINED]],
        "different": {name: asdict(tally) for name, tally in sorted(different.items())},
        "approximations": {name: asdict(tally) for name, tally in sorted(tallies.items()) if tally.bound},
        "problems": {str(seed): problem for seed, problem in sorted(total.problems.items())},
    }
    write_atomically(out / "emulated_random.json", json.dumps(result, indent=1) + "\n")
    if other == "gpu":
        found = Kept(result["date"], result["commit"], result["command"], total.digests)
        found.save(out / KEPT.name)


def report(out: Path, other: str, programs: int, total: Answer, tallies: dict[str, Tally]) -> int:
    """Prints and saves; the exit status."""
    if other == "kept":
        kept = Kept.load()
        known = {seed: found for seed, found in total.digests.items() if seed in kept.digests}
        unlike = {seed for seed, found in known.items() if kept.digests[seed] != found}
        wrong = sorted(unlike - kept.unlike)
        print(
            f"{len(known)} programs, {len(known) - len(unlike)} like the GPU's; {len(wrong)} newly unlike: {wrong[:50]}"
        )
        return 1 if wrong or total.problems or not known else 0
    save(out, other, programs, total, tallies)
    for group, counts in summary(tallies).items():
        print(group, counts)
    different = {name: tally for name, tally in tallies.items() if tally.different}
    for name, tally in sorted(different.items()):
        print(f"{name}: {tally.different} of {tally.compared} differ, e.g. {tally.examples[0]}")
    unlike = {seed for seed, _ in total.compared} | set(total.problems)
    print(f"{len(set(total.digests) - unlike)} of {programs} programs alike; not compared: {total.problems}")
    if other == "stand-in":
        found = {(seed, each.form) for seed, each in total.compared}
        either = found ^ set(total.faults.items())
        print(f"{len(found)} of {len(total.faults)} faults found; unexpected or missed: {sorted(either)[:20]}")
        return 1 if {seed for seed, _ in found} - set(total.faults) or not found else 0
    for name, counts in causes(total).items():
        print(f"{name or 'NO KNOWN CAUSE'}: {counts['uses']} uses in {counts['programs']} programs")
    return 1 if unexplained(total) or total.problems or len(total.digests) < programs else 0


if __name__ == "__main__":
    sys.exit(main())
