"""The work of a GPU during some calls: kernels, copies and fills, as CUPTI reports them to torch's profiler.

    prepare | warm-up call | ranks meet | measured calls | what was recorded

Times are microseconds of the monotonic clock that all processes of a machine share, so that ranks can be laid side by
side.
"""

from __future__ import annotations

import json
import os
import resource
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pkb_gym.engine.wire.orders import DeviceEvent, DeviceReport, KernelTotal, ProfileDone

from .devices import AnyHeap
from .usage import usage_since

KINDS: dict[str, Literal["kernel", "copy", "fill"]] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
"""Category in a trace -> what ran."""

DRIVER_CALLS = ("cuda_runtime", "cuda_driver")
"""Categories that are in every trace of a CUPTI that works: the calls were waited for, if nothing else."""

NCCL = ("ncclDevKernel", "ncclKernel")
PEER_COPY = "Memcpy PtoP"
OWN_COPY = "Memcpy DtoD"
SLOW_COPY = "Memcpy PtoP (by its speed)"
"""The name of a copy that CUPTI takes for one within a device, but that took as long as links do."""
SIGNIFICANT_BYTES = 2 << 20
"""A smaller copy within a device may take as long as the links would, as its time is mostly its beginning."""

WAITS = (
    "pkb::enqueued::wait<",
    "pkb::enqueued::barrier<",
    "symmetric_memory::barrier_kernel",
    "symmetric_memory::wait_signal_kernel",
)
"""Parts of the names of kernels that do nothing but wait for other ranks."""

MAX_NAMES = 64
"""Names in the table, longest time first."""
MAX_NAME_CHARS = 400
MAX_EVENTS = 2000
"""Slices that are reported one by one, in order of their beginnings."""

MEET_S = 5.0
"""A rank that does not come is not waited for any longer; its fault then shows in the calls."""
CLOCKS_AGREE_US = 1e6

Interval = tuple[float, float]
Role = Literal["compute", "communication", "waiting"]


@dataclass(frozen=True)
class Event:
    """One thing that ran on the GPU.

    Attributes:
        kind: Kind of work.
        name: Name that CUPTI reports.
        start_us: Beginning in microseconds of the monotonic clock.
        duration_us: Time on the GPU.
        stream: Number of its stream.
        nbytes: Copied or filled; 0 for kernels.
    """

    kind: Literal["kernel", "copy", "fill"]
    name: str
    start_us: float
    duration_us: float
    stream: int
    nbytes: int

    @property
    def interval(self) -> Interval:
        """Beginning and end."""
        return self.start_us, self.start_us + self.duration_us

    @property
    def role(self) -> Role:
        """Its purpose, by its name: a kernel of the candidate's own counts as computing."""
        if self.kind == "copy":
            return "communication" if self.name.startswith(PEER_COPY) else "compute"
        if self.name.startswith(NCCL):
            return "communication"
        return "waiting" if any(part in self.name for part in WAITS) else "compute"


@dataclass(frozen=True)
class Window:
    """The measured calls, by the host's clocks.

    Attributes:
        unix_ns, began_ns: Wall clock and monotonic clock at one moment, as they began.
        calls_ns: Beginning and end of each call on the host, by the monotonic clock.
        ended_ns: Nanoseconds of the monotonic clock when the GPU had done them all.
    """

    unix_ns: int
    began_ns: int
    calls_ns: list[tuple[int, int]]
    ended_ns: int


