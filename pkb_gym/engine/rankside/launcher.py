"""The environment variables that launchers give each process (torchrun, mpirun with torch's `env://`)."""

from __future__ import annotations

MASTER_ADDR, MASTER_PORT = "127.0.0.1", "29500"


def launcher_variables(rank: int, world_size: int) -> dict[str, str]:
    """The variables of one rank; all ranks are on one node.

    Source: docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".

    Args:
        rank: Number of the rank.
        world_size: Number of ranks.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": MASTER_ADDR,
        "MASTER_PORT": MASTER_PORT,
    }
