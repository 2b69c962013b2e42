"""Tables of cases of one kind, of which `make test` runs a sample and `make emulated` every case."""

from __future__ import annotations

import os

import pytest

IS_WHOLE = bool(os.environ.get("PKB_TEST_EMULATED"))

whole = pytest.mark.skipif(not IS_WHOLE, reason="runs with PKB_TEST_EMULATED=1")
