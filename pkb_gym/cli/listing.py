"""The listing of `pkb list`, kept from one command to the next: 87 declarations take longer than the rest.

What is kept is used as long as no file that it was read from has changed, by time and size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pkb_gym
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.declared_names import PROBLEMS

if TYPE_CHECKING:
    from pkb_gym.engine.problem import Problem

DECLARING = Path(__file__).resolve().parent.parent / "engine" / "problem"
"""The modules that declarations are made of."""


@dataclass(frozen=True)
class ListedProblem:
    """One problem, as `pkb list --json` prints it; the fields of `Problem` are described there.

    Attributes:
        experts: Suffixes of the known-good kernels that exist.
    """

    name: str
    env_id: str
    number: int
    upstream: str
    category: str
    summary: str
    origin: str
    tags: tuple[str, ...]
    patterns: tuple[str, ...]
    argument_kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    world_sizes: tuple[int, ...]
    experts: tuple[str, ...]
    weaknesses: tuple[str, ...]

    @classmethod
    def of(cls, problem: Problem) -> ListedProblem:
        """The listing of a declaration."""
        own = {field.name: getattr(problem, field.name) for field in fields(cls) if field.name != "experts"}
        tuples = {name: tuple(value) for name, value in own.items() if isinstance(value, list | tuple)}
        return cls(**own | tuples, experts=experts(problem))


def experts(problem: Problem) -> tuple[str, ...]:
    """Suffixes of the known-good kernels that exist."""
    from pkb_gym.problems.catalogue import expert_source

    return tuple(suffix for suffix in ("cpp", "cu") if expert_source(problem, suffix) is not None)


def listed_catalogue() -> list[ListedProblem]:
    """The problems of this package, in upstream order."""
    path, key = env_vars.cache_dir() / "problems.json", _state()
    kept = _kept(path, key)
    if kept is not None:
        return kept
    from pkb_gym.problems.catalogue import catalogue

    listed = [ListedProblem.of(problem) for problem in catalogue()]
    with contextlib.suppress(OSError):  # then it takes as long the next time
        write_atomically(path, json.dumps({"state": key, "problems": [asdict(one) for one in listed]}))
    return listed


def _kept(path: Path, key: str) -> list[ListedProblem] | None:
    """The listing kept for this state of the files; None where there is none of use."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["state"] != key:
            return None
        return [_listed(one) for one in found["problems"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _listed(one: dict[str, Any]) -> ListedProblem:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}
    return ListedProblem(**values)


def _state() -> str:
    """Digest of the names, times and sizes of all that the listing is read from."""
    read = [pkb_gym.__version__]
    for path in sorted(_read_from()):
        stat = path.stat()
        read.append(f"{path}:{stat.st_mtime_ns}:{stat.st_size}")
    return hashlib.sha256("\n".join(read).encode()).hexdigest()


def _read_from() -> Iterator[Path]:
    """Declarations, their folders, where kernels come and go, and the modules that declarations are made of."""
    for declaration in PROBLEMS.glob("*/*/problem.py"):
        yield declaration
        yield declaration.parent
    yield from DECLARING.glob("*.py")
