"""`pkb run`: an agent writes kernels for many problems; every turn is recorded, and a run that was stopped resumes."""

from __future__ import annotations

import argparse
import re
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.agents.registry import AGENTS, default_label, split_name
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record
from pkb_gym.envs.text.turn import DEFAULT_STYLE, STYLES

from .command import NO_GPU, RESUMES, Session, Status, add_json_option, add_parser, resuming, stderr, stdout
from .evaluator_choice import add_elsewhere_options, judged_here, open_chosen
from .options import (
    add_evaluation_options,
    add_reward_option,
    default_jobs,
    evaluation_config,
    positive_float,
    positive_int,
)
from .problem_options import add_problem_option, register_problems

if TYPE_CHECKING:
    from pkb_gym.agents.protocol import AgentProvider
    from pkb_gym.agents.run.identity import RunIdentity
    from pkb_gym.agents.run.plan import RunWorkload
    from pkb_gym.agents.run.results import RunResults
    from pkb_gym.agents.workspace.provider import WorkspaceProvider
    from pkb_gym.engine.evaluators.evaluator import Evaluator

EXAMPLE = """pkb run --agent reference --until check
pkb run --agent openai:gpt-5 --set max_tokens=32000 --samples 3 --world-size 4
pkb run --agent openai:gpt-5 --problems train --turns 20 --plateau 5 --max-tokens 5000000"""

EXIT_STATUSES = (
    "exit status: 0 every episode is complete, 2 wrong usage, 3 some are not, as a budget is used up or agent or "
    "evaluator failed: the same command continues; or sources for GPUs were compiled and not run"
)

OUTPUT = Path("runs")


class RunSummary(Record):
    """The output of `pkb run --json`."""

    results: str
    """Path of the attempts."""
    agent: str
    episodes: int
    """Episodes of the run."""
    complete: int
    """Number of complete ones."""
    problems: int
    """Problems that were tried."""
    passed: int
    """Problems with a right submission in any episode."""
    faster: int
    """Problems with a right submission whose leading speedup is more than 1: over the captured baseline where launches
    bound the eager one, else over the eager."""
    compiled_only: int
    """Submissions for GPUs that were compiled and not run, as this machine has none: nothing is known of them."""
    replies: int
    """Replies of the agent."""
    truncated: int
    """Replies that were cut off at their limit of tokens before a source was complete."""
    evaluations: int
    tokens: int
    cost_usd: float
    """Cost of all replies whose price is known."""
    skipped: dict[str, str]
    """Problem -> why it was not played."""
    failed: dict[str, str]
    """Episode, as problem and sample -> why it could not be completed."""
    stopped: str | None
    """The reason why the run stopped before its end."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb run`."""
    parser = add_parser(
        commands,
        "run",
        run,
        summary="Have an agent write kernels for many problems, and record every turn; called again, it resumes.",
        example=EXAMPLE,
        exit_statuses=f"agents:\n{_agents_text()}\n\n{EXIT_STATUSES}",
    )
    _add_agent_options(parser)
    parser.add_argument(
        "--problems",
        nargs="+",
        default=["all"],
        metavar="NAME",
        help="problems, categories, train, test or all (default: all)",
    )
    add_problem_option(parser)
    parser.add_argument(
        "--samples", type=positive_int, default=1, metavar="K", help="episodes of each problem; may be raised later"
    )
    parser.add_argument(
        "--turns",
        type=positive_int,
        metavar="T",
        help="replies of an episode, with feedback between them, or evaluations in a workspace; may be raised later "
        "(default: 1, in a workspace 40)",
    )
    parser.add_argument(
        "--plateau", type=positive_int, metavar="N", help="end an episode after N turns that did not improve its best"
    )
    parser.add_argument(
        "--style", choices=STYLES, default=DEFAULT_STYLE, help=f"length of tasks (default: {DEFAULT_STYLE})"
    )
    add_evaluation_options(parser)
    add_reward_option(parser)
    parser.add_argument(
        "--jobs",
        type=positive_int,
        metavar="N",
        help="episodes side by side; timing takes turns (default: cores; 16 for models)",
    )
    _add_limit_options(parser)
    add_elsewhere_options(parser.add_mutually_exclusive_group())
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of results.jsonl, an attempt a line, and run.json, its configuration (default: runs/AGENT)",
    )
    add_json_option(parser, "a summary record")


