"""One Ray cluster of two nodes on this machine, for all tests of this folder that need one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pkb_gym.cluster.evaluator import RayEvaluator
from tests.cluster.local_cluster import LocalCluster, local_cluster, ray_processes
from tests.cluster.on_cluster import BY_MAKE_CLUSTER, FAKE, FAKE_POOL, NODE_CPUS
from tests.leaks import Lasting
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="session")
def ray_cluster(compiled_before: Path, lasting: Lasting) -> Iterator[LocalCluster]:
    """A head with room for compiles alone, and a node for gangs; this process is connected to it."""
    pytest.importorskip("ray")
    lasting.keep_process(lambda: [process.pid for process in ray_processes()])
    port = _free_port() if BY_MAKE_CLUSTER else None  # the server of Ray Client takes seconds to start
    with local_cluster(head_cpus=1, cache=compiled_before, client_port=port) as cluster:
        cluster.add_node(cpus=NODE_CPUS)
        yield cluster


@pytest.fixture(scope="module")
def evaluator(ray_cluster: LocalCluster) -> Iterator[RayEvaluator]:
    """Over one pool of judges that start nothing; each test has sources of its own."""
    with RayEvaluator(FAKE_POOL, timeout_s=PATIENCE_S) as evaluator:
        yield evaluator


@pytest.fixture
def other_pool(ray_cluster: LocalCluster) -> Iterator[Callable[..., RayEvaluator]]:
    """Opens evaluators over pools with further settings."""
    with ExitStack() as stack:

        def opened(settings: str, **arguments: object) -> RayEvaluator:
            address = f"ray?{FAKE}&{settings}"
            return stack.enter_context(RayEvaluator(address, timeout_s=PATIENCE_S, **arguments))

        yield opened


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
