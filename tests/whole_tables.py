"""Tables of cases of one kind, of which `make test` runs a sample and `make all` every case."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")

IS_WHOLE = bool(os.environ.get("PKB_TEST_ALL"))

by_make_all = pytest.mark.skipif(not IS_WHOLE, reason="takes long: run it by `make all`")
"""Mark of tests whose parts have tests of their own."""


def sampled(cases: Iterable[Case], step: int, first: int = 0) -> list[Case]:
    """Every `step`-th case, from number `first` on; all of them by `make all`.

    Tables over one catalogue that begin at different numbers have different problems in their samples.
    """
    return list(cases) if IS_WHOLE else list(cases)[first::step]


def examples(number: int) -> int:
    """A quarter of a number of generated examples, the first ones; all of them by `make all`."""
    return number if IS_WHOLE else -(-number // 4)
