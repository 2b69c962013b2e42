"""One rollout of a policy on one row of the prompts: what it submitted, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, get_args

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs.dialogue import Dialogue
from pkb_gym.envs.text.turn import Style
from pkb_gym.envs.trl import Standing
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.training.evaluation.judge import Judge, Verdict

FAILED = "The evaluator failed; nothing more is judged in this episode."


@dataclass(frozen=True)
class Task:
    """What a row of the prompts asks.

    Attributes:
        problem: to be solved.
        config: how submissions are judged; the same for all rollouts and turns, so that equal sources are judged once.
        style: of feedback texts, "full" or "brief".
    """

    problem: Problem
    config: EvalConfig
    style: Style

    @classmethod
    def of_row(cls, row: Mapping[str, object], judged: EvalConfig) -> Task:
        """Reads a row of `pkb export prompts`.

        Args:
            row: its columns; `problem` must be there, the others have the defaults of `EvalConfig`.
            judged: what no row says: last stage, deadlines, time for timing.

        Raises:
            ConfigError: the row has no problem, or a column holds what `EvalConfig` does not take.
            ProblemNotFound: there is no such problem.
        """
        if not isinstance(row.get("problem"), str):
            raise ConfigError(f"a row needs a column 'problem' with a name; it has {', '.join(sorted(row))}")
        columns = ("device", "world_size", "dtype", "language", "seed")
        asked = {name: row[name] for name in columns if row.get(name) is not None}
        size = row.get("size")
        try:
            if isinstance(size, str):
                asked["size"] = json.loads(size) if size.lstrip().startswith("{") else size
            config = EvalConfig.model_validate({**judged.model_dump(), **asked, "turn": 0})
        except json.JSONDecodeError:
            raise ConfigError(f"row of problem {row['problem']}: size is no JSON object of axes: {size}") from None
        except ValueError as error:
            raise ConfigError(f"row of problem {row['problem']}: {error}") from None
        style = row.get("style") or "full"
        if style not in get_args(Style):
            raise ConfigError(f"row of problem {row['problem']}: style must be full or brief, got {style!r}")
        return cls(find_problem(str(row["problem"])), config, cast(Style, style))


@dataclass(frozen=True)
class Submission:
    """One judged source of an episode.

    Attributes:
        turn: number of the message that submitted it, from 0.
        source: its text.
        verdict: what came of it.
        answer: what the policy was told.
    """

    turn: int
    source: str
    verdict: Verdict
    answer: str


class Episode:
    """One rollout. A turn is a message that calls a tool; it may submit one source, several, or, in error, none.

    Args:
        task: what is asked.
        judge: of submissions.
        max_turns: submissions that are judged.
        nothing: worth of an episode, or of a turn, without any submission.

    Attributes:
        task: what is asked.
        submissions: those judged, in order.
    """

    def __init__(self, task: Task, judge: Judge, max_turns: int, nothing: float = 0.0) -> None:
        self.task = task
        self.submissions: list[Submission] = []
        self._turns = 0
        self._judge = judge
        self._nothing = nothing
        self._standing = Standing(max_turns, nothing)
        self._dialogue = Dialogue(task.style)

    def begin_turn(self) -> None:
        """To be called before the tools of a message are."""
        self._turns += 1

    @property
    def worth(self) -> float | None:
        """The value of the best submission; None where the evaluator failed: nothing is to be learnt."""
        return self._standing.worth

    def prefetch(self, source: str) -> None:
        """Begins to judge a source that is about to be submitted, as far as that may begin early."""
        if self._standing.refusal is None:
            self._judge.prefetch(self.task.problem, source, self.task.config)

    async def submit(self, source: str) -> str:
        """Judges a source.

        Returns:
            What was found, in words for the policy.
        """
        if (refusal := self._standing.refusal) is not None:
            return refusal
        verdict = await self._judge.judge(self.task.problem, source, self.task.config)
        self._standing.add(verdict.value)
        answer = FAILED if verdict.feedback is None else self._dialogue.answer(verdict.feedback, verdict.value)
        self.submissions.append(Submission(max(0, self._turns - 1), source, verdict, answer))
        return answer

    def values(self) -> list[float | None]:
        """What each turn is worth: the best of its submissions.

        An episode without any turn has one value, that of nothing. One in which the evaluator failed has no values:
        what other turns would have been worth is not known.
        """
        turns = max(1, self._turns)
        if self.worth is None:
            return [None] * turns
        judged: list[list[float]] = [[] for _ in range(turns)]
        for submission in self.submissions:
            if submission.verdict.value is not None:
                judged[submission.turn].append(submission.verdict.value)
        return [max(values, default=self._nothing) for values in judged]
