"""Pairs of programs in `pairs/`: their expectations, runs and verdicts."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rank_emulator import Outcome, RegionKind, Result, Schedule, World, batch, compile_cuda

FOLDER = Path(__file__).with_name("pairs")
ONE_SIDED = [FOLDER / name for name in ("one_sided.cu", "protocols.cu", "streams.cu", "queues.cu")]
"""Idioms of one-sided communication, and a mistake of each."""
IDIOMS = [
    FOLDER / f"{name}.cu"
    for name in (
        "idioms",
        "guide",
        "cooperative",
        "clusters",
        "scopes",
        "graphs",
        "hosts",
        "allocations",
        "unwritten",
        "counters",
        "work",
    )
]
"""Idioms of one GPU, and a mistake of each."""
SHIPPED = sorted(FOLDER.glob("shipped_*.cu"))
"""Mistakes that have shipped, each with the page that describes it."""

PAIR = re.compile(
    r"(?P<comment>(?:^//.*\n)+?)"
    r"// wrong: (?P<kind>\w+): (?P<words>.*)\n"
    r"PAIR(?P<form>|_OF_ONE|_OF_FOUR|_OF_HOST)\((?P<name>\w+)(?:, .*)?\) \{$",
    re.MULTILINE,
)
RANKS = {"_OF_ONE": 1, "_OF_FOUR": 4}
"""Form of a pair -> number of ranks; 2 for others."""
SCHEDULES = (Schedule(), *(Schedule("one_ahead", seed) for seed in range(1, 6)), Schedule("priorities", 7))
FAILED_LINE = 0x3FFF
"""Word of a rank's segment that has the line of a check that failed."""


@dataclass(frozen=True)
class Pair:
    """A pair of programs.

    Attributes:
        name: Name without "_right" and "_wrong".
        comment: Lines of the comment, without the expectation.
        world_size: Number of ranks.
        kind: Class or kind of the finding, outcome of the run, or "value" for a check that fails.
        words: Words of the message.
    """

    name: str
    comment: str
    world_size: int
    kind: str
    words: str


@dataclass(frozen=True)
class Verdict:
    """The result of one program of a pair under all schedules.

    Attributes:
        pair: Pair of the program.
        is_right: Whether it is the right one of the two.
        found: Kind and message of each problem, each once.
    """

    pair: Pair
    is_right: bool
    found: tuple[tuple[str, str], ...]

    @property
    def is_expected(self) -> bool:
        """Whether a right program is silent, and a wrong one is found for its reason."""
        if self.is_right:
            return not self.found
        return any(kind == self.pair.kind and self.pair.words in message for kind, message in self.found)


@dataclass(frozen=True)
class Counts:
    """Recall and false alarms over pairs.

    Attributes:
        wrong: Number of wrong programs.
        found: Number of wrong programs that are found for their reason.
        right: Number of right programs.
        alarms: Number of right programs with a problem.
    """

    wrong: int
    found: int
    right: int
    alarms: int


def pairs_of(source: Path) -> list[Pair]:
    """The pairs of a file, in its order."""
    text = source.read_text(encoding="utf-8")
    found = [
        Pair(
            name=match["name"],
            comment=match["comment"],
            world_size=RANKS.get(match["form"], 2),
            kind=match["kind"],
            words=match["words"],
        )
        for match in PAIR.finditer(text)
    ]
    assert len(found) == len(re.findall(r"^PAIR", text, re.MULTILINE)), f"{source.name}: a pair without its expectation"
    return found


@functools.cache
def compiled(source: Path) -> bytes:
    """The library of a file."""
    return compile_cuda(source.read_text(encoding="utf-8"), [f"-I{source.parent}"])


def run(
    emulator: Path, source: Path, names: Sequence[str], world_size: int, schedules: Sequence[Schedule] = SCHEDULES
) -> Iterator[Result[list[int]]]:
    """Runs programs of a file.

    Args:
        emulator: The compiled emulator.
        source: The file.
        names: Names with "_right" or "_wrong".
        world_size: Number of ranks of these programs.
        schedules: Orders of execution.
    """
    make = partial(_make_world, emulator, world_size)
    return batch(make, compiled(source), names, schedules=schedules, inspect=_failed_lines)


def verdicts(emulator: Path, source: Path) -> list[Verdict]:
    """The verdicts on both programs of each pair of a file."""
    found = []
    pairs = pairs_of(source)
    for world_size in sorted({pair.world_size for pair in pairs}):
        programs = {
            f"{pair.name}_{'right' if is_right else 'wrong'}": (pair, is_right)
            for pair in pairs
            if pair.world_size == world_size
            for is_right in (True, False)
        }
        problems: dict[str, list[list[tuple[str, str]]]] = {name: [] for name in programs}
        for result in run(emulator, source, list(programs), world_size):
            problems[result.name].append(_problems(result))
        for name, (pair, is_right) in programs.items():
            each = tuple(dict.fromkeys(problem for of_run in problems[name] for problem in of_run))
            found.append(Verdict(pair, is_right, each))
    return found


def counts(emulator: Path, sources: Iterable[Path]) -> Counts:
    """Recall and false alarms over the pairs of files, such as `ONE_SIDED` or `SHIPPED`."""
    every = [verdict for source in sources for verdict in verdicts(emulator, source)]
    right = [verdict for verdict in every if verdict.is_right]
    wrong = [verdict for verdict in every if not verdict.is_right]
    return Counts(
        wrong=len(wrong),
        found=sum(verdict.is_expected for verdict in wrong),
        right=len(right),
        alarms=sum(not verdict.is_expected for verdict in right),
    )


def _make_world(emulator: Path, world_size: int, schedule: Schedule) -> World:
    world = World(emulator, world_size, schedule=schedule, segment_bytes=1 << 16, detect_races=True, max_steps=300_000)
    for rank, segment in enumerate(world.segments):  # as struct Rank of pairs.cuh has them
        world.add_region(rank, RegionKind.SCRATCH, "data", segment, 0x8000, element_bytes=4)
        world.add_region(rank, RegionKind.SIGNALS, "flags", segment + 0x8000, 0x4000, element_bytes=4)
        world.add_region(rank, RegionKind.SCRATCH, "out", segment + 0xC000, 0x4000, element_bytes=4)
    return world


def _failed_lines(world: World) -> list[int]:
    return [int(world.memory(rank).cast("I")[FAILED_LINE]) for rank in range(world.world_size)]


def _problems(result: Result[list[int]]) -> list[tuple[str, str]]:
    """Kinds and messages of the problems of a run; harmless races are none."""
    found = [(finding.finding_class or finding.kind, finding.message) for finding in result.findings]
    if result.outcome != Outcome.OK:
        found.append((result.outcome.name.lower(), result.message))
    found += [("value", f"line {line}") for line in result.inspected or () if line]
    return [(kind, message) for kind, message in found if kind != "benign"]
