"""Conversations that end in a good kernel, of sources that were really judged."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from pkb_gym.corpus.breakages import BREAKAGES, COMPILE_TIME, SYNCHRONISATION, Breakage
from pkb_gym.corpus.evaluate import Candidate
from pkb_gym.corpus.prompts import prompt_messages
from pkb_gym.corpus.tasks import Task, TaskRow
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.text.formatting import time_text
from pkb_gym.kernels import Variant, find_family
from pkb_gym.rewards import BestSoFar, LadderThenPerformance, PaidForCompiling
from pkb_gym.rewards.reward import was_only_compiled

TWO_STEPS = 4
"""One repair in so many mends two mistakes, one after the other."""

REWARD = BestSoFar(PaidForCompiling(LadderThenPerformance()))
"""The default, with a reward for compiling in a corpus of kernels that were compiled and not run."""

Kind = Literal["single", "repair"]


class Function(TypedDict):
    """A call of a tool."""

    name: str
    arguments: dict[str, str]


class ToolCall(TypedDict):
    """An entry of a message's `tool_calls`."""

    type: str
    function: Function


class CorpusMessage(TypedDict):
    """One message of a conversation."""

    role: str
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class CorpusRow(TaskRow):
    """One row of `pkb export corpus`."""

    id: str
    kind: str
    messages: list[CorpusMessage]
    variant: str
    breakage: str | None
    stage: str | None
    failure: str | None
    rewards: list[float]
    reward: float
    speedup: float | None
    feedback: list[str]
    source_hash: str
    prompt_chars: int
    source_chars: int


