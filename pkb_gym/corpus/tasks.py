"""Tasks: what one row of a data set asks, and which of them are held out."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias, TypedDict, cast

from pkb_gym.engine.errors import ConfigError, SizeError
from pkb_gym.engine.problem import Output, Problem, Tensor
from pkb_gym.engine.problem.axes import AxisValue, frozen_axes
from pkb_gym.engine.records.config import Device, EvalConfig, Language, ResolvedConfig
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.envs.suite import split_names
from pkb_gym.envs.text.turn import Style
from pkb_gym.problems.catalogue import find_problem

Part: TypeAlias = Literal["train", "held_out"]

HELD_OUT_SHARE = 3
"""One workload in so many is held out."""

FACTORS = {1: (2, 3, 4, 5, 6, 7, 8), 2: (2, 3)}
"""Factors of a named size's dimensions, by the number of dimensions that are changed: memory must remain enough."""

MAX_DRAWN = 100
"""Candidates that are looked at for one named size."""


@dataclass(frozen=True)
class TaskWorkload:
    """A size and a dtype of one problem.

    Attributes:
        size: Named size, or a JSON object of axes.
        dtype: Floating dtype.
    """

    size: str
    dtype: str


class TaskRow(TypedDict):
    """The columns that identify the task of a row."""

    problem: str
    language: str
    device: str
    world_size: int
    size: str
    dtype: str
    seed: int
    style: str


@dataclass(frozen=True)
class Task:
    """The task of one row: a problem under one configuration.

    Attributes:
        problem: Name of the problem.
        language: "cpp", "cuda" or "python".
        world_size: Number of ranks.
        size: Named size, or a JSON object of axes.
        dtype: Floating dtype.
        seed: Seed of the inputs.
        style: Style of prompt and feedback.
        machine: Machine that judges; None for this one.
    """

    problem: str
    language: Language
    world_size: int
    size: str
    dtype: str
    seed: int
    style: Style
    machine: Machine | None = field(default=None, compare=False, repr=False)

    @property
    def device(self) -> Device:
        """The device: "cpu" or "cuda"."""
        return self.judge().choose_device("auto", self.language)

    def judge(self) -> Machine:
        """The machine that judges."""
        return self.machine or this_machine()

    def columns(self) -> TaskRow:
        """Its columns of a row."""
        return {
            "problem": self.problem,
            "language": self.language,
            "device": self.device,
            "world_size": self.world_size,
            "size": self.size,
            "dtype": self.dtype,
            "seed": self.seed,
            "style": self.style,
        }

    def config(self, **changes: object) -> EvalConfig:
        """The configuration of evaluations.

        Args:
            **changes: Further fields of `EvalConfig`.
        """
        requested = EvalConfig(
            device=self.device,
            world_size=self.world_size,
            size=parse_axes(self.size),
            dtype=self.dtype,
            language=self.language,
            seed=self.seed,
        )
        return requested.model_copy(update=changes)

    def resolved(self) -> ResolvedConfig:
        """The configuration resolved on the machine that judges.

        Raises:
            ConfigError: it cannot be met there.
            SizeError: size, dtype and world size do not fit the problem.
        """
        return self.judge().resolve(self.config(), find_problem(self.problem))


def parse_axes(size: str) -> str | dict[str, AxisValue]:
    """A size as `EvalConfig` takes it, from a row.

    Example:
        >>> parse_axes("tiny"), parse_axes('{"x_shape": [32, 24]}')
        ('tiny', {'x_shape': (32, 24)})
    """
    return frozen_axes(json.loads(size)) if size.startswith("{") else size


def part_of(problem: Problem, workload: TaskWorkload) -> Part:
    """Whether a workload may be trained on.

    A pure function of problem, axes and dtype, whatever the number of ranks, so that what is trained on and what is
    held out never meet. Named sizes in the problem's first dtype are trained on; of all others, one in three is held
    out.
    """
    axes = _axes(problem, workload.size)
    if workload.dtype == problem.dtypes[0] and any(axes == dict(named) for named in problem.sizes.values()):
        return "train"
    text = json.dumps([problem.name, dict(sorted(axes.items())), workload.dtype])
    return "held_out" if int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0 else "train"


