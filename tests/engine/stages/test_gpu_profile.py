"""What GPUs did, from a trace to a record: without a GPU, by traces as CUPTI writes them."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pkb_gym.cli.chrome_trace import chrome_trace
from pkb_gym.engine.hardware.gpus import LinkBytes, between
from pkb_gym.engine.rankside import cuda_profile
from pkb_gym.engine.rankside.abi import Place
from pkb_gym.engine.rankside.cuda_profile import (
    MAX_EVENTS,
    SLOW_COPY,
    Event,
    Window,
    intersection,
    length,
    meet,
    merged,
    profile_calls,
    read_trace,
    summary,
    table,
    with_peer_copies,
)
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.feedback import TraceEvent
from pkb_gym.engine.records.mechanisms import transfer_mechanisms
from pkb_gym.engine.stages.profile import make_profile

CODE = InstructionCounts(loads=8, stores=2)
BARRIER = "void pkb::enqueued::barrier<16>(pkb::Device, long, int, unsigned long)"
BASE_NS = 1_790_000_000_000_000_000


def event(name: str, start_us: float, duration_us: float, kind: str = "kernel", nbytes: int = 0) -> Event:
    return Event(kind=kind, name=name, start_us=start_us, duration_us=duration_us, stream=7, nbytes=nbytes)


def said(*events: Event, wall_us: float = 100.0, **changes: object) -> dict[str, object]:
    """What a rank of the native dialect says of two calls."""
    usage = ("minor_page_faults", "major_page_faults", "voluntary_switches", "involuntary_switches")
    return {
        "wall_ns": round(wall_us * 1e3),
        "inside_ns": 9000,
        "slices": [(1_000_000, 1_004_000), (1_005_000, 1_010_000)],
        "gpu": json.loads(json.dumps(summary(events))),
        "wait_ns": 6000,
        "copy_ns": 0,
        "put_bytes": 64,
        "got_bytes": 0,
        "signals": 4,
        "waits": 4,
        "user_ns": 2000,
        "system_ns": 0,
        **dict.fromkeys(usage, 3),
        **changes,
    }


EVENTS = (
    event("mine(float*)", 1010, 20),
    event("Memcpy PtoP (Device -> Device)", 1020, 20, "copy", 1 << 20),
    event(BARRIER, 1035, 15),
    event("mine(float*)", 1060, 10),
)


def test_union_and_intersection_of_intervals():
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4), (7, 7)]) == [(0, 4), (5, 6)]
    assert merged([(0, 10), (2, 3)]) == [(0, 10)]
    assert intersection([(0, 4), (5, 9)], [(1, 2), (3, 6), (8, 20)]) == [(1, 2), (3, 4), (5, 6), (8, 9)]
    assert intersection([(0, 1)], [(1, 2)]) == [] == intersection([], [(0, 1)])
    assert length([(0, 1.5), (3, 4)]) == 2.5


def test_each_moment_counts_once():
    found = summary(EVENTS)
    assert found["compute_us"] == 30  # 1010..1030 and 1060..1070
    assert found["overlap_us"] == 10  # 1020..1030
    assert found["communication_us"] == 10  # 1030..1040: nothing computed
    assert found["waiting_us"] == 10  # 1040..1050
    assert found["busy_us"] == 50
    assert found["peer_copied_bytes"] == 1 << 20 and found["own_copied_bytes"] == 0


def test_two_streams_at_once_count_once():
    assert summary([event("a", 0, 10), event("b", 0, 10)])["busy_us"] == 10


@pytest.mark.parametrize(
    ("name", "kind", "role"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", "communication"),
        ("Memcpy PtoP (Device -> Device)", "copy", "communication"),
        ("Memcpy DtoD (Device -> Device)", "copy", "compute"),
        ("Memset (Device)", "fill", "compute"),
        (BARRIER, "kernel", "waiting"),
        ("void pkb::enqueued::wait<1>(pkb::Device, int, unsigned long)", "kernel", "waiting"),
        ("void pkb::enqueued::signal<1>(pkb::Device, int, int, unsigned long)", "kernel", "compute"),
        ("all_reduce(float const*, float*)", "kernel", "compute"),
    ],
)
def test_roles_are_told_by_names(name, kind, role):
    assert event(name, 0, 1, kind).role == role


def test_table_is_by_name_and_longest_first():
    rows = table([event("a", 0, 1), event("b", 2, 5), event("a", 9, 1)])
    assert rows == [{"name": "b", "launches": 1, "total_us": 5.0}, {"name": "a", "launches": 2, "total_us": 2.0}]


def test_only_so_many_events_are_told_one_by_one():
    found = summary([event("a", 2 * i, 1) for i in range(MAX_EVENTS + 5)])
    assert len(found["events"]) == MAX_EVENTS and found["names"] == ["a"]
    assert found["busy_us"] == MAX_EVENTS + 5


def slice_of_trace(category: str, name: str, ts: float, **args: int) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2.5, "args": args}


@pytest.mark.parametrize("base_ns", [BASE_NS, 0])
def test_trace_is_put_on_the_monotonic_clock(base_ns):
    began_ns = 5_000_000_000
    window = Window(unix_ns=BASE_NS + 4_000_000, began_ns=began_ns, calls_ns=[], ended_ns=began_ns + 100_000)
    first = (BASE_NS - base_ns) / 1e3 + 4010.0
    trace = {
        "baseTimeNanoseconds": base_ns,
        "traceEvents": [
            slice_of_trace("gpu_memcpy", "Memcpy PtoP (Device -> Device)", first + 20, stream=9, bytes=64),
            slice_of_trace("cuda_runtime", "cudaLaunchKernel", first - 5),
            slice_of_trace("kernel", "mine", first, stream=7),
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": first},
        ],
    }
    kernel, copied = read_trace(trace, window)
    assert (kernel.kind, kernel.name, kernel.stream, kernel.duration_us) == ("kernel", "mine", 7, 2.5)
    assert (copied.kind, copied.stream, copied.nbytes) == ("copy", 9, 64)
    assert kernel.start_us == pytest.approx(began_ns / 1e3 + 10, abs=0.5)
    assert copied.start_us - kernel.start_us == pytest.approx(20, abs=0.5)


def test_trace_by_an_unknown_clock_begins_with_the_window():
    window = Window(unix_ns=BASE_NS, began_ns=7_000_000, calls_ns=[], ended_ns=7_100_000)
    trace = {"traceEvents": [slice_of_trace("kernel", "mine", 123.0), slice_of_trace("kernel", "mine", 130.0)]}
    assert [event.start_us for event in read_trace(trace, window)] == pytest.approx([7000.0, 7007.0])


def test_without_cupti_the_calls_are_made_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.autograd.profiler.profile", lambda **_: 1 / 0)
    called: list[object] = []
    found = profile_calls(
        lambda index, epoch: called.append((index, epoch)),
        [0, 0, 1],
        5,
        synchronize=lambda: None,
        meet=lambda: called.append("met"),
        begin=lambda: called.append("begun"),
    )
    assert called == [(0, 5), "begun", "met", (0, 6), (1, 7)]
    assert found["gpu"] is None and len(found["slices"]) == 2 and found["wall_ns"] >= found["inside_ns"]


class FakeProfiler:
    """torch's profiler, as far as a recording uses it: records what was written beforehand."""

    trace = ""
    running = 0

    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> None:
        assert FakeProfiler.running == 0, "torch has one profiler at a time"
        FakeProfiler.running += 1

    def __exit__(self, *_: object) -> None:
        FakeProfiler.running -= 1

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(self.trace)


