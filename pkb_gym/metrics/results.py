"""Attempts -> the episodes of each agent, as columns: figures of many thousand results take no time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.metrics.estimates import Floats
from pkb_gym.metrics.outcomes import AttemptOutcome, SpeedupEstimate, Task, TimedBaseline, outcome_of, task_of
from pkb_gym.problems.splits import cluster_of

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

Key: TypeAlias = tuple[str, Task, tuple[object, ...], int]
"""Problem, task, sample, turn."""


@dataclass(frozen=True)
class Turns:
    """Attempts as columns, in order of episodes and turns; a number that is unknown is NaN.

    Attributes:
        outcomes: Outcomes that the columns are made of.
        episode: Row of `Episodes`.
        position: Number of the turn within its episode, from 0.
        problem: Number of the problem.
    """

    outcomes: Sequence[AttemptOutcome]
    episode: Ints
    position: Ints
    problem: Ints
    is_judged: Bools
    is_evaluation: Bools
    is_right: Bools
    speedup: Floats
    speedup_low: Floats
    captured_speedup: Floats
    captured_speedup_low: Floats
    registered_speedup: Floats
    registered_speedup_low: Floats
    utilisation: Floats
    prompt_tokens: Floats
    completion_tokens: Floats
    reasoning_tokens: Floats
    cost_usd: Floats
    reply_s: Floats
    duration_s: Floats

    def of(self, rows: Bools, episode: Ints) -> Turns:
        """The turns of some rows, with new numbers of their episodes."""
        columns = {
            name: getattr(self, name)[rows] for name in self.__annotations__ if name not in ("outcomes", "episode")
        }
        outcomes = [outcome for outcome, is_kept in zip(self.outcomes, rows, strict=True) if is_kept]
        return Turns(outcomes=outcomes, episode=episode, **columns)


@dataclass(frozen=True)
class Episodes:
    """Samples as columns, in order of problems and tasks.

    Attributes:
        problem: Number of the problem.
        task: Number of the task, counted over all problems.
        is_judged: Whether every turn could be judged.
        is_right: Whether a turn was right; of a workspace, the submission, as in what follows.
        speedup: Best speedup of the right turns over the eager baseline; NaN without a timed one.
        speedup_low: Best lower end of such a speedup's interval.
        captured_speedup: Best speedup over the captured baseline; NaN without one.
        captured_speedup_low: Best lower end of such a speedup's interval.
        registered_speedup: Best speedup over the captured baseline on registered memory; NaN without one.
        registered_speedup_low: Best lower end of such a speedup's interval.
        utilisation: Best utilisation of the right turns.
    """

    problem: Ints
    task: Ints
    is_judged: Bools
    is_right: Bools
    speedup: Floats
    speedup_low: Floats
    captured_speedup: Floats
    captured_speedup_low: Floats
    registered_speedup: Floats
    registered_speedup_low: Floats
    utilisation: Floats

    def __len__(self) -> int:
        return len(self.problem)

    def best_speedup(self, baseline: TimedBaseline, estimate: SpeedupEstimate = "point") -> Floats:
        """Best speedup over that baseline, or best lower end."""
        point, low = {
            "eager": (self.speedup, self.speedup_low),
            "captured": (self.captured_speedup, self.captured_speedup_low),
            "registered": (self.registered_speedup, self.registered_speedup_low),
        }[baseline]
        return point if estimate == "point" else low

    def of(self, rows: Bools) -> Episodes:
        """The episodes of some rows."""
        return Episodes(**{name: getattr(self, name)[rows] for name in self.__annotations__})


@dataclass(frozen=True)
class AgentResults:
    """The results of one agent.

    Attributes:
        agent: Name of the agent.
        names: Names of all problems, sorted; the numbers in `every_turn` and `every_episode` are places in it.
        every_turn: Turns of every episode.
        every_episode: All episodes, including those that could not be judged.
        problems: Names with an episode that could be judged, sorted. Their numbers in `turns` and `episodes` are places
            in it.
        turns: Turns of judged episodes.
        episodes: Episodes that could be judged; the others count for nothing.
    """

    agent: str
    names: tuple[str, ...]
    every_turn: Turns
    every_episode: Episodes
    problems: tuple[str, ...]
    turns: Turns
    episodes: Episodes

    @property
    def clusters(self) -> tuple[str, ...]:
        """The cluster of each of `problems`, by which every estimate counts its evidence; see `cluster_of`."""
        return tuple(map(cluster_of, self.problems))

    @classmethod
    def of(cls, agent: str, outcomes: Mapping[Key, AttemptOutcome]) -> Self:
        """The results of an agent, from one outcome for each problem, task, sample and turn."""
        names = tuple(sorted({key[0] for key in outcomes}))
        every_turn, every_episode = _columns(names, outcomes)
        judged = every_episode.is_judged
        kept, place = np.unique(every_episode.problem[judged], return_inverse=True)
        episodes = every_episode.of(judged)
        rows = judged[every_turn.episode]
        turns = every_turn.of(rows, (np.cumsum(judged) - 1)[every_turn.episode[rows]])
        return cls(
            agent=agent,
            names=names,
            every_turn=every_turn,
            every_episode=every_episode,
            problems=tuple(names[number] for number in kept),
            turns=replace(turns, problem=place[turns.episode]),
            episodes=replace(episodes, problem=place),
        )

    def tasks(self) -> Iterator[tuple[int, slice]]:
        """The number of the problem of each task with judged episodes, and the rows of these."""
        task = self.episodes.task
        ends = [*(np.flatnonzero(task[1:] != task[:-1]) + 1).tolist(), len(task)] if len(task) else []
        for start, end in zip([0, *ends], ends, strict=False):
            yield int(self.episodes.problem[start]), slice(start, end)

    def of_problems(self, values: Floats) -> Floats:
        """Mean of each problem over its tasks, of the task's mean over judged episodes.

        Args:
            values: Value of each episode; NaN for none.

        Returns:
            One for each of `problems`, NaN where no episode has a value. With values of shape (episodes, columns), the
            same for each column.
        """
        columns = values if values.ndim == 2 else values[:, None]
        _, task = np.unique(self.episodes.task, return_inverse=True)
        problem_of_task = np.zeros(task.max(initial=-1) + 1, dtype=np.int64)
        problem_of_task[task] = self.episodes.problem
        means = _group_means(_group_means(columns, task, len(problem_of_task)), problem_of_task, len(self.problems))
        return means if values.ndim == 2 else means[:, 0]


def results_by_agent(attempts: Iterable[Attempt]) -> list[AgentResults]:
    """The episodes of each agent, in order of first appearance.

    Samples are those of one agent, problem, task, seed and file. Of several attempts at the same turn the last counts.
    """
    outcomes: dict[str, dict[Key, AttemptOutcome]] = {}
    for attempt in attempts:
        outcomes.setdefault(attempt.agent or "", {})[key_of(attempt)] = outcome_of(attempt)
    return [AgentResults.of(agent, of_agent) for agent, of_agent in outcomes.items()]


def key_of(attempt: Attempt) -> Key:
    """The key of an attempt among those of its agent."""
    requested = attempt.requested
    return attempt.problem, task_of(requested), (requested.seed, attempt.sample, attempt.file), attempt.turn


def last_of_each(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Without those that a later attempt of the same agent, task, sample and turn replaces."""
    return list({(attempt.agent, key_of(attempt)): attempt for attempt in attempts}.values())


