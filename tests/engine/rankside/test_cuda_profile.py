"""What a GPU did during some calls, by traces as CUPTI writes them; no GPU is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pkb_gym.engine.rankside import cuda_profile
from pkb_gym.engine.rankside.cuda_profile import (
    MAX_EVENTS,
    SLOW_COPY,
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
from pkb_gym.engine.wire.abi import Place
from pkb_gym.engine.wire.orders import KernelTotal
from tests.engine.gpu_events import BARRIER, EVENTS, event

BASE_NS = 1_790_000_000_000_000_000


def test_union_and_intersection_of_intervals() -> None:
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4), (7, 7)]) == [(0, 4), (5, 6)]
    assert merged([(0, 10), (2, 3)]) == [(0, 10)]
    assert intersection([(0, 4), (5, 9)], [(1, 2), (3, 6), (8, 20)]) == [(1, 2), (3, 4), (5, 6), (8, 9)]
    assert intersection([(0, 1)], [(1, 2)]) == [] == intersection([], [(0, 1)])
    assert length([(0, 1.5), (3, 4)]) == 2.5


def test_each_moment_counts_once() -> None:
    found = summary(EVENTS)
    assert found.compute_us == 30  # 1010..1030 and 1060..1070
    assert found.overlap_us == 10  # 1020..1030
    assert found.communication_us == 10  # 1030..1040: nothing computed
    assert found.waiting_us == 10  # 1040..1050
    assert found.busy_us == 50
    assert found.peer_copied_bytes == 1 << 20 and found.own_copied_bytes == 0


def test_two_streams_at_once_count_once() -> None:
    assert summary([event("a", 0, 10), event("b", 0, 10)]).busy_us == 10


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
def test_roles_follow_from_names(name, kind, role) -> None:
    assert event(name, 0, 1, kind).role == role


def test_table_is_by_name_and_longest_first() -> None:
    rows = table([event("a", 0, 1), event("b", 2, 5), event("a", 9, 1)])
    assert rows == (KernelTotal("b", 1, 5.0), KernelTotal("a", 2, 2.0))


def test_only_so_many_events_are_reported_one_by_one() -> None:
    found = summary([event("a", 2 * i, 1) for i in range(MAX_EVENTS + 5)])
    assert len(found.events) == MAX_EVENTS and found.names == ("a",)
    assert found.busy_us == MAX_EVENTS + 5


def slice_of_trace(category: str, name: str, ts: float, **args: int) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2.5, "args": args}


@pytest.mark.parametrize("base_ns", [BASE_NS, 0])
def test_trace_is_put_on_the_monotonic_clock(base_ns) -> None:
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


def test_trace_by_an_unknown_clock_begins_with_the_window() -> None:
    window = Window(unix_ns=BASE_NS, began_ns=7_000_000, calls_ns=[], ended_ns=7_100_000)
    trace = {"traceEvents": [slice_of_trace("kernel", "mine", 123.0), slice_of_trace("kernel", "mine", 130.0)]}
    assert [event.start_us for event in read_trace(trace, window)] == pytest.approx([7000.0, 7007.0])


def test_without_cupti_the_calls_are_made_all_the_same(tmp_path, monkeypatch) -> None:
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
    assert found.device is None and len(found.calls_ns) == 2 and found.wall_ns >= found.inside_ns


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
def test_gpu_counts_as_watched_where_cupti_saw_the_driver(tmp_path, monkeypatch, trace, recorded) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.autograd.profiler.profile", FakeProfiler)
    monkeypatch.setattr(FakeProfiler, "trace", trace)
    found = profile_calls(lambda index, epoch: None, [0, 0], 1, synchronize=lambda: None, meet=lambda: None).device
    assert (None if found is None else len(found.events)) == recorded
    assert FakeProfiler.running == 0


def test_profiling_does_not_import_what_takes_seconds(tmp_path) -> None:
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
def test_copies_as_slow_as_links_are_taken_for_copies_between_gpus(name, kind, nbytes, duration_us, moved) -> None:
    copied = event(name, 0, duration_us, kind, nbytes)
    [reported] = with_peer_copies([copied], LINK)
    assert (reported.role == "communication") == moved
    assert reported == (replace(copied, name=SLOW_COPY) if moved else copied)
    found = summary([reported])
    assert found.peer_copied_bytes == nbytes * moved
    assert found.own_copied_bytes == nbytes * (name == OWN and not moved)


@pytest.mark.parametrize(("link_bytes_per_s", "role"), [(LINK, "communication"), (None, "compute")])
def test_copies_are_distinguished_where_there_are_links(tmp_path, monkeypatch, link_bytes_per_s, role) -> None:
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
    assert found.device is not None
    assert getattr(found.device, f"{role}_us") == 7.5


class FakeHeap:
    """The places of some ranks."""

    def __init__(self, world_size: int) -> None:
        self.places = [Place() for _ in range(world_size)]

    def place(self, rank: int) -> Place:
        return self.places[rank]


def test_ranks_meet() -> None:
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


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(monkeypatch) -> None:
    usually_s = cuda_profile.MEET_S
    monkeypatch.setattr(cuda_profile, "MEET_S", 0.05)
    began = time.monotonic()
    meet(FakeHeap(2), 0, 2, 9)
    assert 0.05 <= time.monotonic() - began < usually_s
