"""Debugging of the first checked calls before the candidate is loaded: kept calls, and sanitizers."""

from __future__ import annotations

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.kept_run import keep_run
from pkb_gym.engine.stages.sanitize import sanitize


def debug_run(run: CandidateRun, plan: BlockPlan, staging: BlockStaging) -> None:
    """Keeps the calls and runs them under sanitizers, as far as was asked for.

    Args:
        run: of the candidate.
        plan: of a block whose baseline results are there.
        staging: how its calls are conducted.

    Raises:
        ConfigError: the run cannot be kept.
        Stopped: a sanitizer has found something.
        InfrastructureError: a sanitizer is missing here.
    """
    tools = run.tools
    if tools.folders.keep_to is not None and run.dialect == "native":
        keep_run(run, plan, staging, tools.folders.keep_to)
    if run.config.sanitize and tools.compile_cache is not None:
        sanitize(run, tools.compile_cache, plan, staging)
