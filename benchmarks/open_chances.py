"""Problems whose chance of a false alarm is not shown to be small, and why."""

from __future__ import annotations

from collections.abc import Mapping

WHY_OPEN: Mapping[str, str] = {}
"""Problem -> reason, with numbers."""