def profile_calls(
    call: Callable[[int, int], object],
    indices: Sequence[int],
    epoch: int,
    *,
    synchronize: Callable[[], None],
    meet: Callable[[], None],
    begin: Callable[[], None] | None = None,
    link_bytes_per_s: float | None = None,
) -> ProfileDone:
    """Calls the kernel on each of the sets, and reports what the host and the GPU did meanwhile.

    The first call is not measured: kernels are slow when CUPTI sees them for the first time.

    Args:
        call: Takes the index of a set and the epoch.
        indices: Indices of the sets.
        epoch: Epoch of the first call.
        synchronize: Waits for the GPU.
        meet: Waits for the other ranks.
        begin: Function called between the first call and the others.
        link_bytes_per_s: The most that can leave or enter a GPU by its links; None where there is no peer.
    """
    recording = Recording()
    recording.prepare()
    call(indices[0], epoch)
    if begin is not None:
        begin()
    synchronize()
    recording.begin()
    meet()
    before = resource.getrusage(resource.RUSAGE_SELF)
    unix_ns, began_ns = time.time_ns(), time.perf_counter_ns()
    calls_ns = []
    for offset, index in enumerate(indices[1:], start=1):
        call_began_ns = time.perf_counter_ns()
        call(index, epoch + offset)
        calls_ns.append((call_began_ns, time.perf_counter_ns()))
    synchronize()
    window = Window(unix_ns, began_ns, calls_ns, time.perf_counter_ns())
    usage = usage_since(before)
    events = recording.end(window)
    if events is not None and link_bytes_per_s is not None:
        events = with_peer_copies(events, link_bytes_per_s)
    return ProfileDone(
        wall_ns=window.ended_ns - began_ns,
        inside_ns=sum(end - begin for begin, end in calls_ns),
        calls_ns=tuple(calls_ns),
        usage=usage,
        device=None if events is None else summary(events),
    )


def meet(heap: AnyHeap, rank: int, world_size: int, epoch: int) -> None:
    """Waits until every rank of the gang has come here: what begins apart would be counted as waiting for signals."""
    token = 1 << 63 | epoch
    places = [heap.place(other) for other in range(world_size)]
    places[rank].want = token  # free while nothing is waited for
    deadline = time.monotonic() + MEET_S
    while any(place.want != token for place in places) and time.monotonic() < deadline:
        pass


class Recording:
    """CUPTI's trace of this process; nothing where CUPTI does not work, which is no fault of the candidate."""

    def __init__(self) -> None:
        self._profiler: Any = None
        self._path = os.path.join(os.getcwd(), f"trace-{os.getpid()}.json")

    def prepare(self) -> None:
        """Attaches CUPTI; what runs from now on is not kept."""
        self._restart()

    def begin(self) -> None:
        """Records the work from now on."""
        if self._profiler is not None:
            self._restart()

    def _restart(self) -> None:
        # Not torch.profiler, whose first start imports torch._inductor and takes seconds in every process.
        from torch.autograd.profiler import profile

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._stop()
                self._profiler = profile(use_cpu=False, use_device="cuda", use_kineto=True)
                self._profiler.__enter__()
        except Exception:
            self._profiler = None

    def _stop(self) -> None:
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)

    def end(self, window: Window) -> list[Event] | None:
        """The recorded slices, in order of beginnings; None where nothing could be recorded."""
        if self._profiler is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._stop()
                self._profiler.export_chrome_trace(self._path)
            with open(self._path, encoding="utf-8", errors="replace") as file:
                trace = json.load(file, strict=False)
            worked = any(_category(row) in DRIVER_CALLS for row in trace["traceEvents"])
            return read_trace(trace, window) if worked else None
        except Exception:
            return None


def read_trace(trace: Mapping[str, Any], window: Window) -> list[Event]:
    """The slices of the GPU's work, in order of beginnings."""
    base_ns = int(trace.get("baseTimeNanoseconds", 0))
    shift_us = (base_ns - window.unix_ns + window.began_ns) / 1e3
    events = [_event(row, shift_us) for row in trace["traceEvents"] if _category(row) in KINDS]
    events.sort(key=lambda event: event.start_us)
    began_us = window.began_ns / 1e3
    if events and abs(events[0].start_us - began_us) > CLOCKS_AGREE_US + (window.ended_ns - window.began_ns) / 1e3:
        # Another clock than documented: only the distances between events can be trusted.
        shift_us += began_us - events[0].start_us
        events = [_event(row, shift_us) for row in trace["traceEvents"] if _category(row) in KINDS]
        events.sort(key=lambda event: event.start_us)
    return events


