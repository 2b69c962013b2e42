"""Findings of `pkb doctor --ray` about a cluster."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import InfrastructureError

from .diagnosis import Diagnosis

if TYPE_CHECKING:
    from pkb_gym.cluster.inspection import ClusterReport, NodeReport
    from pkb_gym.engine.records.config import Device

WORLD_SIZES = (2, 4, 8)


def examine_cluster(address: str) -> list[Diagnosis]:
    """Ray, the cluster, each of its nodes, and the gangs that have room.

    Args:
        address: Address of the cluster, a value of `--evaluator`.

    Raises:
        ConfigError: it is none.
    """
    if importlib.util.find_spec("ray") is None:
        return [Diagnosis("ray", "missing", "not installed", "pip install 'pkb-gym[ray]' on all nodes")]
    from pkb_gym.cluster.inspection import inspect_cluster, limits_at

    try:
        report = inspect_cluster(address)
        device: Device = "cuda" if any(node.gpus for node in report.nodes) else "cpu"
        limits = limits_at(address, device, WORLD_SIZES)
    except InfrastructureError as error:
        remedy = "start one (ray start --head), or name it by RAY_ADDRESS or ray://HOST:PORT"
        return [Diagnosis("Ray cluster", "missing", str(error), remedy)]
    room = "; ".join(
        f"{size} ranks: {most.of('shared')} shared, {most.of('exclusive')} exclusive" for size, most in limits.items()
    )
    return [
        Diagnosis("ray", "ok", report.ray),
        _size(report),
        _agreement(report),
        *(_node(node, device == "cuda") for node in report.nodes),
        Diagnosis(f"gangs on {device}", "ok", f"at most, of {room}"),
    ]


def _size(report: ClusterReport) -> Diagnosis:
    cpus, gpus = (sum(getattr(node, name) for node in report.nodes) for name in ("cpus", "gpus"))
    return Diagnosis("Ray cluster", "ok", f"{len(report.nodes)} nodes, {cpus:g} CPUs, {gpus:g} GPUs")


def _agreement(report: ClusterReport) -> Diagnosis:
    found = Counter(node.versions for node in report.nodes if not node.fault)
    versions = [
        f"Python {python}, pkb-gym {own}, torch {torch} on {count} nodes"
        for (python, own, torch), count in found.most_common()
    ]
    if len(found) > 1:
        return Diagnosis("versions", "missing", "; ".join(versions), "install the same versions on all nodes")
    return Diagnosis("versions", "ok", versions[0]) if versions else Diagnosis("versions", "missing", "no node answers")


def _node(node: NodeReport, on_gpus: bool) -> Diagnosis:
    name = f"node {node.node}"
    if node.fault:
        return Diagnosis(name, "missing", node.fault, "is pkb-gym installed there, in the Python that Ray runs?")
    parts = [f"{node.cpus:g} CPUs", f"{node.gpus:g} GPUs {', '.join(sorted(set(node.gpu_names)))}".rstrip()]
    if not node.compiler or (on_gpus and not node.nvcc):
        lacking = "g++" if not node.compiler else "nvcc"
        return Diagnosis(
            name, "limited", f"{', '.join(parts)}; no {lacking}", f"install {lacking}: compiles run anywhere"
        )
    if not node.sandbox:
        return Diagnosis(name, "limited", f"{', '.join(parts)}; no sandbox", "install bubblewrap on it")
    return Diagnosis(name, "ok", f"{', '.join(parts)}; compilers and sandbox")