@dataclass(frozen=True)
class Trajectory:
    """The submissions on the way to a good kernel, in order, the good one last.

    Attributes:
        task: Task that the submissions answer.
        variant: Right kernel at the end.
        sources: Texts of the submissions.
        breakages: Names of the mistakes that are mended on the way.
    """

    task: Task
    variant: Variant
    sources: tuple[str, ...]
    breakages: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Whether it is right at once."""
        return "repair" if self.breakages else "single"

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """One for each submission."""
        return tuple(Candidate(self.task, source) for source in self.sources)


@dataclass
class Exclusions:
    """Evaluations that became no row, with the reasons.

    Attributes:
        failed_variants: Variants that were not right, as problem, knobs and failure.
        harmless: Breakage -> sources that it did not break.
        duplicates: Number of conversations that were there already.
        not_judged: Number of conversations with a submission that was not judged.
        compiled_only: Number of conversations whose kernel was compiled and not run.
    """

    failed_variants: list[tuple[str, str, str]] = field(default_factory=list)
    harmless: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    not_judged: int = 0
    compiled_only: int = 0


def sampled_variants(problem: str, language: str, count: int, seed: int) -> list[Variant]:
    """Some variants of a family, without repetition; the same for the same seed, and more for a larger count.

    Args:
        problem: Name of the problem.
        language: "cpp" or "cuda".
        count: Number of variants; all where there are no more.
        seed: Seed of the choice.

    Raises:
        ConfigError: there is no such family.
    """
    variants = list(find_family(problem, language).variants)
    random.Random(f"variants {seed} {problem} {language}").shuffle(variants)
    return variants[:count]


def broken_trajectories(
    good: Sequence[Trajectory], count: int, seed: int, *, only_compiled: bool
) -> Iterator[Trajectory]:
    """Ways to the good kernels of one problem that begin with mistakes, different kinds of them in turn.

    Args:
        good: Trajectories that are right at once.
        count: Number of trajectories to make.
        seed: Seed of the choice.
        only_compiled: Whether mistakes that only a run shows are left out.
    """
    if not good:
        return
    draw = random.Random(f"repairs {seed} {good[0].task.problem} {good[0].task.language}")
    compiled = [breakage for breakage in BREAKAGES if breakage.name in COMPILE_TIME]
    races = [breakage for breakage in BREAKAGES if breakage.name in SYNCHRONISATION]
    others = [breakage for breakage in BREAKAGES if breakage not in compiled and breakage not in races]
    made: set[tuple[str, ...]] = set()
    for number in range(20 * count):
        if len(made) == count:
            return
        trajectory = draw.choice(good)
        # In turn, so that none of what compiler, check and delayed ranks find is rare.
        usable = compiled if only_compiled else (compiled, races, others)[number % 3]
        fitting = [breakage for breakage in usable if breakage.apply(trajectory.sources[-1]) is not None]
        if not fitting:
            continue
        kinds = [draw.choice(fitting)]
        if len(made) % TWO_STEPS == TWO_STEPS - 1:
            kinds.append(draw.choice(compiled))
        broken = _broken(trajectory, kinds)
        if broken is not None and broken.sources not in made:
            made.add(broken.sources)
            yield broken


def _broken(trajectory: Trajectory, kinds: Sequence[Breakage]) -> Trajectory | None:
    """The trajectory with all mistakes first, then one less in each turn; None where one does not apply."""
    sources = [trajectory.sources[-1]]
    for breakage in kinds:
        broken = breakage.apply(sources[0])
        if broken is None or broken in sources:
            return None
        sources.insert(0, broken)
    return Trajectory(
        trajectory.task, trajectory.variant, tuple(sources), tuple(breakage.name for breakage in reversed(kinds))
    )


def corpus_rows(
    trajectories: Sequence[Trajectory],
    found: Mapping[Candidate, Feedback],
    left_out: Exclusions,
    *,
    compile_only: bool = False,
) -> list[CorpusRow]:
    """The rows made of trajectories: those that end in a kernel that is right, and whose mistakes did harm.

    Args:
        trajectories: Trajectories in the order of the rows.
        found: Feedback on their submissions.
        left_out: Counts of trajectories that become no row, to be added to.
        compile_only: Whether a kernel that was compiled, and could not be run here, counts as right.
    """
    rows: list[CorpusRow] = []
    seen: set[str] = set()
    prompts: dict[Task, list[CorpusMessage]] = {}
    for trajectory in trajectories:
        feedbacks = [found.get(candidate) for candidate in trajectory.candidates]
        complete = [feedback for feedback in feedbacks if feedback is not None]
        if len(complete) < len(feedbacks):
            left_out.not_judged += 1
            continue
        if not _is_of_use(trajectory, complete, left_out, compile_only):
            continue
        if trajectory.task not in prompts:
            prompts[trajectory.task] = [
                CorpusMessage(role=m["role"], content=m["content"]) for m in prompt_messages(trajectory.task)
            ]
        row = corpus_row(trajectory, complete, prompts[trajectory.task])
        if row["id"] in seen:
            left_out.duplicates += 1
            continue
        seen.add(row["id"])
        rows.append(row)
    return rows


def is_right_and_timed(feedback: Feedback) -> bool:
    """Whether a kernel was checked, timed and found honest."""
    return feedback.passed and feedback.is_correct and feedback.timing is not None and not feedback.integrity


def _is_of_use(trajectory: Trajectory, feedbacks: Sequence[Feedback], left_out: Exclusions, compile_only: bool) -> bool:
    *earlier, last = feedbacks
    if was_only_compiled(last) and not compile_only:
        left_out.compiled_only += 1
        return False
    if not is_right_and_timed(last) and not was_only_compiled(last):
        if not trajectory.breakages:
            why = str(last.failure or "integrity")
            left_out.failed_variants.append((trajectory.task.problem, trajectory.variant.name, why))
        return False
    for breakage, feedback in zip(trajectory.breakages, earlier, strict=True):
        if feedback.failure is None or was_only_compiled(feedback):
            left_out.harmless[breakage] = left_out.harmless.get(breakage, 0) + 1
            return False
    return True


def corpus_row(trajectory: Trajectory, feedbacks: Sequence[Feedback], prompt: Sequence[CorpusMessage]) -> CorpusRow:
    """One conversation.

    Args:
        trajectory: Submissions of the conversation.
        feedbacks: Feedback on each submission.
        prompt: System and user message.
    """
    task, last = trajectory.task, feedbacks[-1]
    episode = Episode(REWARD)
    messages = list(prompt)
    rewards: list[float] = []
    for source, feedback in zip(trajectory.sources, feedbacks, strict=True):
        turn = episode.record(source, feedback)
        assert turn.value is not None, "faults of this machine are not kept"
        rewards.append(turn.value)
        messages.append(submission(source))
        messages.append(CorpusMessage(role="tool", name="submit", content=episode.message(task.style)))
    messages.append(CorpusMessage(role="assistant", content=closing_sentence(last)))
    breakage = "+".join(trajectory.breakages) or None
    digest = hashlib.sha256(json.dumps([task.language, task.world_size, messages]).encode()).hexdigest()
    return {
        "id": digest[:16],
        **task.columns(),
        "kind": trajectory.kind,
        "messages": messages,
        "variant": trajectory.variant.name,
        "breakage": breakage,
        "stage": None if last.stage is None else str(last.stage),
        "failure": None if last.failure is None else str(last.failure),
        "rewards": rewards,
        "reward": rewards[-1],
        "speedup": last.speedup,
        "feedback": [feedback.model_dump_json() for feedback in feedbacks],
        "source_hash": source_sha256(trajectory.sources[-1]),
        "prompt_chars": sum(len(message["content"]) for message in prompt),
        "source_chars": len(trajectory.sources[-1]),
    }


def submission(source: str) -> CorpusMessage:
    """An assistant's message that submits a source."""
    call = ToolCall(type="function", function=Function(name="submit", arguments={"source": source}))
    return CorpusMessage(role="assistant", content="", tool_calls=[call])


def submissions(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sources that a conversation submits, in order."""
    return [
        str(call["function"]["arguments"]["source"])
        for message in messages
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] == "submit"
    ]


def closing_sentence(feedback: Feedback) -> str:
    """The sentence with which a model ends its work on a kernel that is right."""
    if feedback.timing is None:
        return "The kernel compiles."
    time, speedup = time_text(feedback.timing.candidate_us), feedback.timing.speedup
    return f"The kernel is right on every rank and takes {time} a call, {speedup:.2f} times as fast as the baseline."


def by_problem(
    trajectories: Sequence[Trajectory], keep: Callable[[Trajectory], bool]
) -> dict[tuple[str, str], list[Trajectory]]:
    """Trajectories by problem and language, in order, those that are kept."""
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        if keep(trajectory):
            groups.setdefault((trajectory.task.problem, trajectory.task.language), []).append(trajectory)
    return groups