def workloads(problem: Problem, size: str, world_size: int, part: Part, variations: int) -> list[TaskWorkload]:
    """Workloads like a named size.

    Args:
        problem: Problem of the workloads.
        size: Name of the size, or a JSON object of axes.
        world_size: Number of ranks that they must fit.
        part: Part that they belong to, as `part_of` finds it.
        variations: Number of workloads besides the size itself in the first dtype: with larger dimensions or
            another dtype.

    Raises:
        ConfigError: there is no such size.
        SizeError: it does not fit.
    """
    plain = TaskWorkload(size, problem.dtypes[0])
    if isinstance(parse_axes(size), str) and size not in problem.sizes:
        raise ConfigError(f"{problem.name}: no size {size!r}; there are {', '.join(problem.sizes)}, or axes as JSON")
    _check(problem, plain, world_size)
    itself = [plain] if part_of(problem, plain) == part else []
    drawn = (w for w in _drawn(problem, size, world_size) if w != plain and part_of(problem, w) == part)
    return itself + list(islice(dict.fromkeys(drawn), variations))


def _drawn(problem: Problem, size: str, world_size: int) -> Iterator[TaskWorkload]:
    """Workloads with some dimensions of a size multiplied, and in one of the dtypes; always the same ones."""
    base = _axes(problem, size)
    dimensions = _dimensions(problem, base)
    for number in range(MAX_DRAWN):
        draw = random.Random(f"{problem.name} {size} {number}")
        changed = dict(base)
        chosen = draw.sample(dimensions, min(len(dimensions), draw.randrange(len(FACTORS) + 1)))
        for name in chosen:
            changed[name] = _larger(changed[name], FACTORS[len(chosen)], draw)
        named = size if changed == base else json.dumps(changed)
        workload = TaskWorkload(named, draw.choice((problem.dtypes[0], *problem.dtypes)))
        try:
            _check(problem, workload, world_size)
        except SizeError:
            continue
        yield workload


def _axes(problem: Problem, size: str) -> dict[str, AxisValue]:
    axes = parse_axes(size)
    return dict(problem.sizes[axes]) if isinstance(axes, str) else axes


def _dimensions(problem: Problem, axes: dict[str, AxisValue]) -> list[str]:
    """Axes of a size that are dimensions of arguments or results, and so may grow."""
    shapes = [arg.shape for arg in problem.args if isinstance(arg, Tensor)]
    shapes += [out.shape for out in problem.outputs if isinstance(out, Output)]
    used = {name for shape in shapes for name in ((shape,) if isinstance(shape, str) else shape)}
    return [name for name, value in axes.items() if name in used and _is_size(value)]


def _is_size(value: AxisValue) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_size(part) for part in value)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _larger(value: AxisValue, factors: Sequence[int], draw: random.Random) -> AxisValue:
    if isinstance(value, tuple):
        place = draw.randrange(len(value))
        return tuple(_larger(part, factors, draw) if k == place else part for k, part in enumerate(value))
    return cast(int, value) * draw.choice(factors)


def _check(problem: Problem, workload: TaskWorkload, world_size: int) -> None:
    for rank in range(world_size):
        problem.axes(size=parse_axes(workload.size), world_size=world_size, rank=rank, dtype=workload.dtype)


def train_problems(requested: Sequence[str], language: str) -> list[Problem]:
    """Problems to make data of.

    Args:
        requested: Names, "train" for the split's training part, or "families" for problems with a family of kernels.
        language: Language of the families.

    Raises:
        ConfigError: one of them belongs to the test part: results of training on it are no evidence on the others.
        ProblemNotFound: there is none of that name.
    """
    from pkb_gym.kernels import CORPUS_FAMILIES

    train = list(split_names("train"))
    names: dict[str, None] = {}
    for word in requested:
        if word == "train":
            names |= dict.fromkeys(train)
        elif word == "families":
            names |= {name: None for name in train if (name, language) in CORPUS_FAMILIES}
        else:
            name = find_problem(word).name
            if name not in train:
                raise ConfigError(f"{name} belongs to the test part of the split: nothing is exported to train on it")
            names[name] = None
    return [find_problem(name) for name in names]
