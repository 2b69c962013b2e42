"""Hypothesis strategies that build every kind of legal `Feedback`."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from pkb_gym.engine.records.compiler_report import KernelResources
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import (
    CompileReport,
    Environment,
    Failure,
    Feedback,
    Finding,
    HotSpot,
    KernelTime,
    Profile,
    RankProfile,
    Stage,
)
from pkb_gym.engine.records.mechanisms import Mechanism
from pkb_gym.engine.records.roofline import LowerBound, Rates, ResourceTimes, Roofline
from pkb_gym.engine.records.timing import CAPTURED, REGISTERED, Block, Timing

NOT_JUDGED = (Failure.INFRASTRUCTURE, Failure.COMPILED_ONLY)
"""What no reward pays for: it says nothing of the candidate."""

RATES = ("matrix_flops", "vector_flops", "memory_bytes", "link_bytes")
RESOURCES = ("matrix", "vector", "memory", "link")
texts = st.text(max_size=200)
times_us = st.floats(1e-3, 1e12)
sizes = st.integers(0, 2**40)
shares = st.one_of(st.none(), st.floats(0, 1e9))

configs = st.builds(
    ResolvedConfig,
    device=st.sampled_from(["cpu", "cuda"]),
    world_size=st.sampled_from([1, 2, 4, 8]),
    size=st.one_of(st.just("tiny"), st.just({"M": 3, "splits": (1, 2)})),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    language=st.sampled_from(["cpp", "cuda", "triton", "python"]),
    protocol=st.sampled_from(["robust", "published"]),
    until=st.sampled_from(["compile", "check", "time", "profile"]),
    trials=st.integers(1, 10),
    seed=st.integers(0, 2**31),
    turn=st.integers(0, 100),
    timeout_s=st.floats(0.1, 100),
    compile_timeout_s=st.floats(0.1, 100),
    timing_budget_s=st.floats(0.1, 100),
    memory_bytes=st.integers(1, 2**40),
)
environments = st.builds(Environment, hardware=texts, processors=st.integers(1, 256), sandbox=texts, toolchain=texts)
kernel_names = st.sampled_from(
    ["my_kernel", "my_kernel(float*)", "ncclDevKernel_x", "void at::native::f<1>()", "Memcpy PtoP", ""]
)
kernel_resources = st.builds(KernelResources, name=kernel_names, instructions=st.none())
compile_reports = st.builds(
    CompileReport,
    duration_s=st.floats(0, 100),
    log=texts,
    binary_bytes=st.none() | sizes,
    kernels=st.lists(kernel_resources, max_size=2).map(tuple),
)


@st.composite
def mismatches(draw: st.DrawFn) -> Mismatch:
    shape = draw(st.lists(st.integers(0, 9), max_size=3).map(tuple))
    elements = draw(st.integers(1, 1000))
    located = draw(st.booleans())
    return Mismatch(
        trial=draw(st.integers(0, 9)),
        rank=draw(st.integers(0, 7)),
        output=draw(st.sampled_from(["out", "grads[2]"])),
        reason=draw(st.sampled_from(["values", "shape_or_dtype", "input_modified"])),
        shape=shape,
        dtype="float32",
        wrong_elements=draw(st.integers(0, elements)),
        elements=elements,
        bounding_box=tuple((0, 1) for _ in shape) if located else None,
        worst_index=tuple(0 for _ in shape) if located else None,
        got=draw(st.none() | st.just("nan")),
        expected=draw(st.none() | st.just("1.5")),
        rule="exact",
    )


@st.composite
def checks(draw: st.DrawFn, passed: bool) -> CheckReport:
    outputs, elements = draw(st.integers(0, 100)), draw(st.integers(0, 2**40))
    wrong = () if passed else tuple(draw(st.lists(mismatches(), min_size=1, max_size=3)))
    return CheckReport(
        trials=draw(st.integers(1, 10)),
        outputs_compared=outputs,
        outputs_right=outputs if passed else draw(st.integers(0, outputs)),
        elements_compared=elements,
        elements_right=elements if passed else draw(st.integers(0, elements)),
        mismatches=wrong,
    )


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    low, middle, high = sorted(draw(st.tuples(*[st.floats(1e-9, 1e9)] * 3)))
    blocks = st.builds(Block, calls=st.integers(1, 500), baseline_us=times_us, candidate_us=times_us)
    graphs: dict[str, float] = {}
    for names in (CAPTURED, REGISTERED):
        if (graphs_us := draw(st.none() | times_us)) is not None:
            ends = sorted(draw(st.tuples(*[st.floats(1e-9, 1e9)] * 2)))
            graphs |= dict(zip(names, (graphs_us, *ends), strict=True))
    return Timing(
        protocol=draw(st.sampled_from(["robust", "published"])),
        baseline_us=draw(times_us),
        candidate_us=draw(times_us),
        speedup=middle,
        speedup_low=low,
        speedup_high=high,
        gate_us=draw(times_us),
        baseline_handover_us=draw(times_us),
        candidate_handover_us=draw(times_us),
        baseline_alone_us=draw(st.none() | times_us),
        delivered_bytes=draw(sizes),
        converged=draw(st.booleans()),
        blocks=tuple(draw(st.lists(blocks, max_size=3))),
        **graphs,
    )


rates = st.builds(
    Rates,
    **{f"{name}_per_s": st.floats(0, 1e18) for name in RATES},
)
resource_times = st.builds(ResourceTimes, **{f"{name}_us": st.floats(0, 1e12) for name in RESOURCES})
rooflines = st.builds(
    Roofline,
    ceiling_us=st.one_of(st.just(0.0), times_us),
    binds=st.sampled_from([None, *RESOURCES]),
    times=resource_times,
    lower_bound=st.builds(
        LowerBound, time_us=times_us, binds=st.sampled_from([None, *RESOURCES]), times=resource_times
    ),
    latency_floor_us=st.none() | times_us,
    peaks=rates,
    baseline_utilisation=shares,
    candidate_utilisation=shares,
    baseline_achieved=st.none() | rates,
    candidate_achieved=st.none() | rates,
)
PER_CALL = ("wall_us", "compute_us", "communication_us", "waiting_us", "host_us", "user_us", "system_us")
rank_profiles = st.builds(
    RankProfile,
    rank=st.integers(0, 7),
    calls=st.integers(1, 100),
    link_bytes_per_s=st.none() | st.floats(0, 1e15),
    **{name: st.floats(0, 1e12) for name in PER_CALL},
)
hot_spots = st.builds(HotSpot, name=texts, calls=st.integers(1, 100), self_us=times_us)
kernel_times = st.builds(KernelTime, name=kernel_names, launches=sizes, mean_us=times_us, share=st.floats(0, 1))
profiles = st.builds(
    Profile,
    ranks=st.lists(rank_profiles, max_size=4).map(tuple),
    hot_spots=st.lists(hot_spots, max_size=2).map(tuple),
    kernels=st.lists(kernel_times, max_size=4).map(tuple),
    mechanisms=st.lists(st.sampled_from(get_args(Mechanism)), max_size=2, unique=True).map(tuple),
)
findings = st.builds(Finding, detail=texts)


@st.composite
def feedbacks(draw: st.DrawFn, right: bool = False) -> Feedback:
    """Any record that passes the validators of `Feedback`; with `right`, those of right kernels alone."""
    stage = draw(st.sampled_from([Stage.CHECK, Stage.TIME, Stage.PROFILE] if right else [None, *Stage]))
    order = -1 if stage is None else stage.order
    timed = order >= Stage.TIME.order
    reached_check = order >= Stage.CHECK.order
    failures = [*Failure] if stage is None else [None, *Failure]
    failure = None if right else draw(st.sampled_from(failures))
    if order == Stage.RUN.order and failure is None:
        failure = Failure.OUTPUT_MISMATCH
    found = tuple(draw(st.lists(findings, min_size=int(failure is Failure.INTEGRITY), max_size=0 if right else 2)))
    check = draw(checks(passed=True)) if reached_check else None
    if order == Stage.RUN.order:
        check = draw(st.none() | checks(passed=False))
    return Feedback(
        problem=draw(st.sampled_from(["AllReduce", "HyenaCP"])),
        problem_sha256="0" * 64,
        source_sha256="0" * 64,
        config=draw(configs),
        environment=draw(environments),
        stage=stage,
        failure=failure,
        message=draw(texts),
        failed_rank=draw(st.none() | st.integers(0, 7)),
        output=draw(texts),
        calls_torch_distributed=draw(st.sampled_from([None, True, False])),
        compile=draw(st.none() | compile_reports) if order >= 0 else None,
        check=check,
        timing=draw(timings()) if timed else None,
        profile=draw(st.none() | profiles) if timed else None,
        roofline=draw(st.none() | rooflines) if timed else None,
        integrity=found,
        durations_s=draw(st.dictionaries(st.sampled_from(["compile", "run"]), st.floats(0, 100))),
    )