def _columns(names: tuple[str, ...], outcomes: Mapping[Key, AttemptOutcome]) -> tuple[Turns, Episodes]:
    """The columns of all attempts."""
    number = {name: place for place, name in enumerate(names)}
    tasks: dict[tuple[object, ...], int] = {}
    samples: dict[tuple[object, ...], int] = {}
    rows = [
        (
            number[problem],
            tasks.setdefault((problem, task), len(tasks)),
            samples.setdefault((problem, task, sample), len(samples)),
            turn,
        )
        for problem, task, sample, turn in outcomes
    ]
    table = np.array(rows, dtype=np.int64)
    order = np.lexsort(table.T[::-1])
    problem, task, sample = table[order, :3].T
    starts = np.flatnonzero(np.r_[True, sample[1:] != sample[:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    found = list(outcomes.values())
    ordered = [found[row] for row in order]
    columns = dict(zip(AttemptOutcome._fields, zip(*ordered, strict=True), strict=True))

    def flags(name: str) -> Bools:
        return np.array(columns[name], dtype=np.bool_)

    def numbers(name: str) -> Floats:
        return np.array(columns[name], dtype=np.float64)  # None becomes NaN

    turns = Turns(
        outcomes=ordered,
        episode=np.repeat(np.arange(len(starts)), lengths),
        position=np.arange(len(order)) - np.repeat(starts, lengths),
        problem=problem,
        is_judged=flags("is_judged"),
        is_evaluation=flags("is_evaluation"),
        is_right=flags("is_right"),
        speedup=numbers("speedup"),
        speedup_low=numbers("speedup_low"),
        captured_speedup=numbers("captured_speedup"),
        captured_speedup_low=numbers("captured_speedup_low"),
        registered_speedup=numbers("registered_speedup"),
        registered_speedup_low=numbers("registered_speedup_low"),
        utilisation=numbers("utilisation"),
        prompt_tokens=numbers("prompt_tokens"),
        completion_tokens=numbers("completion_tokens"),
        reasoning_tokens=numbers("reasoning_tokens"),
        cost_usd=numbers("cost_usd"),
        reply_s=numbers("reply_s"),
        duration_s=numbers("duration_s"),
    )
    # Of a workspace's episode the submission counts, whatever was evaluated before.
    is_submitted = np.logical_or.reduceat(flags("is_submission"), starts)
    counts = ~(flags("is_trial") & np.repeat(is_submitted, lengths))

    def best(values: Floats) -> Floats:
        return np.fmax.reduceat(np.where(counts, values, np.nan), starts)

    episodes = Episodes(
        problem=problem[starts],
        task=task[starts],
        is_judged=np.logical_and.reduceat(turns.is_judged, starts),
        is_right=np.logical_or.reduceat(turns.is_right & counts, starts),
        speedup=best(turns.speedup),
        speedup_low=best(turns.speedup_low),
        captured_speedup=best(turns.captured_speedup),
        captured_speedup_low=best(turns.captured_speedup_low),
        registered_speedup=best(turns.registered_speedup),
        registered_speedup_low=best(turns.registered_speedup_low),
        utilisation=best(turns.utilisation),
    )
    return turns, episodes


def _group_means(values: Floats, group: Ints, groups: int) -> Floats:
    """Means of each group's values, shape (groups, columns); NaN where it has none."""
    present = ~np.isnan(values)
    sums, counts = np.zeros((groups, values.shape[1])), np.zeros((groups, values.shape[1]))
    for column in range(values.shape[1]):
        sums[:, column] = np.bincount(group, np.where(present[:, column], values[:, column], 0.0), groups)
        counts[:, column] = np.bincount(group, present[:, column], groups)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
