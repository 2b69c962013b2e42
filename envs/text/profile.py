"""The profile of each rank as text: shares of the time, bytes moved and mechanisms, kernels, waits."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.records.feedback import Feedback, KernelTime, Profile, RankProfile
from pkb_gym.envs.text.formatting import rate_text, size_text, three_digits, time_text, without_unnamed

MAX_KERNELS = 8
MAX_NAME_CHARS = 44
COLUMNS = ("kernel", "launches", "mean", "share")


def profile_text(feedback: Feedback) -> str:
    """The profile of each rank; empty where nothing was profiled."""
    profile = feedback.profile
    if profile is None or not profile.ranks:
        return ""
    lines = ["Profile, per call and rank (compute / communication / waiting / host, of the whole):"]
    on_gpus = profile.ranks[0].busy_us is not None
    for rank in profile.ranks:
        lines += _gpu_lines(rank) if on_gpus else [_cpu_line(rank)]
    if on_gpus:
        lines += _link_lines(feedback, profile)
    if profile.kernels:
        lines += ["- on rank 0:", *times_table(profile.kernels)]
    if profile.hot_spots:
        spots = ", ".join(
            f"{spot.name} {time_text(spot.self_us)} in {spot.calls} calls" for spot in profile.hot_spots[:5]
        )
        lines.append(f"- hottest on rank 0: {spots}")
    return "\n".join(lines)


def _shares(rank: RankProfile) -> str:
    parts = (rank.compute_us, rank.communication_us, rank.waiting_us, rank.host_us)
    whole = sum(parts) or 1.0
    return " / ".join(f"{100 * part / whole:.0f} %" for part in parts)


def _cpu_line(rank: RankProfile) -> str:
    rate = "" if rank.link_bytes_per_s is None else f" at {rate_text(rank.link_bytes_per_s)}"
    moved = f"put {size_text(rank.put_bytes)}, got {size_text(rank.got_bytes)}{rate}"
    faults = rank.minor_page_faults + rank.major_page_faults
    switches = rank.voluntary_switches + rank.involuntary_switches
    return (
        f"- rank {rank.rank}: {time_text(rank.wall_us)} = {_shares(rank)}; {moved}; "
        f"{faults} page faults and {switches} context switches in {rank.calls} calls"
    )


def _gpu_lines(rank: RankProfile) -> list[str]:
    line = f"- rank {rank.rank}: {time_text(rank.wall_us)} = {_shares(rank)}; GPU busy {time_text(rank.busy_us or 0)}"
    if rank.overlap_us:
        line += f", communication beside computing {time_text(rank.overlap_us)}"
    if rank.waits and rank.mean_wait_us is not None:
        line += f"; {three_digits(rank.waits)} waits for signals, {time_text(rank.mean_wait_us)} each"
    moved = [("put", rank.put_bytes), ("got", rank.got_bytes), ("copy engines", rank.copied_bytes or 0)]
    sizes = [f"{what} {size_text(nbytes)}" for what, nbytes in moved if nbytes]
    return [f"{line}; {', '.join(sizes)}" if sizes else line]


def _link_lines(feedback: Feedback, profile: Profile) -> list[str]:
    """The bytes that crossed the links, beside those that had to, and the mechanisms."""
    lines = []
    if profile.mechanisms:
        lines.append(f"- transfers found: {', '.join(profile.mechanisms)}")
    sent = [rank.sent_bytes for rank in profile.ranks if rank.sent_bytes is not None]
    received = [rank.received_bytes for rank in profile.ranks if rank.received_bytes is not None]
    timing, roofline = feedback.timing, feedback.roofline
    if sent and received and timing is not None:
        busiest = max(*sent, *received)
        rate = rate_text(busiest / (timing.candidate_us * 1e-6))
        lines.append(
            f"- NVLink's counters: up to {size_text(max(sent))} sent and {size_text(max(received))} received "
            f"by a rank; {rate} over the timed call"
        )
    if roofline is not None and roofline.candidate_achieved is not None:
        achieved = roofline.candidate_achieved
        lines.append(
            f"- the cost over the timed call: memory {rate_text(achieved.memory_bytes_per_s)} of "
            f"{rate_text(roofline.peaks.memory_bytes_per_s)}, links {rate_text(achieved.link_bytes_per_s)} of "
            f"{rate_text(roofline.peaks.link_bytes_per_s)}"
        )
    return lines


def times_table(kernels: Sequence[KernelTime]) -> list[str]:
    """One line for each kernel, copy or fill, under a head."""
    rows = [COLUMNS]
    for kernel in kernels[:MAX_KERNELS]:
        share = f"{100 * kernel.share:.0f} %"
        rows.append((short_name(kernel.name), str(kernel.launches), time_text(kernel.mean_us), share))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    left_out = len(kernels) - MAX_KERNELS
    return [*lines, f"and {left_out} more"] if left_out > 0 else lines


def short_name(name: str) -> str:
    """A kernel's name without return type, parameters and long template arguments.

    Example:
        >>> short_name("void pkb::enqueued::barrier<16>(pkb::Device, long, int, unsigned long)")
        'pkb::enqueued::barrier<16>'
        >>> short_name("Memcpy PtoP (Device -> Device)")
        'Memcpy PtoP (Device -> Device)'
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    name = without_unnamed(name).removeprefix("void ").partition("(")[0]
    return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 3]}..."