def _agents_text() -> str:
    named = {f"{name}:{kind.argument}" if kind.argument else name: kind.about for name, kind in AGENTS.items()}
    return "\n".join(f"  {name:<22} {about}" for name, about in named.items())


def _add_agent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", required=True, metavar="NAME[:ARGUMENT]", help="author of the kernels, see below")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the agent, such as temperature=0.8; may be repeated",
    )
    parser.add_argument("--name", help="name of the agent in tables (default: NAME:ARGUMENT, without folders)")


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-evaluations", type=positive_int, metavar="N", help="stop after N submissions, earlier calls included"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive_int,
        metavar="N",
        help="stop after N tokens read and written, earlier calls included",
    )
    parser.add_argument(
        "--max-hours", type=positive_float, metavar="H", help="stop H hours after the start of this call"
    )


def run(args: argparse.Namespace, session: Session) -> int:
    """Plays what is missing and prints how the run stands.

    Raises:
        PkbError: the agent, the problems or the output are of no use, or this machine could not even begin.
    """
    split_name(args.agent)
    settings = parse_settings(args.settings)
    register_problems(args)
    from pkb_gym.agents.protocol import WarnsUser
    from pkb_gym.agents.registry import open_agent
    from pkb_gym.agents.run.plan import choose_problems, resolve_all
    from pkb_gym.agents.run.results import RunResults
    from pkb_gym.engine.evaluators.evaluator import machine_of
    from pkb_gym.engine.stages.execution_environment import this_machine

    problems = choose_problems(args.problems)
    with ExitStack() as opened:
        # One elsewhere knows its machine; one of this machine starts processes, and wrong usage is refused before.
        elsewhere = None if judged_here(args) else opened.enter_context(closing(open_chosen(args, session, None)))
        machine = this_machine() if elsewhere is None else machine_of(elsewhere)
        workload = resolve_all(problems, evaluation_config(args), machine)
        provider = opened.enter_context(closing(open_agent(args.agent, settings)))
        if isinstance(provider, WarnsUser) and provider.warning is not None:
            stderr().print(f"warning: {provider.warning}", soft_wrap=True)
        identity = _identity(args, provider, workload)
        output: Path = args.output or OUTPUT / re.sub(r"[^\w.-]+", "_", identity.agent)
        results = opened.enter_context(RunResults(output, identity))
        evaluator = elsewhere or opened.enter_context(closing(open_chosen(args, session, None)))
        summary = _play(args, workload, Parts(results, provider, evaluator))
    if args.json:
        print(summary.model_dump_json())
    else:
        _print(summary)
    is_judged = summary.stopped is None and not summary.failed and not summary.compiled_only
    return Status.PASSED if is_judged else Status.NOT_JUDGED


@dataclass(frozen=True)
class Parts:
    """The settings of a run beside its problems."""

    results: RunResults
    provider: AgentProvider | WorkspaceProvider
    evaluator: Evaluator


