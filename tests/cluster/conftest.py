"""One Ray cluster of several nodes on this machine, for all tests of this folder that need one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.ray_cluster import LocalCluster, local_cluster, ray_processes, wait_until
from tests.leaks import Lasting

PATIENCE_S = 120.0
NODE_CPUS = 4
"""Room for one gang of two ranks and two compiles."""


def until(condition: Callable[[], object], what: str = "it did not come to that") -> None:
    wait_until(condition, what, PATIENCE_S)


@pytest.fixture(scope="session")
def ray_cluster(compiled_before: Path, lasting: Lasting) -> Iterator[LocalCluster]:
    """A head and two nodes; this process is connected to it."""
    pytest.importorskip("ray")
    lasting.keep_process(lambda: [process.pid for process in ray_processes()])
    with local_cluster(head_cpus=2, cache=compiled_before, client_port=_free_port()) as cluster:
        cluster.add_node(cpus=NODE_CPUS)
        cluster.add_node(cpus=NODE_CPUS)
        yield cluster


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
