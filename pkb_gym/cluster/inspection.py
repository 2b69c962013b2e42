"""Versions, compilers, sandbox and GPUs of the nodes of a cluster; a task on each node examines it."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
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
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import this_machine

EXAMINE_S = 120.0

UNKNOWN_GPU = "GPU of a node that is not up"
"""Name of a GPU that an autoscaler may add."""


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


def describe_largest_node(wait_s: float) -> Machine:
    """The machine of the node with the most GPUs and, among equals, processors; this process is connected to Ray.

    Args:
        wait_s: Longest wait for the node in seconds.

    Raises:
        InfrastructureError: The node could not be examined.
    """
    import ray
    from ray.exceptions import RayError

    alive = [node for node in ray.nodes() if node["Alive"]]
    largest = max(alive, key=lambda node: (node["Resources"].get("GPU", 0), node["Resources"].get("CPU", 0)))
    try:
        return from_text(Machine, ray.get(_task_on(largest, describe_this_node).remote(), timeout=wait_s))
    except RayError as error:
        raise InfrastructureError(
            f"node {largest['NodeManagerAddress']} could not be examined: {in_one_line(error)}"
        ) from None


def as_gangs_see_it(machine: Machine, gpus_of_node: int, architecture: str | None) -> Machine:
    """A node as gangs of the pool see it.

    Args:
        machine: The node with the most GPUs.
        gpus_of_node: GPUs of the largest node that there is or may be, at least 0.
        architecture: Architecture that nodes without a GPU compile for; None for the default.
    """
    known = machine.gpu_names[:gpus_of_node]
    names = known + (known[:1] or (UNKNOWN_GPU,)) * (gpus_of_node - len(known))
    compiled_for = machine.architecture if known else architecture or machine.architecture
    return machine.model_copy(update={"gpu_names": names, "architecture": compiled_for})


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

    resources = node["Resources"]
    partial = NodeReport(
        node=node["NodeManagerAddress"],
        host=node["NodeManagerHostname"],
        cpus=resources.get("CPU", 0),
        gpus=resources.get("GPU", 0),
    )
    try:
        task = _task_on(node, examine_this_node)
        return from_text(NodeReport, ray.get(task.remote(to_text(partial)), timeout=EXAMINE_S))
    except (RayError, InfrastructureError) as error:
        return partial.model_copy(update={"fault": in_one_line(error)})


def _task_on(node: dict[str, Any], function: Callable[..., str]) -> Any:  # noqa: ANN401  # Ray's own, untyped
    """A function as a task of one node, which takes none of its resources."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return ray.remote(function).options(
        num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    )


def describe_this_node() -> str:
    """JSON text of this node's `Machine`; runs on the node."""
    return to_text(this_machine())


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
