"""A `Feedback` as text for an agent: what went wrong and what to do first, then what was measured."""

from __future__ import annotations

from pkb_gym.engine.records.emulation import DetectedError, Emulation
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.records.race_check import RaceCheckReport
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.records.timing import Timing
from pkb_gym.envs.text.formatting import cut_middle, quoted, three_digits, time_text
from pkb_gym.envs.text.kernels import kernels_text
from pkb_gym.envs.text.profile import profile_text

MAX_FEEDBACK_CHARS = 8_000
"""Longest text; the compiler's log and the candidate's output are cut first."""

MAX_LOG_CHARS = 3_000
MAX_OUTPUT_CHARS = 1_500
MAX_MISMATCHES = 4
MAX_FINDINGS, MAX_ADVICE, MAX_LINKS = 6, 4, 8

CALLS_LIBRARY = "It calls torch.distributed, as the baseline does, and so is no custom communication kernel."

ADVICE: dict[Failure, str] = {
    Failure.REJECTED: "Submit one complete source file that defines `solution`, and nothing else.",
    Failure.COMPILE_ERROR: "Mend the first error in the log; later ones often follow from it.",
    Failure.LOAD_ERROR: "Export `solution` with exactly the signature of the task.",
    Failure.RUNTIME_ERROR: "It crashed or raised while running: look at indices, sizes by rank, peers' memory.",
    Failure.OUT_OF_MEMORY: "Allocate less, and nothing that grows from call to call.",
    Failure.DEADLOCK: "Ranks wait for each other: see that each wait has its signal, on every rank, in every call.",
    Failure.TIMEOUT: "It did not end in time: look for an endless loop, or far too much work.",
    Failure.WRONG_SHAPE_OR_DTYPE: "Return outputs of the structure, shape and dtype that the task names.",
    Failure.OUTPUT_MISMATCH: "Compare with the reference at the place named, on every rank.",
    Failure.RACE: "Touch a peer's memory only while its call runs: wait until it has begun, and signal it when done.",
    Failure.INPUT_MODIFIED: "Leave arguments as they are unless the task declares them overwritten.",
    Failure.INTEGRITY: "Do the work in every call, on every rank, before returning; nothing else is paid.",
    Failure.INFRASTRUCTURE: "This is a fault of the evaluator, not of the source; the attempt does not count.",
    Failure.COMPILED_ONLY: "Whether it is right or fast is not known; the attempt does not count.",
}
"""One sentence on what to do about each failure."""


def feedback_text(feedback: Feedback, max_chars: int = MAX_FEEDBACK_CHARS) -> str:
    """One paragraph per part: verdict, findings, compiler, correctness, output, time, roofline, profile.

    Lines that a candidate or a compiler wrote stand behind a bar each, so that none of them reads as one of these.

    Args:
        feedback: Record of the evaluation.
        max_chars: Greatest length of the text, in characters; a longer one is cut in the middle.
    """
    paragraphs = [
        verdict_text(feedback),
        _findings_text(feedback),
        compiler_text(feedback),
        _shared_gpus_text(feedback),
        _debug_text(feedback),
        correctness_text(feedback),
        f"Race check: {found}." if (found := race_check_text(feedback.race_check)) else "",
        "" if feedback.emulation is None else _emulation_text(feedback.emulation, feedback.message),
        _output_text(feedback),
        "" if feedback.timing is None else _timing_text(feedback.timing),
        "" if feedback.roofline is None else _roofline_text(feedback.roofline),
        profile_text(feedback),
        CALLS_LIBRARY if feedback.calls_torch_distributed else "",
    ]
    return cut_middle("\n\n".join(paragraph for paragraph in paragraphs if paragraph), max_chars)


