"""The machine in words, for the task text: what an author of kernels needs to know of ranks, links and peaks."""

from __future__ import annotations

from pkb_gym.engine.hardware.gpus import GpuConnections
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.machine import Machine
from pkb_gym.envs.text.formatting import decimal_text, size_text

SHARED_GPUS = "checked and not timed, collectives go through main memory, and their contexts take turns on the GPU"
"""The note on ranks that share GPUs."""

NO_GPU = """\
This machine has no GPU. CUDA sources are compiled all the same, and the compiler's report on each kernel (registers,
shared memory, spills, transfer instructions) comes back; they are not run, and so neither checked nor timed."""


def machine_text(config: ResolvedConfig, machine: Machine, *, with_source: bool = True) -> str:
    """The machine that judges, as the task text has it: ranks, links, peaks.

    Args:
        config: Resolved configuration, with device, ranks and dtype.
        machine: Machine that judges.
        with_source: Whether the source of the peaks is named.
    """
    if config.device == "emulated":
        return emulated_text(config.world_size)
    hardware = machine.hardware(config.device)
    ranks = f"{config.world_size} ranks, one process each, on"
    if hardware is None and config.device == "cpu":
        return f"{ranks} cores of one CPU machine, sharing memory. Peaks: not measured yet."
    share = "one each" if config.ranks_per_gpu == 1 else f"up to {config.ranks_per_gpu} on each: {SHARED_GPUS}"
    if not machine.can_run(config.device):
        return f"{ranks} GPUs, {share}. Peaks: not known.\n{NO_GPU}"
    connections = machine.gpu_connections if config.device == "cuda" else None
    if hardware is None:
        links = links_text(-(-config.world_size // config.ranks_per_gpu), machine.multicast_disabled, connections)
        return f"{ranks} GPUs ({machine.gpu_names[0]}), {share}. Peaks: not known.\n{links}"
    return topology_text(
        hardware,
        config.world_size,
        config.dtype,
        ranks_per_gpu=config.ranks_per_gpu,
        multicast_disabled=machine.multicast_disabled,
        connections=connections,
        with_source=with_source,
    )


def topology_text(
    hardware: HardwareSpec,
    world_size: int,
    dtype: str,
    *,
    ranks_per_gpu: int = 1,
    multicast_disabled: bool = False,
    connections: GpuConnections | None = None,
    with_source: bool = True,
) -> str:
    """A few lines: who runs where, how ranks reach each other, and one rank's peaks.

    Args:
        hardware: Device of each rank.
        world_size: Number of ranks, at least 1.
        dtype: Dtype whose arithmetic peaks are shown.
        ranks_per_gpu: Number of neighbouring ranks that share a GPU.
        multicast_disabled: Whether NVLink multicast is switched off, as `environment.multicast_disabled` finds it.
        connections: Connections of the GPUs; None for NVLink between all of them.
        with_source: Whether the source of the peaks is named.

    Raises:
        ConfigError: The world size is not positive.
    """
    peaks = hardware.rank_peaks(world_size)
    if hardware.device == "cpu":
        lines = _cpu_lines(hardware, world_size)
    else:
        lines = [
            f"{_count(world_size, 'rank')}, one process each, {_gpus_text(ranks_per_gpu, hardware.name)}.",
            links_text(-(-world_size // ranks_per_gpu), multicast_disabled, connections),
        ]
    lines += _peak_lines(peaks, dtype)
    return "\n".join([*lines, f"Source of the peaks: {peaks.source}."] if with_source else lines)


def emulated_text(world_size: int) -> str:
    """The same of emulated GPUs, which have no peaks.

    Args:
        world_size: Number of ranks, at least 1.
    """
    return (
        f"{_count(world_size, 'rank')}, each on an emulated GPU of its own: the kernels' PTX (sm_90a) is executed "
        "by an interpreter, host code as it is.\nLinks: a peer's tensors can be read and written in place. Multicast "
        "(NVLS) is not modelled: do not use multimem instructions.\n"
        "The order in which ranks, blocks and warps go on is chosen to make missing synchronisation show; nothing is "
        "timed."
    )


def _gpus_text(ranks_per_gpu: int, name: str) -> str:
    return f"each on its own {name}" if ranks_per_gpu == 1 else f"up to {ranks_per_gpu} on each {name}: {SHARED_GPUS}"


def _cpu_lines(hardware: HardwareSpec, world_size: int) -> list[str]:
    cores = hardware.cores or 1
    share = "one core each" if world_size <= cores else f"{cores / world_size:.2g} of a core each when all are busy"
    ranks, machine = _count(world_size, "rank"), f"{_count(cores, 'core')} of one machine ({hardware.name})"
    return [
        f"{ranks}, one process each, on {machine}: {share}.",
        "Links: shared memory. A peer's tensors are ordinary memory of this machine; any rank may read and write them.",
    ]


def links_text(gpus: int, multicast_disabled: bool, connections: GpuConnections | None) -> str:
    """The links between the first GPUs, which are the ranks', in one line; see `topology_text`."""
    multicast = "switched off on this machine: do not use multimem instructions" if multicast_disabled else "available"
    return (
        f"Links: {_links(gpus, connections)}; a peer's tensors can be read and written in place. "
        f"Multicast (NVLS) is {multicast}."
    )


def _links(gpus: int, connections: GpuConnections | None) -> str:
    """The kind of links."""
    if connections is None:
        return "NVLink between all of them"
    nvlinks = sorted(set(connections.nvlinks[:gpus]))
    apart = [pair for pair in connections.apart if pair[1] < gpus]
    each = f"{' or '.join(map(str, nvlinks))} links up on each GPU"
    if not apart:
        return f"NVLink between all of them, {each}"
    if not any(nvlinks):
        return "no NVLink; peers are reached over PCIe"
    pairs = ", ".join(f"{one} and {other}" for one, other in apart)
    return f"NVLink, {each}, but none between GPUs {pairs}, which reach each other over PCIe"


def _peak_lines(peaks: Peaks, dtype: str) -> list[str]:
    tiers = [
        f"{tier.name}{'' if tier.capacity_bytes is None else f' ({size_text(tier.capacity_bytes)})'}"
        f" {decimal_text(tier.bytes_per_s, 'B/s')}"
        for tier in peaks.memory
    ]
    latency = "" if peaks.link_latency_s is None else f", latency {peaks.link_latency_s * 1e9:.0f} ns"
    return [
        f"Peaks of one rank in {dtype}: matrix {decimal_text(peaks.matrix_flops_per_s[dtype], 'flop/s')}, "
        f"vector {decimal_text(peaks.vector_flops_per_s[dtype], 'flop/s')}.",
        f"Memory of one rank: {', '.join(tiers)}. "
        f"Link: {decimal_text(peaks.link_bytes_per_s, 'B/s')} per direction{latency}.",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
