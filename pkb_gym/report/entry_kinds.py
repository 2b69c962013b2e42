"""The kinds of entries of the leaderboard; imports nothing, as the command line lists them in its help."""

from __future__ import annotations

from typing import Literal, TypeAlias

EntryKind: TypeAlias = Literal["expert", "reference", "search", "model"]
"""Kernels written by hand; the baseline as its own candidate; a search such as evolution; a model's kernels."""
