"""The machines that a command is rehearsed for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus

HERE = "here"

_FORM = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x(?P<memory>\d+(?:\.\d+)?)(?:GB)?", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """The machines of a command.

    Attributes:
        nodes: Number of nodes, at least 1.
        gpus: Number of GPUs of each node; 0 for none.
        memory_bytes: Memory of one GPU in bytes; 0 without GPUs.
        is_here: Whether it is this machine; else it was described.
    """

    nodes: int
    gpus: int
    memory_bytes: float
    is_here: bool = False

    @classmethod
    def parse(cls, text: str) -> Target:
        """Reads "here", "8x80" (GPUs of a node, decimal gigabytes of each), or "2x8x80" (nodes first).

        Raises:
            ConfigError: It is none of these.

        Example:
            >>> Target.parse("2x8x141")
            Target(nodes=2, gpus=8, memory_bytes=141000000000.0, is_here=False)
        """
        if text == HERE:
            return cls(1, len(gpus.names()), float(gpus.memory_bytes() or 0), is_here=True)
        found = _FORM.fullmatch(text)
        if found is None or not int(found["gpus"]) or not int(found["nodes"] or 1):
            raise ConfigError(
                f"rehearse: {text!r} describes no machine; expected GPUSxGIGABYTES such as 8x80, NODESxGPUSxGIGABYTES "
                f"such as 2x8x80, or {HERE}"
            )
        return cls(int(found["nodes"] or 1), int(found["gpus"]), float(found["memory"]) * 1e9)

    def __str__(self) -> str:
        """The machines in words."""
        nodes = "" if self.nodes == 1 else f"{self.nodes} nodes of "
        return f"{nodes}{self.gpus} GPUs of {self.memory_bytes / 1e9:.0f} GB" if self.gpus else "no GPU"
