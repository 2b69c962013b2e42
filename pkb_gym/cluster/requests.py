"""The devices that a request needs."""

from __future__ import annotations

from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.config import Device, EvalConfig, resolve
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.records.source import Source
from pkb_gym.problems.catalogue import find_problem


def resolved_request(request: EvaluationRequest, gpus_of_node: int) -> tuple[EvaluationRequest, Device, int]:
    """Decides device and world size, by which gangs differ; the rest is the gang's business.

    Args:
        request: Request as it was submitted.
        gpus_of_node: GPUs of the largest node, at least 0.

    Returns:
        The request with both fixed, the device, and the devices of its gang: one for each rank, but for ranks that
        share a GPU.

    Raises:
        ProblemNotFound, ConfigError, SizeError: The request makes no sense.
    """
    problem, config = find_problem(request.problem), request.config
    device = _device(config, gpus_of_node)
    source = Source.parse(request.source, device, config.language)
    resolved = resolve(
        config,
        problem,
        device=device,
        language=source.language,
        memory_total_bytes=host.memory_total_bytes(),
        gpus=gpus_of_node,
    )
    fixed = config.model_copy(update={"device": resolved.device, "world_size": resolved.world_size})
    return (
        request.model_copy(update={"config": fixed}),
        resolved.device,
        -(-resolved.world_size // resolved.ranks_per_gpu),
    )


def _device(config: EvalConfig, gpus_of_node: int) -> Device:
    """The device on a cluster: "auto" means GPUs where a node has any, unless the language determines another."""
    if config.device != "auto":
        return config.device
    if config.language in ("cuda", "triton"):
        return "cuda"
    return "cuda" if gpus_of_node and config.language != "cpp" else "cpu"
