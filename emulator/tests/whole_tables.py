"""Tables of cases of one kind, of which `make test` runs a sample; `make all` and `make emulated` run every case."""

from __future__ import annotations

import os

IS_WHOLE = bool(os.environ.get("PKB_TEST_ALL") or os.environ.get("PKB_TEST_EMULATED"))
