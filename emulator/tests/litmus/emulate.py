"""Runs litmus programs on the emulator, under several schedules, with its race detector."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator.tests.litmus import ptx
from emulator.tests.litmus.model import Outcome
from emulator.tests.litmus.program import Program
from emulator.tests.litmus.verdicts import Pair
from rank_emulator import Schedule, World

RANKS = 2
SCHEDULES = (
    Schedule(),
    *(Schedule("priorities", seed) for seed in range(1, 17)),
    *(Schedule("one_ahead", seed) for seed in range(1, 8)),
)


@dataclass
class Observed:
    """What the emulator has shown of a program.

    Attributes:
        outcomes: Outcomes that have been seen.
        races: Class of each pair of accesses that the detector has reported as a race.
        messages: Message of each race.
        other: Messages of findings that are no races of two accesses of the program.
        failures: How runs ended that failed.
    """

    outcomes: set[Outcome] = field(default_factory=set)
    races: dict[Pair, str] = field(default_factory=dict)
    messages: dict[Pair, str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def observe(emulator: Path, programs: Sequence[Program], schedules: Sequence[Schedule] = SCHEDULES) -> list[Observed]:
    """Runs each program once under each schedule.

    Args:
        emulator: Shared library of the emulator.
        programs: Programs with at most two ranks.
        schedules: Orders of execution.
    """
    observed = [Observed() for _ in programs]
    layouts = [ptx.Layout.of(program) for program in programs]
    text = ptx.module(programs)
    draw = random.Random(0)
    size = len(schedules) * sum(layout.nbytes for layout in layouts)
    with World(
        emulator,
        RANKS,
        segment_bytes=-(-size // 4096) * 4096,
        detect_races=True,
        max_findings=1 << 20,
        max_steps=1 << 30,
        max_seconds=600,
    ) as world:
        ended = world.run(lambda rank: world.load_ptx(text))
        if ended.errors or ended.message:
            raise RuntimeError(f"{ended.errors} {ended.message}")
        memory, offset = world.memory(0), 0
        for turn, schedule in enumerate(schedules):
            world.set_schedule(schedule)
            for number, (program, layout) in enumerate(zip(programs, layouts, strict=True)):
                failure = _run(
                    world,
                    f"p{number}_{turn % ptx.variants(program)}",
                    program,
                    world.segments[0] + offset,
                    draw.getrandbits(64),
                )
                if failure:
                    observed[number].failures.append(f"{schedule}: {failure}")
                else:
                    words = memory[offset : offset + layout.nbytes].cast("I")
                    observed[number].outcomes.add(_outcome(program, layout, words))
                offset += layout.nbytes
        _take_findings(world, observed)
    return observed


def _run(world: World, name: str, program: Program, address: int, delays: int) -> str:
    def body(rank: int) -> None:
        if any(place[0] == rank for place in program.places):
            grid = ptx.blocks(program)
            world.launch(
                name,
                [ctypes.c_uint64(address), ctypes.c_uint32(rank), ctypes.c_uint64(delays)],
                grid=(grid, 1, 1),
                block=(ptx.block_threads(program), 1, 1),
                cluster=(grid if program.in_cluster else 1, 1, 1),
            )

    ended = world.run(body)
    return "; ".join(filter(None, [ended.message, *map(str, ended.errors.values())]))


def _outcome(program: Program, layout: ptx.Layout, words: memoryview) -> Outcome:
    values = {name: words[at // 4] for name, at in layout.locations.items() if not name.startswith("s")}
    for number, thread in enumerate(program.threads):
        first = layout.results // 4 + ptx.MAX_REGISTERS * number
        for name in {each.register for each in thread if each.register}:
            values[f"{number}:{name}"] = words[first + int(name[1:])]
    return tuple(sorted(values.items()))


def _take_findings(world: World, observed: list[Observed]) -> None:
    for finding in world.findings().findings:
        accesses = [access for access in (finding.first, finding.second) if access is not None]
        files = {access.file for access in accesses}
        of = next((observed[int(file[1:])] for file in files if file), None)
        if of is None:
            raise RuntimeError(finding.message)
        places = [ptx.place_of(access.line or 1) for access in accesses]
        if finding.kind != "race" or len(places) != 2 or min(places)[0] < 0 or finding.finding_class is None:
            of.other.append(finding.message)
            continue
        first, second = sorted(places)
        if of.races.get((first, second)) != "unsynchronised":  # a pair has a finding for either order
            of.races[first, second] = finding.finding_class
            of.messages[first, second] = finding.message