def _play(args: argparse.Namespace, workload: RunWorkload, parts: Parts) -> RunSummary:
    from pkb_gym.agents.run.budget import RunLimits
    from pkb_gym.agents.run.episode import EpisodePlan
    from pkb_gym.agents.run.runner import Runner
    from pkb_gym.engine.hardware.lookup import find_hardware

    from .run_progress import RunCounter

    if judged_here(args) and any(config.device == "cpu" for config in workload.resolved.values()):
        find_hardware("cpu")  # measured once: task texts must not depend on what was evaluated before
    results = parts.results
    plans = [EpisodePlan(each, sample) for sample in range(args.samples) for each in workload.problems]
    complete = sum(results.is_complete(plan.problem.name, plan.sample) for plan in plans)
    already = f"{complete} episodes already complete, " if complete else ""
    stderr().print(f"{already}{len(plans) - complete} to play; results in {results.path}", soft_wrap=True)
    limits = RunLimits(args.max_evaluations, args.max_tokens, args.max_hours)
    with resuming(), RunCounter(len(plans), complete) as progress:
        runner = Runner(results, parts.provider, parts.evaluator, limits, progress)
        progress.watch(runner)
        outcome = runner.play(plans, args.jobs or _default_jobs(args.agent))
    problems, passed, faster = runner.tally.problems()
    return RunSummary(
        results=str(results.path),
        agent=results.identity.agent,
        episodes=len(plans),
        complete=outcome.complete,
        problems=problems,
        passed=passed,
        faster=faster,
        compiled_only=runner.tally.compiled_only,
        replies=runner.tally.replies,
        truncated=runner.tally.truncated,
        evaluations=runner.budget.evaluations,
        tokens=runner.budget.tokens,
        cost_usd=runner.budget.cost_usd,
        skipped=workload.skipped | outcome.skipped,
        failed={f"{problem} sample {sample}": why for problem, sample, why in outcome.failed},
        stopped=outcome.stopped,
    )


def _default_jobs(agent: str) -> int:
    return split_name(agent)[0].jobs or default_jobs()


def _identity(
    args: argparse.Namespace, provider: AgentProvider | WorkspaceProvider, workload: RunWorkload
) -> RunIdentity:
    from pkb_gym.agents.run.identity import RunIdentity
    from pkb_gym.engine.records.conditions import problem_sha256, problem_text_sha256

    return RunIdentity(
        agent=args.name or default_label(args.agent),
        kind=args.agent.partition(":")[0],
        settings=dict(provider.settings),
        turns=args.turns or split_name(args.agent)[0].turns,
        plateau=args.plateau,
        style=args.style,
        reward=args.reward,
        seed=args.seed,
        hardware=_hardware(workload) if judged_here(args) else None,
        requested=evaluation_config(args),
        resolved=workload.resolved,
        problem_sha256={problem.name: problem_sha256(problem) for problem in workload.problems},
        problem_text_sha256={problem.name: problem_text_sha256(problem) for problem in workload.problems},
    )


def _hardware(workload: RunWorkload) -> str:
    from pkb_gym.engine.stages.execution_environment import describe

    config = next(iter(workload.resolved.values()))
    return describe(config.device, config.dialect).hardware


def _print(summary: RunSummary) -> None:
    from .run_progress import problems_text, usage_text

    console = stdout()
    played = problems_text(summary.problems, summary.passed, summary.faster)
    used = usage_text(summary.evaluations, summary.tokens, summary.cost_usd)
    console.print(
        f"{summary.agent}: {played}; {summary.complete} of {summary.episodes} episodes complete; {used}", soft_wrap=True
    )
    errors = stderr()
    for title, others in (("skipped", summary.skipped), ("not complete", summary.failed)):
        for name, why in others.items():
            errors.print(f"{title}: {name}: {why}", soft_wrap=True)
    if summary.truncated:
        share = f"{summary.truncated} of {summary.replies} replies ({summary.truncated / summary.replies:.0%})"
        errors.print(f"truncated: {share}; raise max_tokens", soft_wrap=True)
    if summary.compiled_only:
        errors.print(f"{summary.compiled_only} submissions were compiled and not run: {NO_GPU}", soft_wrap=True)
    if summary.stopped is not None:
        errors.print(f"stopped: {summary.stopped}; {RESUMES}", soft_wrap=True)


def parse_settings(words: list[str]) -> dict[str, str]:
    """OPTION=VALUE, each once.

    Raises:
        ConfigError: a word is none, or an option is given twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name):
            raise ConfigError(f"--set {word}: write OPTION=VALUE, for example --set temperature=0.8")
        if name in found:
            raise ConfigError(f"--set {word}: {name} is given twice")
        found[name] = value
    return found
