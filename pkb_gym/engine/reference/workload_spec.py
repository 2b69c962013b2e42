"""A workload as the ranks of a reference gang receive it: its problem by the file that declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import frozen_axes


@dataclass(frozen=True)
class WorkloadSpec:
    """A `Workload`, whose problem is named by the file that declares it."""

    declaration: str
    size: object
    world_size: int
    dtype: str
    protocol: str
    key: str
    seed: int
    turn: int
    source_sha256: str
    nonce: str

    @classmethod
    def of(cls, workload: Workload) -> WorkloadSpec:
        """The spec of a workload whose problem the catalogue has found."""
        return cls(
            declaration=workload.problem.declared_in,
            size=workload.size,
            world_size=workload.world_size,
            dtype=workload.dtype,
            protocol=workload.protocol,
            key=workload.key.hex(),
            seed=workload.seed,
            turn=workload.turn,
            source_sha256=workload.source_sha256,
            nonce=workload.nonce,
        )

    def load(self) -> Workload:
        """The workload; its problem is loaded from its file."""
        size = self.size if isinstance(self.size, str) else frozen_axes(cast("dict[str, object]", self.size))
        return Workload(
            problem=_load_declaration(self.declaration),
            size=size,
            world_size=self.world_size,
            dtype=self.dtype,
            protocol=self.protocol,
            key=bytes.fromhex(self.key),
            seed=self.seed,
            turn=self.turn,
            source_sha256=self.source_sha256,
            nonce=self.nonce,
        )


def _load_declaration(path: str) -> Problem:
    """The PROBLEM that a file defines."""
    import runpy

    if path not in _LOADED:
        _LOADED[path] = runpy.run_path(path)["PROBLEM"]
    return _LOADED[path]


_LOADED: dict[str, Problem] = {}
