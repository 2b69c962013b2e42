"""Packages that tests need and that may be missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    """The mark of tests that need a package of an extra; in place of `pytest.importorskip`, which imports it.

    Every test process collects all tests, and most packages take a second to import.
    """
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}, of the extra `{extra}`")
