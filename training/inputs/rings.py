"""Three rings of prompts around the training data, each further from it: what a policy has learnt beyond its problems.

    ring        problems                                                     workloads
    sizes       those trained on                                             other sizes and dtypes, never trained on
    left_out    of the train split, left out of supervised and RL training   any
    test        of the test split                                            any

Problems that relabelling makes equal (the groups of `problems/splits.json`) are left out together: none of ring
`left_out` is a near-duplicate of a trained one. The rings never share a workload with the training part: ring `sizes`
by `part_of`, the others as their problems are not trained on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from datasets import Dataset
from pydantic import ValidationError

from pkb_gym.corpus.prompts import PromptRow, prompt_rows
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import Language
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.envs.suite import split_names
from pkb_gym.envs.text.turn import Style
from pkb_gym.kernels.examples import example_for
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.problems.splits import near_duplicates

Ring: TypeAlias = Literal["sizes", "left_out", "test"]
RINGS: tuple[Ring, ...] = ("sizes", "left_out", "test")

RINGS_FILE = "rings.json"
"""Name of the file that holds the split, beside the prompts."""


class RingSplit(Record):
    """The problems that are trained on, and those that are not."""

    seed: int
    trained: tuple[str, ...]
    left_out: tuple[str, ...]
    """Problems of the train split that are kept from all training."""
    test: tuple[str, ...]
    """Problems of the test split."""

    def problems(self, ring: Ring) -> tuple[str, ...]:
        """The problems of a ring."""
        return {"sizes": self.trained, "left_out": self.left_out, "test": self.test}[ring]

    def write(self, folder: Path) -> None:
        """Writes `rings.json` into a folder."""
        write_atomically(folder / RINGS_FILE, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RingSplit:
        """Reads what `write` wrote.

        Raises:
            ConfigError: there is none, or it is none.
        """
        path = folder / RINGS_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; `training/ring_prompts.py` writes it") from error
        except ValidationError as error:
            raise ConfigError(f"{path} is no split of `training/ring_prompts.py`: {error}") from error


def split_rings(problems: Sequence[str], left_out: int, seed: int) -> RingSplit:
    """Leaves problems out of training; the same arguments give the same split.

    Args:
        problems: Problems of the train split that may be trained on.
        left_out: Minimum number of problems that are left out; near-duplicates follow.
        seed: Seed of the choice.

    Raises:
        ConfigError: a problem is not of the train split, or none would be left to train on.
        ProblemNotFound: there is no such problem.
    """
    names = [find_problem(name).name for name in problems]
    if strangers := sorted(set(names) - set(split_names("train"))):
        raise ConfigError(f"{', '.join(strangers)}: not of the train split; the test split is a ring of its own")
    waiting = sorted(set(names))
    random.Random(f"rings {seed}").shuffle(waiting)
    chosen: set[str] = set()
    for name in waiting:
        if len(chosen) >= left_out:
            break
        chosen |= near_duplicates(name)
    trained = tuple(dict.fromkeys(name for name in names if name not in chosen))
    if left_out < 0 or not trained:
        raise ConfigError(f"left_out={left_out} of {len(set(names))} problems leaves none to train on; take fewer")
    kept_out = tuple(dict.fromkeys(name for name in names if name in chosen))
    return RingSplit(seed=seed, trained=trained, left_out=kept_out, test=split_names("test"))


@dataclass(frozen=True)
class PromptSettings:
    """The settings of `ring_prompts` for each problem; see `prompt_rows`.

    Attributes:
        languages: Languages of the kernels.
        sizes: Named sizes.
        world_size: Number of ranks.
        style: Style of the prompts.
        seeds: Number of rows for each prompt.
        variations: Number of workloads of each problem and size besides the size itself.
    """

    languages: tuple[Language, ...]
    sizes: tuple[str, ...]
    world_size: int
    style: Style
    seeds: int
    variations: int


def training_rows(split: RingSplit, settings: PromptSettings) -> list[PromptRow]:
    """Prompts of the trained problems, of the workloads that are trained on.

    Raises:
        ConfigError: one of them shows the kernel of a left-out problem as its example.
    """
    if settings.style != "brief":
        examples = {
            example_for(find_problem(name), language).problem
            for name in split.trained
            for language in settings.languages
        }
        if shown := [name for name in split.left_out if name in examples]:
            raise ConfigError(
                f"prompts of style {settings.style} show kernels of {', '.join(shown)}, which the split leaves out; "
                "take the style brief"
            )
    return _rows(split.trained, settings, "train")


def ring_rows(split: RingSplit, ring: Ring, settings: PromptSettings) -> list[PromptRow]:
    """Prompts of one ring.

    Raises:
        ConfigError, SizeError: a size makes no sense for a problem.
    """
    if ring == "sizes":
        return _rows(split.trained, settings, "held_out")
    return _rows(split.problems(ring), settings, "train") + _rows(split.problems(ring), settings, "held_out")


def without_rings(corpus: Dataset, split: RingSplit) -> Dataset:
    """The conversations about trained problems.

    Raises:
        ConfigError: none is left.
    """
    trained = frozenset(split.trained)
    kept = corpus.filter(lambda problem: problem in trained, input_columns=["problem"], keep_in_memory=True)
    if len(kept) == 0:
        raise ConfigError(
            f"none of the corpus's {len(corpus)} conversations is about a trained problem of {RINGS_FILE}: "
            f"{', '.join(split.trained)}"
        )
    return kept


def write_ring_prompts(folder: Path, split: RingSplit, settings: PromptSettings) -> dict[str, int]:
    """Writes `prompts.jsonl` (part `train`, and part `held_out` with a column `ring`) and `rings.json`.

    Returns:
        Rows of "train" and of each ring.
    """
    parts: dict[str, list[PromptRow]] = {"train": training_rows(split, settings)}
    parts |= {ring: ring_rows(split, ring, settings) for ring in RINGS}
    lines = [
        json.dumps(
            {**row, "part": "train" if name == "train" else "held_out", "ring": None if name == "train" else name}
        )
        for name, rows in parts.items()
        for row in rows
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "prompts.jsonl", "".join(f"{line}\n" for line in lines))
    split.write(folder)
    return {name: len(rows) for name, rows in parts.items()}


def _rows(problems: Sequence[str], settings: PromptSettings, part: Literal["train", "held_out"]) -> list[PromptRow]:
    return prompt_rows(
        [find_problem(name) for name in problems],
        languages=settings.languages,
        sizes=settings.sizes,
        world_size=settings.world_size,
        style=settings.style,
        seeds=settings.seeds,
        part=part,
        variations=settings.variations,
    )
