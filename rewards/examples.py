"""Small `Feedback` records for trying rewards: what an evaluation would have found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from pkb_gym.engine.records.compiler_report import KernelResources
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import (
    CompileReport,
    Environment,
    Failure,
    Feedback,
    Finding,
    KernelTime,
    Profile,
    Stage,
)
from pkb_gym.engine.records.mechanisms import Mechanism
from pkb_gym.engine.records.roofline import LowerBound, Rates, ResourceTimes, Roofline
from pkb_gym.engine.records.timing import CAPTURED, REGISTERED, Block, Timing

CONFIG = ResolvedConfig(
    device="cpu",
    world_size=4,
    size="tiny",
    dtype="bfloat16",
    language="cpp",
    protocol="robust",
    until="profile",
    trials=4,
    seed=0,
    turn=0,
    timeout_s=10.0,
    compile_timeout_s=60.0,
    timing_budget_s=0.2,
    memory_bytes=1 << 30,
)

MACHINE = Environment(
    hardware="example", processors=4, sandbox="limits", python="3.12", torch="2.13", toolchain="g++ 13"
)

LAST_STAGE: dict[str, Stage | None] = {
    "rejected": None,
    "compile_error": Stage.STATIC,
    "load_error": Stage.COMPILE,
    "runtime_error": Stage.COMPILE,
    "out_of_memory": Stage.COMPILE,
    "deadlock": Stage.COMPILE,
    "timeout": Stage.COMPILE,
    "wrong_shape_or_dtype": Stage.RUN,
    "output_mismatch": Stage.RUN,
    "race": Stage.RUN,
    "input_modified": Stage.RUN,
    "infrastructure": Stage.STATIC,
    "compiled_only": Stage.COMPILE,
}
"""Last stage that is usually completed before a failure."""


def failed(
    failure: str, earned_share: float = 0.0, message: str = "example", nothing_written: bool = False
) -> Feedback:
    """A submission that failed.

    Args:
        failure: Failure, one of `LAST_STAGE`.
        earned_share: Share of earned outputs where outputs were compared, in [0, 1].
        message: Message to the agent.
        nothing_written: Whether all outputs that were compared are as they were before the call.
    """
    stage = LAST_STAGE[failure]
    check = None
    if stage is Stage.RUN:
        right = min(99, round(100 * earned_share))
        wrong = Mismatch(
            trial=0,
            rank=0,
            output="out",
            reason="values",
            shape=(2,),
            dtype="bfloat16",
            wrong_elements=1,
            elements=2,
            bounding_box=((0, 0),),
            worst_index=(0,),
            got="0.0",
            expected="1.0",
            rule="exact",
        )
        check = CheckReport(
            trials=4,
            outputs_compared=100,
            outputs_right=right,
            elements_compared=200,
            elements_right=100 + right,
            mismatches=(wrong,),
            earned_share=earned_share,
            nothing_written=nothing_written,
        )
    return _feedback(stage=stage, failure=Failure(failure), message=message, check=check)


def timed(
    baseline_us: float = 100.0,
    roofline_us: float = 25.0,
    speedup_low: float | None = None,
    speedup: float | None = None,
    captured_us: float | None = None,
    registered_us: float | None = None,
    caught: Literal["beats_roofline", "wrong_while_timed", "late_output", "interference"] | None = None,
) -> Feedback:
    """A submission that was right and was timed.

    Args:
        baseline_us: Time of a call of the baseline, in microseconds.
        roofline_us: Ceiling of the roofline, in microseconds; the lower bound is half of it.
        speedup_low: Lower end of the speedup's interval; by default the speedup itself.
        speedup: Speedup over the baseline; by default the lower end of the interval, or 1.
        captured_us: Time of the baseline as CUDA graphs, in microseconds; the interval over it is as wide as the other.
        registered_us: Likewise, with NCCL on registered memory.
        caught: Code of an integrity finding.
    """
    middle = speedup if speedup is not None else speedup_low if speedup_low is not None else 1.0
    check = CheckReport(
        trials=4, outputs_compared=100, outputs_right=100, elements_compared=200, elements_right=200, mismatches=()
    )
    return _feedback(
        stage=Stage.TIME,
        failure=None if caught is None else Failure.INTEGRITY,
        message="" if caught is None else "example",
        check=check,
        timing=_timing(baseline_us, middle, middle if speedup_low is None else speedup_low, captured_us, registered_us),
        roofline=_roofline(roofline_us, baseline_us, baseline_us / middle),
        findings=() if caught is None else (Finding(code=caught, detail="example"),),
    )


def _timing(
    baseline_us: float, middle: float, low: float, captured_us: float | None, registered_us: float | None
) -> Timing:
    candidate_us = baseline_us / middle
    high = max(middle, 2 * middle - low)
    graphs: dict[str, float] = {}
    for names, graphs_us in ((CAPTURED, captured_us), (REGISTERED, registered_us)):
        if graphs_us is not None:
            ends = graphs_us / baseline_us * low, graphs_us / baseline_us * high
            graphs |= dict(zip(names, (graphs_us, *ends), strict=True))
    return Timing(
        protocol="robust",
        baseline_us=baseline_us,
        candidate_us=candidate_us,
        speedup=middle,
        speedup_low=low,
        speedup_high=high,
        gate_us=1.0,
        baseline_handover_us=1.0,
        candidate_handover_us=1.0,
        baseline_alone_us=baseline_us,
        delivered_bytes=0,
        converged=True,
        blocks=(Block(calls=10, baseline_us=baseline_us, candidate_us=candidate_us),),
        **graphs,
    )


def _roofline(roofline_us: float, baseline_us: float, candidate_us: float) -> Roofline:
    rates = Rates(matrix_flops_per_s=1e9, vector_flops_per_s=1e9, memory_bytes_per_s=1e9, link_bytes_per_s=1e9)
    half_us = roofline_us / 2
    return Roofline(
        ceiling_us=roofline_us,
        binds="link",
        times=ResourceTimes(matrix_us=0.0, vector_us=roofline_us / 4, memory_us=half_us, link_us=roofline_us),
        lower_bound=LowerBound(
            time_us=half_us,
            binds="memory",
            times=ResourceTimes(matrix_us=0.0, vector_us=0.0, memory_us=half_us, link_us=0.0),
            argument="Everything is read.",
            limits_source="example",
        ),
        latency_floor_us=0.1,
        peaks=rates,
        peaks_source="example",
        baseline_utilisation=roofline_us / baseline_us,
        candidate_utilisation=roofline_us / candidate_us,
        baseline_achieved=rates,
        candidate_achieved=rates,
    )


def profiled(
    kernels: Mapping[str, float] | None = None, mechanisms: tuple[Mechanism, ...] = (), speedup: float = 1.0
) -> Feedback:
    """A native CUDA submission that was right, timed and profiled, and whose only kernel is called my_kernel.

    Args:
        kernels: Share of the GPU's time by name of a kernel; by default unknown.
        mechanisms: Mechanisms by which data moved between GPUs.
        speedup: Speedup over the baseline.
    """
    times = [KernelTime(name=name, launches=1, mean_us=share, share=share) for name, share in (kernels or {}).items()]
    own = KernelResources(
        name="my_kernel",
        registers=32,
        shared_bytes=0,
        stack_bytes=0,
        spill_store_bytes=0,
        spill_load_bytes=0,
        barriers=1,
        instructions=None,
    )
    return timed(speedup=speedup).model_copy(
        update={
            "stage": Stage.PROFILE,
            "config": CONFIG.model_copy(update={"device": "cuda", "language": "cuda"}),
            "compile": CompileReport(duration_s=1.0, cached=False, log="", binary_bytes=1, kernels=(own,)),
            "profile": Profile(ranks=(), kernels=tuple(times), mechanisms=mechanisms),
        }
    )


def _feedback(
    *,
    stage: Stage | None,
    failure: Failure | None,
    message: str,
    check: CheckReport | None = None,
    timing: Timing | None = None,
    roofline: Roofline | None = None,
    findings: tuple[Finding, ...] = (),
) -> Feedback:
    return Feedback(
        problem="AllReduce",
        problem_sha256="0" * 64,
        source_sha256="0" * 64,
        config=CONFIG,
        environment=MACHINE,
        stage=stage,
        failure=failure,
        message=message,
        check=check,
        timing=timing,
        roofline=roofline,
        integrity=findings,
    )
