"""Versions, compilers, sandbox and GPUs of the nodes of a cluster; a task on each node examines it."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pkb_gym
from pkb_gym.cluster.address import ClusterAddress
from pkb_gym.cluster.connection import CONNECTION, in_one_line
from pkb_gym.cluster.placement import LaneLimits, lane_limits, node_resources
from pkb_gym.cluster.records import from_text, to_text
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.calibrate import find_compiler
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import Device

EXAMINE_S = 120.0


class NodeReport(Record):
    """Equipment of one node."""

    node: str
    """Address of the node, as by Ray."""
    host: str
    cpus: float
    """Logical, as Ray counts them."""
    gpus: float
    python: str = ""
    pkb_gym: str = ""
    torch: str = ""
    compiler: bool = False
    """Whether C++ sources can be compiled."""
    nvcc: bool = False
    """Whether CUDA sources can be compiled."""
    sandbox: bool = False
    """Whether bubblewrap can shut candidates in."""
    gpu_names: tuple[str, ...] = ()
    fault: str = ""
    """Why the node could not be examined; empty where it could."""

    @property
    def versions(self) -> tuple[str, str, str]:
        """Versions that have to agree on all nodes."""
        return self.python, self.pkb_gym, self.torch


class ClusterReport(Record):
    """A cluster, as seen from this machine."""

    ray: str
    nodes: tuple[NodeReport, ...]


def inspect_cluster(address: str) -> ClusterReport:
    """Examines every node.

    Args:
        address: Address of the cluster, see `ClusterAddress`.

    Raises:
        ConfigError: The address is none, or Ray is not installed.
        InfrastructureError: The cluster cannot be reached.
    """
    with _connected(ClusterAddress.parse(address)):
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        return ClusterReport(ray=ray.__version__, nodes=tuple(_inspect(node) for node in alive))


def limits_at(address: str, device: Device, world_sizes: Sequence[int]) -> dict[int, LaneLimits]:
    """World size -> most gangs of a pool at this address."""
    parsed = ClusterAddress.parse(address)
    with _connected(parsed):
        nodes = node_resources()
        return {size: lane_limits(nodes, device, size, parsed.settings) for size in world_sizes}


@contextmanager
def _connected(address: ClusterAddress) -> Iterator[None]:
    CONNECTION.open(address.client_url)
    try:
        yield
    finally:
        CONNECTION.close()


def _inspect(node: dict[str, Any]) -> NodeReport:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resources = node["Resources"]
    partial = NodeReport(
        node=node["NodeManagerAddress"],
        host=node["NodeManagerHostname"],
        cpus=resources.get("CPU", 0),
        gpus=resources.get("GPU", 0),
    )
    task = ray.remote(examine_this_node).options(
        num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    )
    try:
        return from_text(NodeReport, ray.get(task.remote(to_text(partial)), timeout=EXAMINE_S))
    except (RayError, InfrastructureError) as error:
        return partial.model_copy(update={"fault": in_one_line(error)})


def examine_this_node(partial: str) -> str:
    """JSON text of the `NodeReport`, completed; runs on the node."""
    found = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "pkb_gym": pkb_gym.__version__,
        "torch": importlib.metadata.version("torch"),
        "compiler": find_compiler() is not None,
        "nvcc": nvcc_available(),
        "sandbox": bubblewrap_works(),
        "gpu_names": gpus.names(),
    }
    return to_text(from_text(NodeReport, partial).model_copy(update=found))
