"""A wrong solution that the published inputs or tolerances take for right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counterfeit:
    """One wrong solution: protocol "published" accepts it, protocol "robust" must refuse it.

    Attributes:
        weakness: Index into the problem's `weaknesses`.
        name: Name of a few words.
        solution: Function called as the reference is; may use torch.distributed and state kept at module level.
        why: Error that the published check overlooks.
    """

    weakness: int
    name: str
    solution: Callable[..., Any]
    why: str
