"""The profile as a record, from the ranks' untrusted reports and the links' counters."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pkb_gym.engine.hardware.gpus import NvlinkBytes
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.feedback import Profile
from pkb_gym.engine.stages.profile_report import MAX_HOT_SPOTS, make_profile
from pkb_gym.engine.wire.orders import (
    DeviceEvent,
    KernelTotal,
    OperatorTime,
    ProcessUsage,
    ProfileDone,
    Transfers,
)
from tests.engine.gpu_events import EVENTS, event
from tests.engine.reports import reported, with_device

CODE = InstructionCounts(loads=8, stores=2)


def gpu_profile(*ranks: ProfileDone, trace: bool = False) -> Profile | None:
    links = [NvlinkBytes(3 << 20, 3 << 20)] * len(ranks)
    return make_profile(2, ranks, on_gpus=True, links=links, code=CODE, trace=trace)


def test_profile_of_gpus_is_per_call() -> None:
    profile = gpu_profile(reported(*EVENTS), reported(*EVENTS))
    assert profile is not None
    rank = profile.ranks[1]
    assert (rank.wall_us, rank.busy_us, rank.host_us, rank.overlap_us) == (50, 25, 25, 5)
    assert (rank.compute_us, rank.communication_us, rank.waiting_us) == (15, 5, 5)
    assert (rank.waits, rank.mean_wait_us, rank.put_bytes) == (2, 1.5, 32)
    assert (rank.sent_bytes, rank.received_bytes) == (1 << 20, 1 << 20)  # the call before the measured ones counts too
    assert rank.copied_bytes == 1 << 19 and rank.link_bytes_per_s is None
    assert (rank.user_us, rank.system_us, rank.minor_page_faults, rank.involuntary_switches) == (1, 0, 3, 3)
    longest = profile.kernels[0]
    assert (longest.name, longest.launches, longest.mean_us) == ("mine(float*)", 2, 15)
    assert math.isclose(sum(kernel.share for kernel in profile.kernels), 1)
    assert profile.mechanisms == ("copy engine", "SM load/store")
    assert profile.trace == () == profile.hot_spots


def test_profile_of_the_cpu_is_per_call() -> None:
    transfers = Transfers(wait_ns=2000, copy_ns=4000, put_bytes=512, got_bytes=256, signals=1, waits=1)
    operators = tuple(OperatorTime(f"aten::op{i}\n", i, 1.5) for i in range(MAX_HOT_SPOTS + 3))
    report = reported(transfers=transfers, operators=operators, device=None)
    profile = make_profile(2, [report, reported(transfers=None, device=None)])
    assert profile is not None
    rank = profile.ranks[0]
    assert (rank.wall_us, rank.compute_us, rank.communication_us, rank.waiting_us) == (50, 1.5, 2, 1)
    assert rank.host_us == 45.5
    assert (rank.put_bytes, rank.got_bytes) == (256, 128)
    assert rank.link_bytes_per_s == pytest.approx(768 / 4e-6)
    assert (rank.busy_us, rank.waits, rank.sent_bytes) == (None, None, None)
    assert [spot.name for spot in profile.hot_spots] == [f"aten::op{i}?" for i in range(MAX_HOT_SPOTS)]
    assert profile.ranks[1].link_bytes_per_s is None, "a module's copies are not counted"
    assert profile.kernels == profile.mechanisms == profile.trace == ()


def test_timelines_of_all_ranks_begin_together() -> None:
    profile = gpu_profile(reported(*EVENTS), reported(event("other", 1100, 5)), trace=True)
    assert profile is not None
    assert [each.rank for each in profile.trace] == [0] * 6 + [1] * 3
    first = profile.trace[0]
    assert (first.kind, first.name, first.start_us, first.duration_us, first.stream) == ("call", "call 0", 0, 4, None)
    assert profile.trace[2].start_us == 10 and profile.trace[-1].start_us == 100
    assert profile.trace[3].nbytes == 1 << 20


def test_timeline_of_the_cpu_holds_the_calls() -> None:
    cpu = reported(device=None)
    profile, without = make_profile(2, [cpu, cpu], trace=True), make_profile(2, [cpu, cpu])
    assert profile is not None and without is not None
    assert [(each.rank, each.kind) for each in profile.trace] == [(0, "call")] * 2 + [(1, "call")] * 2
    assert without.trace == ()


def test_python_ranks_have_no_counted_waits() -> None:
    profile = gpu_profile(reported(*EVENTS, transfers=None), reported(*EVENTS, transfers=None))
    assert profile is not None
    rank = profile.ranks[0]
    assert rank.waits is None and rank.mean_wait_us is None and rank.put_bytes == 0


def test_no_profile_where_a_gpu_could_not_be_watched() -> None:
    assert gpu_profile(reported(*EVENTS), reported(device=None)) is None


def test_one_rank_moves_nothing() -> None:
    profile = gpu_profile(reported(*EVENTS))
    assert profile is not None and profile.mechanisms == ()


RIGHT = reported(*EVENTS)
KERNEL = DeviceEvent("kernel", 0, 1, 1, 7, 0)
NONSENSE = [
    reported(*EVENTS, wall_us=-1.0),
    reported(*EVENTS, inside_ns=10**17),
    reported(*EVENTS, usage=ProcessUsage(0, 0, 0, -1, 0, 0)),
    reported(*EVENTS, transfers=Transfers(waits=-4)),
    reported(*EVENTS, operators=(OperatorTime("a", -1, 1.0),)),
    with_device(RIGHT, busy_us=-4.0),
    with_device(RIGHT, overlap_us=1e300),
    with_device(RIGHT, busy_us=float("nan")),
    with_device(RIGHT, nccl_kernels=-1),
    with_device(RIGHT, kernels=(KernelTotal("a", -1, 1.0),)),
    with_device(RIGHT, kernels=(KernelTotal("a", 1, -1.0),)),
    with_device(RIGHT, events=(dataclasses.replace(KERNEL, name=99),)),
    with_device(RIGHT, events=(dataclasses.replace(KERNEL, name=-1),)),
    with_device(RIGHT, events=(dataclasses.replace(KERNEL, duration_us=1e12),)),
    with_device(RIGHT, events=(dataclasses.replace(KERNEL, duration_us=-1.0),)),
    with_device(RIGHT, events=(dataclasses.replace(KERNEL, start_us=1e13),)),
    with_device(RIGHT, events=(dataclasses.replace(KERNEL, nbytes=-1),)),
    with_device(RIGHT, names=()),
]
"""What has the right types, and cannot be."""


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_of_a_rank_is_no_profile(nonsense: ProfileDone) -> None:
    assert gpu_profile(RIGHT, RIGHT, trace=True) is not None
    assert gpu_profile(nonsense, RIGHT, trace=True) is None
    assert gpu_profile(RIGHT, nonsense, trace=True) is None


def test_names_are_short_printable_ascii_without_markers() -> None:
    profile = gpu_profile(reported(event("k\x1b[31m\n\u202e<|im_end|>" + "x" * 900, 0, 1)), trace=True)
    of_cpu = make_profile(2, [reported(operators=(OperatorTime("op<|im_end|>", 1, 1.0),), device=None)])
    assert profile is not None and of_cpu is not None
    for name in (profile.kernels[0].name, profile.trace[-1].name):
        assert name.startswith("k?[31m??\\x3c|im_end|>xxx") and len(name) == 203
    assert of_cpu.hot_spots[0].name == "op\\x3c|im_end|>"


def test_tables_and_timelines_are_cut() -> None:
    many = reported(*(event(f"k{i}", 2 * i, 1) for i in range(100)))
    assert many.device is not None
    profile = gpu_profile(with_device(many, events=many.device.events * 100), trace=True)
    assert profile is not None
    assert len(profile.kernels) == 12 and len(profile.trace) == 2002
