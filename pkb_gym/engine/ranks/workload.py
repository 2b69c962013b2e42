"""A workload as JSON, for the way to the reference gang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import frozen_axes


def workload_to_json(workload: Workload, declaration: Path) -> dict[str, Any]:
    """What `workload_from_json` reads; `declaration` is the file that defines PROBLEM."""
    size = workload.size if isinstance(workload.size, str) else dict(workload.size)
    return {
        "declaration": str(declaration),
        "size": size,
        "world_size": workload.world_size,
        "dtype": workload.dtype,
        "protocol": workload.protocol,
        "key": workload.key.hex(),
        "seed": workload.seed,
        "turn": workload.turn,
    }


def workload_from_json(data: dict[str, Any]) -> Workload:
    """The workload on the reference gang's side; its problem is loaded from its file."""
    size = data["size"] if isinstance(data["size"], str) else frozen_axes(data["size"])
    return Workload(
        problem=load_declaration(data["declaration"]),
        size=size,
        world_size=data["world_size"],
        dtype=data["dtype"],
        protocol=data["protocol"],
        key=bytes.fromhex(data["key"]),
        seed=data["seed"],
        turn=data["turn"],
    )


def load_declaration(path: str) -> Problem:
    """The PROBLEM that a file defines."""
    import runpy

    if path not in _LOADED:
        _LOADED[path] = runpy.run_path(path)["PROBLEM"]
    return _LOADED[path]


_LOADED: dict[str, Problem] = {}