def verdict_text(feedback: Feedback) -> str:
    """The verdict, in one or a few lines."""
    if feedback.failure is None:
        if feedback.config.device == "emulated" and feedback.stage is Stage.CHECK:
            return "PASSED on emulated GPUs: every output of every rank was right. Nothing is timed there."
        if feedback.timing is None:
            return f"PASSED as far as was asked for (stage {feedback.stage})."
        leading = feedback.timing.leading
        speed = "faster than" if leading.low > 1 else "slower than" if leading.high < 1 else "as fast as"
        baseline = "baseline" if leading.baseline == "eager" else "baseline as CUDA graphs"
        factor = three_digits(leading.speedup)
        return f"PASSED: every output of every rank was right, and it is {speed} the {baseline} ({factor}x)."
    if feedback.failure is Failure.COMPILED_ONLY:
        return f"COMPILED, NOT RUN: {feedback.message}.\n{ADVICE[feedback.failure]}"
    where = "" if feedback.failed_rank is None else f" on rank {feedback.failed_rank}"
    after = "before any stage was completed" if feedback.stage is None else f"after stage {feedback.stage}"
    lines = [f"FAILED: {feedback.failure}{where}, {after}."]
    message = feedback.message
    if feedback.compile is not None and feedback.compile.log:
        message = message.replace(feedback.compile.log, "").strip().removesuffix(":")  # it has a paragraph of its own
    if message:
        first, *rest = cut_middle(message, MAX_LOG_CHARS).split("\n", 1)  # what follows may be the candidate's text
        lines += [first, *map(quoted, rest)]
    lines.append(ADVICE[feedback.failure])
    return "\n".join(lines)


def compiler_text(feedback: Feedback) -> str:
    """The compiler's log and the resources of each GPU kernel; empty where there is neither."""
    report = feedback.compile
    if report is None:
        return ""
    failed = feedback.failure is Failure.COMPILE_ERROR
    log = cut_middle(report.log.strip(), MAX_LOG_CHARS)
    parts = [quoted(log) if log else "", kernels_text(report)]
    text = "\n".join(part for part in parts if part)
    return f"Compiler{' (failed)' if failed else ''}:\n{text}" if text else ""


def correctness_text(feedback: Feedback) -> str:
    """The right outputs, and the places where the others are wrong; empty where nothing was compared."""
    check = feedback.check
    if check is None:
        return ""
    trials = f"{check.trials} trial{'' if check.trials == 1 else 's'}"
    if check.passed:
        return f"Correctness: all {check.outputs_compared} outputs of {trials} are right."
    lines = [
        f"Correctness: {check.outputs_right} of {check.outputs_compared} outputs are right over {trials} "
        f"({100 * check.right_share:.3g} % of the elements)."
    ]
    others = [str(mismatch) for mismatch in check.mismatches if str(mismatch) not in feedback.message]
    lines += [f"- {mismatch}" for mismatch in others[:MAX_MISMATCHES]]
    left_out = len(others) - MAX_MISMATCHES
    if left_out > 0:
        lines.append(f"- and {left_out} more")
    return "\n".join(lines)


def _shared_gpus_text(feedback: Feedback) -> str:
    shared = feedback.config.ranks_per_gpu
    return "" if shared == 1 else f"Ranks shared GPUs, up to {shared} on each: it is checked and not timed."


def _debug_text(feedback: Feedback) -> str:
    """The note on a debug build, and the reports of sanitizers."""
    if not feedback.config.debug:
        return ""
    lines = ["This was a debug build: it is not timed, and no reward is given."]
    for report in feedback.sanitizers:
        lines.append(f"{report.sanitizer} sanitizer: {report.summary}")
        if report.found and report.report:
            lines.append(quoted(cut_middle(report.report.strip(), MAX_LOG_CHARS)))
    return "\n".join(lines)


def race_check_text(report: RaceCheckReport | None) -> str:
    """A race detector's verdict beside GPUs; empty where it has none, or a race, which is the failure itself."""
    if report is None or report.verdict == "race":
        return ""
    is_gsan = report.detector == "gsan"
    if report.verdict == "no_race":
        run = "a run under Triton's GSan" if is_gsan else "the emulated run"
        return f"{run} at size {report.size} shows no race"
    detector = "Triton's GSan" if is_gsan else "the race detector"
    return f"warning, no failure: {detector} does not judge this source, since {report.reason}"