@pytest.mark.parametrize(
    ("trace", "recorded"),
    [
        (json.dumps({"traceEvents": [slice_of_trace("cuda_runtime", "cudaDeviceSynchronize", 1.0)]}), 0),
        (json.dumps({"traceEvents": [slice_of_trace(c, "a", 1.0) for c in ("cuda_driver", "kernel", "kernel")]}), 2),
        (json.dumps({"traceEvents": []}), None),
        (json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel"}, {"ph": "X", "cat": "cuda_driver"}]}), None),
        ('{"traceEvents": [{"ph', None),
        ("[]", None),
    ],
)
def test_gpu_counts_as_watched_where_cupti_saw_the_driver(tmp_path, monkeypatch, trace, recorded):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.autograd.profiler.profile", FakeProfiler)
    monkeypatch.setattr(FakeProfiler, "trace", trace)
    found = profile_calls(lambda index, epoch: None, [0, 0], 1, synchronize=lambda: None, meet=lambda: None)["gpu"]
    assert (None if found is None else len(found["events"])) == recorded
    assert FakeProfiler.running == 0


def test_profiling_does_not_import_what_takes_seconds(tmp_path):
    code = "import sys\nfrom pkb_gym.engine.rankside.cuda_profile import profile_calls\n"
    code += "profile_calls(lambda *_: None, [0, 0], 1, synchronize=lambda: None, meet=lambda: None)\n"
    code += "sys.exit('torch._inductor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


LINK = 450e9
OWN = "Memcpy DtoD (Device -> Device)"


@pytest.mark.parametrize(
    ("name", "kind", "nbytes", "duration_us", "moved"),
    [
        (OWN, "copy", 2 << 20, 7.5, True),
        (OWN, "copy", 2 << 20, 1.6, False),
        (OWN, "copy", 2 << 20, (2 << 20) / LINK * 1e6, True),
        (OWN, "copy", 1 << 20, 7.5, False),
        ("Memcpy HtoD (Pinned -> Device)", "copy", 2 << 20, 40.0, False),
        ("Memset (Device)", "fill", 2 << 20, 40.0, False),
    ],
)
def test_copies_as_slow_as_links_are_taken_for_copies_between_gpus(name, kind, nbytes, duration_us, moved):
    copied = event(name, 0, duration_us, kind, nbytes)
    [told] = with_peer_copies([copied], LINK)
    assert (told.role == "communication") == moved
    assert told == (replace(copied, name=SLOW_COPY) if moved else copied)
    found = summary([told])
    assert found["peer_copied_bytes"] == nbytes * moved
    assert found["own_copied_bytes"] == nbytes * (name == OWN and not moved)


@pytest.mark.parametrize(("link_bytes_per_s", "role"), [(LINK, "communication"), (None, "compute")])
def test_copies_are_told_apart_where_there_are_links(tmp_path, monkeypatch, link_bytes_per_s, role):
    slow = slice_of_trace("gpu_memcpy", OWN, 1.0, bytes=2 << 20) | {"dur": 7.5}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.autograd.profiler.profile", FakeProfiler)
    monkeypatch.setattr(
        FakeProfiler, "trace", json.dumps({"traceEvents": [slice_of_trace("cuda_driver", "a", 1), slow]})
    )
    found = profile_calls(
        lambda index, epoch: None,
        [0, 0],
        1,
        synchronize=lambda: None,
        meet=lambda: None,
        link_bytes_per_s=link_bytes_per_s,
    )
    assert found["gpu"][f"{role}_us"] == 7.5


class FakeHeap:
    """The places of some ranks."""

    def __init__(self, world_size: int) -> None:
        self.places = [Place() for _ in range(world_size)]

    def place(self, rank: int) -> Place:
        return self.places[rank]


def test_ranks_meet():
    heap, order = FakeHeap(2), []

    def late() -> None:
        time.sleep(0.05)
        order.append("late")
        meet(heap, 1, 2, 9)

    other = threading.Thread(target=late)
    other.start()
    meet(heap, 0, 2, 9)
    order.append("together")
    other.join()
    assert order == ["late", "together"]


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(cuda_profile, "MEET_S", 0.05)
    began = time.monotonic()
    meet(FakeHeap(2), 0, 2, 9)
    assert 0.05 <= time.monotonic() - began < 1


def gpu_profile(*ranks: dict[str, object], **options: object):
    links = [LinkBytes(3 << 20, 3 << 20)] * len(ranks)
    return make_profile(2, json.loads(json.dumps(ranks)), on_gpus=True, links=links, code=CODE, **options)


def test_profile_of_gpus_is_per_call():
    profile = gpu_profile(said(*EVENTS), said(*EVENTS))
    rank = profile.ranks[1]
    assert (rank.wall_us, rank.busy_us, rank.host_us, rank.overlap_us) == (50, 25, 25, 5)
    assert (rank.compute_us, rank.communication_us, rank.waiting_us) == (15, 5, 5)
    assert (rank.waits, rank.mean_wait_us, rank.put_bytes) == (2, 1.5, 32)
    assert (rank.sent_bytes, rank.received_bytes) == (1 << 20, 1 << 20)  # the call before the measured ones counts too
    assert rank.copied_bytes == 1 << 19 and rank.link_bytes_per_s is None
    longest = profile.kernels[0]
    assert (longest.name, longest.launches, longest.mean_us) == ("mine(float*)", 2, 15)
    assert math.isclose(sum(kernel.share for kernel in profile.kernels), 1)
    assert profile.mechanisms == ("copy engine", "SM load/store")
    assert profile.trace == () == profile.hot_spots


def test_timelines_of_all_ranks_begin_together():
    late = [event("other", 1100, 5)]
    profile = gpu_profile(said(*EVENTS), said(*late), trace=True)
    assert [event.rank for event in profile.trace] == [0] * 6 + [1] * 3
    first = profile.trace[0]
    assert (first.kind, first.name, first.start_us, first.duration_us, first.stream) == ("call", "call 0", 0, 4, None)
    assert profile.trace[2].start_us == 10 and profile.trace[-1].start_us == 100
    assert profile.trace[3].nbytes == 1 << 20


def test_timeline_of_the_cpu_holds_the_calls():
    cpu = said() | {"kernels": []}
    profile = make_profile(2, [cpu, cpu], trace=True)
    assert [(event.rank, event.kind) for event in profile.trace] == [(0, "call")] * 2 + [(1, "call")] * 2
    assert make_profile(2, [cpu, cpu]).trace == ()


def test_python_ranks_have_no_counted_waits():
    plain = {key: value for key, value in said(*EVENTS).items() if key not in ("waits", "wait_ns", "put_bytes")}
    rank = gpu_profile(plain, plain).ranks[0]
    assert rank.waits is None and rank.mean_wait_us is None and rank.put_bytes == 0


def test_no_profile_where_a_gpu_could_not_be_watched():
    assert gpu_profile(said(*EVENTS), said(gpu=None)) is None


NONSENSE = [
    ("wall_ns", "much"),
    ("wall_ns", -1),
    ("waits", 10**400),
    ("gpu", []),
    ("gpu", 7),
    ("slices", [[1]]),
    ("slices", [["a", "b"]]),
    ("slices", 4),
    ("user_ns", None),
    ("gpu.busy_us", "nan"),
    ("gpu.compute_us", -4),
    ("gpu.overlap_us", 1e300),
    ("gpu.nccl_kernels", None),
    ("gpu.kernels", {"a": 1}),
    ("gpu.kernels", [{"name": 3, "launches": 1, "total_us": 1}]),
    ("gpu.kernels", [{"name": "a", "launches": -1, "total_us": 1}]),
    ("gpu.kernels", [["a"]]),
    ("gpu.names", [None]),
    ("gpu.events", [["kernel", 99, 1, 1, 7, 0]]),
    ("gpu.events", [["kernel", -1, 1, 1, 7, 0]]),
    ("gpu.events", [["virus", 0, 1, 1, 7, 0]]),
    ("gpu.events", [["kernel", 0, 1, 1e12, 7, 0]]),
    ("gpu.events", [["kernel", 0, "now", 1, 7, 0]]),
    ("gpu.events", [["kernel", 0, 1]]),
    ("gpu.events", [[[], 0, 1, 1, 7, 0]]),
]


@pytest.mark.parametrize(("where", "what"), NONSENSE, ids=repr)
def test_nonsense_of_a_rank_is_no_profile(where, what):
    bad = copy.deepcopy(said(*EVENTS))
    *outer, name = where.split(".")
    inner = bad["gpu"] if outer else bad
    inner[name] = what
    assert gpu_profile(bad, said(*EVENTS), trace=True) is None


@pytest.mark.parametrize("rank", [None, [], "text", 3])
def test_rank_that_says_no_object_is_no_profile(rank):
    assert make_profile(2, [rank], on_gpus=True, links=[None]) is None
    assert make_profile(2, [rank]) is None


def test_numbers_that_json_should_not_hold_are_nonsense():
    bad = said(*EVENTS)
    bad["gpu"]["busy_us"] = float("nan")
    assert make_profile(2, [bad], on_gpus=True, links=[None]) is None


def test_names_are_short_printable_ascii():
    profile = gpu_profile(said(event("k\x1b[31m\n\u202e" + "x" * 900, 0, 1)), trace=True)
    for name in (profile.kernels[0].name, profile.trace[-1].name):
        assert name.startswith("k?[31m??xxx") and len(name) == 200


def test_tables_and_timelines_are_cut():
    many = said(*(event(f"k{i}", 2 * i, 1) for i in range(100)))
    many["gpu"]["events"] *= 100
    profile = gpu_profile(many, trace=True)
    assert len(profile.kernels) == 12 and len(profile.trace) == 2002


BYTES = {"peer_copied_bytes": 0.0, "own_copied_bytes": 0.0, "nccl": False, "moved_bytes": None}


@pytest.mark.parametrize(
    ("code", "changes", "found"),
    [
        (None, {}, ()),
        (None, {"nccl": True, "moved_bytes": 1000}, ("NCCL",)),
        (None, {"moved_bytes": 1000}, ("kernels",)),
        (None, {"moved_bytes": 1000, "peer_copied_bytes": 1000}, ("copy engine",)),
        (CODE, {}, ("SM load/store",)),
        (CODE, {"peer_copied_bytes": 1000}, ("copy engine", "SM load/store")),
        (CODE, {"peer_copied_bytes": 1000, "moved_bytes": 1010}, ("copy engine",)),
        (CODE, {"peer_copied_bytes": 500, "moved_bytes": 1000}, ("copy engine", "SM load/store")),
        (CODE, {"own_copied_bytes": 990, "moved_bytes": 1000}, ("copy engine",)),
        (CODE, {"own_copied_bytes": 5000, "moved_bytes": 1000}, ("SM load/store",)),
        (CODE, {"moved_bytes": 0}, ("SM load/store",)),
        (InstructionCounts(bulk_copies=1), {}, ("TMA",)),
        (InstructionCounts(loads=1, tensor_loads=2, multimem=1), {}, ("SM load/store", "TMA", "multicast")),
        (InstructionCounts(matrix=4), {}, ()),
    ],
)
def test_mechanisms(code, changes, found):
    assert transfer_mechanisms(code, **(BYTES | changes)) == found


def test_one_rank_moves_nothing():
    assert gpu_profile(said(*EVENTS)).mechanisms == ()


def test_link_counters_count_between_two_readings():
    before, after = [LinkBytes(100, 50), None, LinkBytes(9, 9)], [LinkBytes(400, 80), LinkBytes(1, 1), LinkBytes(3, 9)]
    assert between(before, after) == [LinkBytes(300, 30), None, LinkBytes(0, 0)]
    assert LinkBytes(300, 30).per_call(17) == LinkBytes(17, 1)


def test_chrome_trace_has_a_process_for_each_rank_and_a_thread_for_each_stream():
    slices = [
        TraceEvent(rank=0, kind="call", name="call 0", stream=None, start_us=0, duration_us=4),
        TraceEvent(rank=0, kind="kernel", name="mine", stream=0, start_us=1.23456, duration_us=2),
        TraceEvent(rank=1, kind="copy", name="Memcpy", stream=7, start_us=3, duration_us=4, nbytes=64),
    ]
    trace = json.loads(chrome_trace(slices, "AllReduce"))
    names = {
        (entry["name"], entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in trace["traceEvents"]
        if entry["name"] in ("process_name", "thread_name")
    }
    assert names == {
        ("process_name", 0, 0): "rank 0",
        ("process_name", 1, 0): "rank 1",
        ("thread_name", 0, 0): "calls of solution",
        ("thread_name", 0, 1): "stream 0",
        ("thread_name", 1, 8): "stream 7",
    }
    drawn = [entry for entry in trace["traceEvents"] if entry["ph"] == "X"]
    assert [(entry["pid"], entry["tid"], entry["ts"], entry["dur"]) for entry in drawn] == [
        (0, 0, 0, 4),
        (0, 1, 1.235, 2),
        (1, 8, 3, 4),
    ]
    assert drawn[2]["args"] == {"bytes": 64} and drawn[2]["cat"] == "copy"
