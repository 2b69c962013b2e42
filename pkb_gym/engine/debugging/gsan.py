"""Triton's GSan as a judge: calls of the candidate with instrumented kernels, in a run beside the judged one.

What its ranks report is untrusted: a source that turns GSan off has no race. A reported race is a failure all the same,
as no source accuses itself.
"""

from __future__ import annotations

import re
from typing import Literal

from pkb_gym.engine.debugging.gsan_reports import Assertion, assertions_in, unseen_synchronisation
from pkb_gym.engine.records.check_report import Race
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import LAST_OUTPUT
from pkb_gym.engine.records.race_check import JudgedRaces, RaceCheckReport
from pkb_gym.engine.stages.block_staging import plain
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.race_check import MAX_REASON_CHARS
from pkb_gym.engine.support.printable import printable

CALLS = 3
"""Each meets what the one before it has left, and scratch of two halves comes back to the first."""

_ERROR = re.compile(r"^[\w.]{1,200}(?:Error|Exception|Exit|Interrupt)\b.*$", re.MULTILINE)

TIMEOUT_S = 60.0
"""Deadline of the calls at least, in seconds: the first compiles each kernel anew, with GSan's own library."""


def gsan_config(config: ResolvedConfig) -> ResolvedConfig:
    """The configuration of the run.

    Args:
        config: Configuration of the evaluation.
    """
    return config.model_copy(update={"until": "check", "timeout_s": max(config.timeout_s, TIMEOUT_S)})


def judge_by_gsan(run: CandidateRun) -> JudgedRaces:
    """Makes the calls.

    Args:
        run: Run of the candidate, under the configuration of `gsan_config`; it has not been loaded.

    Returns:
        The verdict, without its duration.

    Raises:
        InfrastructureError: This machine failed.
    """
    plan = run.prepare(CALLS, timed=False)
    calls = len(plan.sets)
    run.allow(run.reference.run(calls, run.dialect))
    reason = ""
    try:
        run.load(gsan_seed=run.config.seed % (1 << 32))
        finished = run.run(plan, range(calls), plain(run.config.world_size))
        if not run.compare(finished.done).passed:
            reason = "its outputs are wrong there"
    except Stopped as stopped:
        reason = f"its run ended with {run.feedback.failure}: {_cause(str(stopped))}"
    ranks = range(run.config.world_size)
    found = [(rank, one) for rank in ranks for one in assertions_in(run.gang.output_of(rank))]
    for rank, assertion in found:
        if assertion.is_race:
            return _race(run, rank, assertion)
    if found:
        reason = f"an assertion of the device failed: {found[0][1]}"
    return gsan_not_judged(run.config, reason) if reason else JudgedRaces(report=_report(run.config, "no_race"))


def _race(run: CandidateRun, rank: int, assertion: Assertion) -> JudgedRaces:
    """The verdict on a race; one that GSan may have missed the order of is not judged."""
    if unseen := unseen_synchronisation(run.feedback.source.text):
        return gsan_not_judged(run.config, f"it reports {assertion} on rank {rank}, and does not see {unseen}")
    evidence = f"{assertion} on rank {rank}: no release and acquire order it with an earlier access to the same bytes"
    return JudgedRaces(
        report=_report(run.config, "race"),
        race=Race(kind="unordered", rank=rank, evidence=evidence),
        message=f"{evidence}\nfound by Triton's GSan, which names the later access, in {CALLS} calls of their own",
        failed_rank=rank,
    )


def gsan_not_judged(config: ResolvedConfig, reason: str) -> JudgedRaces:
    """The verdict that there is none, without its duration.

    Args:
        config: Configuration of the run.
        reason: Reason, of which the first line is kept; it may quote what a candidate wrote.
    """
    return JudgedRaces(report=_report(config, "not_judged", printable(reason.partition("\n")[0], MAX_REASON_CHARS)))


def _report(
    config: ResolvedConfig, verdict: Literal["no_race", "race", "not_judged"], reason: str = ""
) -> RaceCheckReport:
    size = config.size if isinstance(config.size, str) else ",".join(f"{name}={n}" for name, n in config.size.items())
    return RaceCheckReport(detector="gsan", verdict=verdict, reason=reason, size=size, duration_s=0.0)


def _cause(message: str) -> str:
    """The line of a failure that names its cause: of a traceback, the error; else the first."""
    text = message.partition(LAST_OUTPUT)[0]
    error = _ERROR.search(text) if "Traceback (most recent call last)" in text else None
    return error[0] if error else text.partition("\n")[0]
