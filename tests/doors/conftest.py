"""The doors run in environments of their own (`make doors`), not with the other tests."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "PKB_DOORS_CONTRACT" in os.environ else ["*"]
