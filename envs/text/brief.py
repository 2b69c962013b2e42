"""Task and feedback in a few lines: for small models, and where many tasks or turns have to fit in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.signature import plain_cpp_signature
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.envs.text.formatting import time_text
from pkb_gym.envs.text.python_sources import plain_source, python_signature
from pkb_gym.problems.catalogue import reference_source

MAX_FEEDBACK_CHARS = 300
MAX_SUMMARY_CHARS = 160
MAX_DETAIL_CHARS = 180


def brief_task(problem: Problem, config: ResolvedConfig, languages: Sequence[str], machine: Machine) -> str:
    """A task in a few lines and the reference's code: no contract, no rules, no peaks, no example.

    Args:
        problem: Problem to solve.
        config: Configuration with size, world size and dtype.
        languages: Accepted dialects; the signature is that of the first.
        machine: Machine that judges.
    """
    lines = [
        f"{problem.name}: {_cut(problem.summary, MAX_SUMMARY_CHARS)}",
        f"language: {' or '.join(languages)}",
        f"signature: {_signature(problem, languages[0])}",
        f"axes: {axes_text(problem, config)}",
        f"dtype: {config.dtype}",
        f"ranks: {config.world_size}, {_place(config, machine)}",
        f"reference:\n{plain_source(reference_source(problem))}",
    ]
    return "\n".join(lines)


def axes_text(problem: Problem, config: ResolvedConfig) -> str:
    """The values of the axes that the size gives.

    Args:
        problem: Problem with the axes.
        config: Configuration with the size.
    """
    size = config.size_argument
    axes = problem.sizes[size] if isinstance(size, str) else size
    return ", ".join(f"{name}={value}".replace(" ", "") for name, value in axes.items())


def brief_feedback(feedback: Feedback, value: float | None) -> str:
    """The feedback in at most `MAX_FEEDBACK_CHARS` characters: the stage reached, the first mistake, the speedup.

    Args:
        feedback: Feedback on one submission.
        value: Value of the submission; None where the evaluator failed.
    """
    value_line = "" if value is None else f"\nvalue {value:.2f}"
    if feedback.failure is None:
        return _cut(_passed(feedback), MAX_FEEDBACK_CHARS - len(value_line)) + value_line
    if feedback.failure is Failure.COMPILED_ONLY:
        text = f"{feedback.failure}: {feedback.message}"
        return _cut(text, MAX_FEEDBACK_CHARS - len(value_line)) + value_line
    stage = f"after {feedback.stage}" if feedback.stage is not None else "at once"
    where = "" if feedback.failed_rank is None else f" on rank {feedback.failed_rank}"
    detail = _cut(_first_detail(feedback), MAX_DETAIL_CHARS)
    text = f"failed {stage}: {feedback.failure}{where}" + (f"\n{detail}" if detail else "")
    return _cut(text, MAX_FEEDBACK_CHARS - len(value_line)) + value_line


def _passed(feedback: Feedback) -> str:
    timing = feedback.timing
    if timing is None:
        return f"passed as far as {feedback.stage}; not timed"
    leading = timing.leading
    name = "baseline" if leading.baseline == "eager" else "captured baseline"
    times = f"{time_text(timing.candidate_us)}, {name} {time_text(leading.baseline_us)}"
    return f"passed: {times}, speedup {leading.speedup:.2f} ({leading.low:.2f} to {leading.high:.2f})"


def _first_detail(feedback: Feedback) -> str:
    """The most informative line."""
    if feedback.failure is Failure.COMPILE_ERROR and feedback.compile is not None:
        errors = [line for line in feedback.compile.log.splitlines() if re.search(r"\berror\b|undefined", line)]
        return errors[0].strip() if errors else feedback.message.splitlines()[0]
    if feedback.check is not None and feedback.check.mismatches:
        wrong = feedback.check.mismatches[0]
        if wrong.reason == "shape_or_dtype":
            return f"{wrong.output} on rank {wrong.rank}: expected {wrong.expected}, got {wrong.got}"
        line = f"{wrong.output} on rank {wrong.rank}: {wrong.wrong_elements} of {wrong.elements} elements wrong"
        if wrong.bounding_box:
            line += ", indices [" + ", ".join(f"{low}..{high}" for low, high in wrong.bounding_box) + "]"
        return f"{line}; got {wrong.got}, expected {wrong.expected}"
    if feedback.integrity:
        return f"{feedback.integrity[0].code}: {feedback.integrity[0].detail}"
    first = next((line.strip() for line in feedback.message.splitlines() if line.strip()), "")
    return first.removesuffix("Expected this signature and export:").strip()


def _signature(problem: Problem, language: str) -> str:
    if language not in ("cpp", "cuda"):
        return " ".join(python_signature(reference_source(problem)).split()).replace("( ", "(").replace(", )", ")")
    return plain_cpp_signature(problem).replace("tvm::ffi::", "").rstrip(";")


def _place(config: ResolvedConfig, machine: Machine) -> str:
    if config.device == "cpu":
        return "cores of one CPU, shared memory"
    if config.device == "emulated":
        return "one emulated GPU each, not timed"
    if config.ranks_per_gpu > 1:
        return f"up to {config.ranks_per_gpu} to a GPU"
    return f"one {machine.gpu_names[0] if machine.gpu_names else 'GPU'} each, NVLink"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
