"""A Ray cluster of several nodes on this machine, for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import until

OBJECT_STORE_BYTES = 100 << 20
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "disabled",
}
"""Environment of Ray: nothing is sent anywhere, workers start when they are needed and yield to nobody. A token in the
user's home would be taken by those processes alone that import Ray later."""

MARKS = ("/ray/", "ray::", "ray.util.client")
"""In the command lines of Ray's processes."""


@dataclass
class LocalCluster:
    """The cluster; this process is connected to it.

    Attributes:
        cluster: Cluster of `ray.cluster_utils`.
        client_url: URL for Ray Client; None where it was not asked for.
        nodes: Nodes beside the head.
    """

    cluster: Any
    client_url: str | None
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """For RAY_ADDRESS."""
        return str(self.cluster.address)

    def add_node(self, *, cpus: int, gpus: int = 0) -> None:
        """Adds a node with these logical resources."""
        self.nodes.append(self.cluster.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=OBJECT_STORE_BYTES))

    def kill_node(self, node: Any) -> None:  # Ray names no type for it
        """Ends all processes of a node at once."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@contextlib.contextmanager
def local_cluster(
    *, head_cpus: int, cache: Path | None = None, client_port: int | None = None
) -> Iterator[LocalCluster]:
    """Starts a head, connects this process, and ends all processes afterwards.

    Args:
        head_cpus: Logical CPUs of the head, at least 1.
        cache: Folder of compiled kernels; None for the user's.
        client_port: Port of Ray Client; None for no server.
    """
    before = dict(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="pkb", dir="/tmp"))  # paths of sockets have 107 characters at most
    os.environ |= ENVIRONMENT | {"RAY_TMPDIR": str(folder)}
    if cache is not None:
        os.environ["PKB_CACHE_DIR"] = str(cache)
    import ray
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {
        "num_cpus": head_cpus,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "include_log_monitor": False,
    }
    if client_port is not None:
        head["ray_client_server_port"] = client_port
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, log_to_driver=False, namespace="pkb")
        yield LocalCluster(cluster, None if client_port is None else f"ray://127.0.0.1:{client_port}")
    finally:
        ray.shutdown()
        cluster.shutdown()
        until(lambda: not ray_processes(), "processes of Ray stay behind")
        shutil.rmtree(folder)
        os.environ.clear()
        os.environ.update(before)


def ray_processes(word: str = "") -> list[psutil.Process]:
    """Descendants of this process that belong to Ray, and have a word in their command line."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if any(mark in command for mark in MARKS) and word in command:
                found.append(process)
    return found


def placed_groups(pool: str) -> dict[str, str]:
    """Placement groups of a pool -> their nodes."""
    from ray.util.placement_group import placement_group_table

    return {
        entry["name"]: next(iter(entry["bundles_to_node_id"].values()))
        for entry in placement_group_table().values()
        if entry["name"].startswith(f"pkb:{pool}:") and entry["state"] == "CREATED"
    }
