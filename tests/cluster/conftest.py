"""One Ray cluster of several nodes on this machine, for all tests of this folder that need one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.leaks import Lasting

PATIENCE_S = 120.0
OBJECT_STORE_BYTES = 100 << 20
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment of Ray: nothing is sent anywhere, and workers start when they are needed."""


def until(condition: Callable[[], object], what: str = "it did not come to that") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def ray_processes() -> list[psutil.Process]:
    """Descendants of this process that belong to Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "/ray/" in command or "ray::" in command or "ray.util.client" in command:
                found.append(process)
    return found


@dataclass
class TestCluster:
    """The cluster, and what tests do to it.

    Attributes:
        cluster: of `ray.cluster_utils`.
        client_url: of Ray Client.
        nodes: that are no head.
    """

    __test__ = False

    cluster: Any
    client_url: str
    folder: Path
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """For RAY_ADDRESS."""
        return self.cluster.address

    def add_node(self) -> None:
        """Adds a node with room for one gang of two ranks and two compiles."""
        self.nodes.append(self.cluster.add_node(num_cpus=4, object_store_memory=OBJECT_STORE_BYTES))

    def kill_node(self, node: Any) -> None:
        """Ends all processes of a node at once."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="session")
def ray_cluster(compiled_before: Path, lasting: Lasting) -> Iterator[TestCluster]:
    """A head and two nodes; this process is connected to it."""
    pytest.importorskip("ray")
    before = dict(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="pkb", dir="/tmp"))  # paths of sockets have 107 characters at most
    os.environ |= QUIET | {"PKB_CACHE_DIR": str(compiled_before), "RAY_TMPDIR": str(folder)}
    import ray
    from ray.cluster_utils import Cluster

    lasting.keep_process(lambda: [process.pid for process in ray_processes()])
    port = _free_port()
    head = {
        "num_cpus": 2,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "include_log_monitor": False,
        "ray_client_server_port": port,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    made = TestCluster(cluster, f"ray://127.0.0.1:{port}", folder)
    try:
        made.add_node()
        made.add_node()
        ray.init(address=cluster.address, log_to_driver=False, namespace="pkb")
        yield made
    finally:
        ray.shutdown()
        cluster.shutdown()
        until(lambda: not ray_processes(), "processes of Ray stay behind")
        shutil.rmtree(folder)
        _set_environment(before)


def _set_environment(before: Iterable[Any]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