def _category(row: Mapping[str, Any]) -> str:
    return str(row.get("cat")) if row.get("ph") == "X" else ""


def _event(row: Mapping[str, Any], shift_us: float) -> Event:
    args = row.get("args", {})
    return Event(
        kind=KINDS[_category(row)],
        name=str(row["name"]),
        start_us=float(row["ts"]) + shift_us,
        duration_us=max(0.0, float(row["dur"])),
        stream=int(args.get("stream", 0)),
        nbytes=int(args.get("bytes", 0)),
    )


def with_peer_copies(events: Sequence[Event], link_bytes_per_s: float) -> list[Event]:
    """The same, with copies between GPUs called so.

    CUPTI takes a copy into a peer's memory for one within the device where that memory was mapped by the driver's
    virtual memory functions, as symmetric heaps are. Large copies within a device are faster than links.
    """

    def crossed(event: Event) -> bool:
        large = event.kind == "copy" and event.name.startswith(OWN_COPY) and event.nbytes >= SIGNIFICANT_BYTES
        return large and event.nbytes <= event.duration_us * 1e-6 * link_bytes_per_s

    return [replace(event, name=SLOW_COPY) if crossed(event) else event for event in events]


def summary(events: Sequence[Event]) -> DeviceReport:
    """The report of a GPU; `overlap_us` is the time in which both computing and communication ran."""
    by_role: dict[Role, list[Interval]] = {
        role: merged(event.interval for event in events if event.role == role)
        for role in ("compute", "communication", "waiting")
    }
    compute, communication = by_role["compute"], by_role["communication"]
    compute_us = length(compute)
    working_us = length(merged([*compute, *communication]))
    busy_us = length(merged([*compute, *communication, *by_role["waiting"]]))
    names: dict[str, int] = {}
    return DeviceReport(
        busy_us=busy_us,
        compute_us=compute_us,
        communication_us=working_us - compute_us,
        waiting_us=busy_us - working_us,
        overlap_us=length(intersection(compute, communication)),
        peer_copied_bytes=sum(e.nbytes for e in events if e.kind == "copy" and e.role == "communication"),
        own_copied_bytes=sum(e.nbytes for e in events if e.kind == "copy" and e.name.startswith(OWN_COPY)),
        nccl_kernels=sum(1 for event in events if event.name.startswith(NCCL)),
        kernels=table(events),
        events=tuple(_listed(event, names) for event in events[:MAX_EVENTS]),
        names=tuple(names),
    )


def table(events: Iterable[Event]) -> tuple[KernelTotal, ...]:
    """Launches and total time of each name, longest first."""
    launches: Counter[str] = Counter()
    total_us: defaultdict[str, float] = defaultdict(float)
    for event in events:
        name = event.name[:MAX_NAME_CHARS]
        launches[name] += 1
        total_us[name] += event.duration_us
    longest = sorted(total_us, key=lambda name: -total_us[name])[:MAX_NAMES]
    return tuple(KernelTotal(name, launches[name], total_us[name]) for name in longest)


def _listed(event: Event, names: dict[str, int]) -> DeviceEvent:
    """One event; a name that is new is added to the others."""
    name = names.setdefault(event.name[:MAX_NAME_CHARS], len(names))
    return DeviceEvent(event.kind, name, event.start_us, event.duration_us, event.stream, event.nbytes)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as intervals that do not touch, in order.

    Example:
        >>> merged([(5, 6), (0, 2), (1, 3)])
        [(0, 3), (5, 6)]
    """
    result: list[Interval] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        elif end > begin:
            result.append((begin, end))
    return result


def intersection(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The moments that are in both; arguments as `merged` gives them.

    Example:
        >>> intersection([(0, 3), (5, 9)], [(2, 6)])
        [(2, 3), (5, 6)]
    """
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            result.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def length(intervals: Iterable[Interval]) -> float:
    """Total length of intervals that do not touch."""
    return sum(end - begin for begin, end in intervals)
