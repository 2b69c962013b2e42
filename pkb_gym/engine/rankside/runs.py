"""The argument sets of a block as they travel: sets that lie one behind the other, and differ in nothing else, once.

A run is {"spec": the first set, see `layout.rank_spec`, "calls": how many, "stride": bytes from one to the next}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def unroll(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every set of every run."""
    return [_moved(run["spec"], call * run["stride"]) for run in runs for call in range(run["calls"])]


def _moved(spec: Mapping[str, Any], by: int) -> dict[str, Any]:
    moved = {**spec, "offset": spec["offset"] + by}
    for key in ("args", "outputs"):
        if key in spec:
            moved[key] = [_part(part, by) for part in spec[key]]
    if "returned" in spec:
        moved["returned"] = _slots(spec["returned"], by)
    return moved


def _part(part: Mapping[str, Any], by: int) -> Mapping[str, Any]:
    return {**part, "leaves": _slots(part["leaves"], by)} if "leaves" in part else part


def _slots(slots: Iterable[Mapping[str, Any] | None], by: int) -> list[dict[str, Any] | None]:
    return [None if slot is None else {**slot, "offset": slot["offset"] + by} for slot in slots]