def _emulation_text(emulation: Emulation, message: str) -> str:
    """The schedules that it ran under, and the detector's findings beside the verdict."""
    schedules = "; ".join(emulation.schedules)
    lines = [
        f"Emulated GPUs: {emulation.calls} calls of each rank, {emulation.warp_instructions} warp instructions, under "
        f"these orders of execution (policy, seed): {schedules}."
    ]
    others = [finding for finding in emulation.findings if finding.text not in message]
    lines += [f"- {_finding_text(finding)}" for finding in others[:MAX_FINDINGS]]
    lines += [f"- {advice}" for advice in emulation.advice[:MAX_ADVICE]]
    lines += [
        f"- a call of rank {link.rank} reads {link.read_bytes_per_call:.0f} bytes of rank {link.owner}'s memory and "
        f"writes {link.written_bytes_per_call:.0f}"
        for link in emulation.links[:MAX_LINKS]
    ]
    return "\n".join(lines)


def _finding_text(finding: DetectedError) -> str:
    """The finding; one that does not fail says so first."""
    notes = {"weak_order": "warning, no failure by itself: ", "benign": "no failure: "}
    return notes.get(finding.finding_class or "", "") + str(finding)


def _findings_text(feedback: Feedback) -> str:
    if not feedback.integrity:
        return ""
    lines = ["Integrity: what no honest kernel does was found, and nothing is paid."]
    lines += [f"- {finding.code}: {cut_middle(finding.detail, 500)}" for finding in feedback.integrity]
    return "\n".join(lines)


def _output_text(feedback: Feedback) -> str:
    if not feedback.output.strip() or feedback.failure is None:
        return ""
    return f"It wrote (stdout and stderr, the end):\n{quoted(cut_middle(feedback.output.strip(), MAX_OUTPUT_CHARS))}"


def _timing_text(timing: Timing) -> str:
    leading = timing.leading
    name = "baseline" if leading.baseline == "eager" else "baseline as CUDA graphs, without launches,"
    text = (
        f"Time per call: candidate {time_text(timing.candidate_us)}, {name} {time_text(leading.baseline_us)}; "
        f"speedup {three_digits(leading.speedup)}, "
        f"95 % interval {three_digits(leading.low)} to {three_digits(leading.high)}, "
        f"{len(timing.blocks)} pairs of blocks."
    )
    if not timing.converged:
        text += " The interval was still wide when time ran out."
    if leading.baseline == "captured":
        text += (
            f" Eager, the baseline takes {time_text(timing.baseline_us)}, {three_digits(timing.speedup)} times the "
            "candidate's time: its host takes longer to launch a call than the device to do it."
        )
    elif timing.baseline_graph_us is not None:
        text += (
            f" As CUDA graphs, without launches, the baseline takes {time_text(timing.baseline_graph_us)}: "
            f"{timing.baseline_graph_us / timing.candidate_us:.3g} times the candidate's time."
        )
    if timing.over_registered is not None:
        text += (
            f" With NCCL on registered memory these graphs take {time_text(timing.over_registered.baseline_us)}: "
            f"{three_digits(timing.over_registered.speedup)} times the candidate's time."
        )
    if timing.delivers:
        text += " Both times contain copying the returned outputs."
    return text


def _roofline_text(roofline: Roofline) -> str:
    times = roofline.times
    parts = {"matrix": times.matrix_us, "vector": times.vector_us, "memory": times.memory_us, "link": times.link_us}
    listed = ", ".join(f"{name} {time_text(time_us)}" for name, time_us in parts.items() if time_us > 0)
    text = f"Roofline: {time_text(roofline.ceiling_us)} per call at the hardware's peaks"
    text += f", bound by the {roofline.binds} ({listed})." if roofline.binds else ", as no work is needed."
    if roofline.candidate_utilisation is not None and roofline.ceiling_us > 0:
        text += f" The candidate reaches {100 * roofline.candidate_utilisation:.3g} % of it"
        if roofline.baseline_utilisation is not None:
            text += f", the baseline {100 * roofline.baseline_utilisation:.3g} %"
        text += "."
    if roofline.latency_floor_us:
        text += f" One link latency is {time_text(roofline.latency_floor_us)}."
    if roofline.lower_bound.binds:
        text += f" No algorithm takes less than {time_text(roofline.lower_bound.time_us)}."
    return text
