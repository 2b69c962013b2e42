"""The doors run in environments of their own (`make doors`), not with the other tests."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.garbage import pause_collections, resume_collections

IS_DOOR = "PKB_DOORS_CONTRACT" in os.environ
collect_ignore_glob = [] if IS_DOOR else ["*"]

if IS_DOOR:

    @pytest.hookimpl(wrapper=True)
    def pytest_collection() -> Generator[None, object, object]:
        pause_collections()  # frameworks take seconds to import
        try:
            return (yield)
        finally:
            resume_collections()
