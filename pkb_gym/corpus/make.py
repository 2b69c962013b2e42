"""A corpus from families and breakages: plan, have everything evaluated, make the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from pkb_gym.corpus.conversations import (
    CorpusRow,
    Exclusions,
    Trajectory,
    broken_trajectories,
    by_problem,
    corpus_rows,
    is_right_and_timed,
    sampled_variants,
)
from pkb_gym.corpus.evaluate import BatchEvaluator, Candidate
from pkb_gym.corpus.tasks import Task, workloads
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Language
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.envs.text.turn import Style
from pkb_gym.rewards.reward import was_only_compiled


@dataclass(frozen=True)
class CorpusPlan:
    """The ingredients of a corpus.

    Attributes:
        problems: Problems that have a family in the language.
        language: "cpp" or "cuda".
        sizes: Named sizes, or axes as JSON; a problem's variants take its workloads in turn.
        world_size: Number of ranks.
        style: Style of prompts and feedback.
        variants: Number of variants of each problem.
        repairs: Number of repairs of each problem.
        variations: Trained workloads of each problem and size besides the size itself, at least 0.
        seed: Seed of all choices and of the inputs.
        compile_only: Whether kernels that were compiled, and could not be run, count as right.
        machine: Machine that judges; None for this one.
    """

    problems: Sequence[Problem]
    language: Language
    sizes: Sequence[str]
    world_size: int
    style: Style
    variants: int
    repairs: int
    variations: int = 0
    seed: int = 0
    compile_only: bool = False
    machine: Machine | None = None


@dataclass
class Corpus:
    """The result of a plan."""

    rows: list[CorpusRow]
    left_out: Exclusions = field(default_factory=Exclusions)


def planned_variants(plan: CorpusPlan) -> list[Trajectory]:
    """The variants that are tried, each in one of its problem's workloads.

    Raises:
        ConfigError: a problem has no family, or a size makes no sense.
    """
    trajectories: list[Trajectory] = []
    for problem in plan.problems:
        chosen = list(
            dict.fromkeys(
                chain.from_iterable(
                    workloads(problem, size, plan.world_size, "train", plan.variations) for size in plan.sizes
                )
            )
        )
        for k, variant in enumerate(sampled_variants(problem.name, plan.language, plan.variants, plan.seed)):
            workload = chosen[k % len(chosen)]
            task = Task(
                problem.name,
                plan.language,
                plan.world_size,
                workload.size,
                workload.dtype,
                plan.seed,
                plan.style,
                plan.machine,
            )
            trajectories.append(Trajectory(task, variant, (variant.source,)))
    return trajectories


def make_corpus(
    plan: CorpusPlan, evaluator: BatchEvaluator, report: Callable[[str], None] = lambda _text: None
) -> Corpus:
    """Has variants evaluated, then ways to break those that are right.

    Args:
        plan: Ingredients of the corpus.
        evaluator: Evaluator of the submissions.
        report: Function that is called with a few words on each part that begins.

    Raises:
        ConfigError, SizeError: the plan makes no sense.
        InfrastructureError: what was found cannot be kept.
    """
    variants = planned_variants(plan)
    report(f"{len(variants)} variants of {len(plan.problems)} problems")
    found = evaluator.evaluate(_candidates(variants))

    def is_good(trajectory: Trajectory) -> bool:
        feedback = found.get(trajectory.candidates[-1])
        return feedback is not None and (
            is_right_and_timed(feedback) or (plan.compile_only and was_only_compiled(feedback))
        )

    good = by_problem(variants, is_good)
    repairs = [
        trajectory
        for trajectories in good.values()
        for trajectory in broken_trajectories(trajectories, plan.repairs, plan.seed, only_compiled=plan.compile_only)
    ]
    report(f"{len(repairs)} repairs")
    found |= evaluator.evaluate(_candidates(repairs))
    left_out = Exclusions()
    return Corpus(corpus_rows([*variants, *repairs], found, left_out, compile_only=plan.compile_only), left_out)


def _candidates(trajectories: Sequence[Trajectory]) -> dict[Candidate, None]:
    return dict.fromkeys(chain.from_iterable(trajectory.candidates for trajectory in trajectories))


def result_line(candidate: Candidate, feedback: Feedback) -> str:
    """One line about a result."""
    if was_only_compiled(feedback):
        verdict = "compiled, not run"
    elif feedback.failure is not None:
        verdict = f"{feedback.failure}, stage {feedback.stage}"
    else:
        verdict = "passed" if feedback.speedup is None else f"passed, {feedback.speedup:.2f}x"
    return f"{candidate.task.problem} {candidate.task.dtype} {candidate.task.size}: {verdict}"
