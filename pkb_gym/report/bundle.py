"""Attempts packed for a page: a list, and details compressed by problem, as many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.support.printable import printable
from pkb_gym.metrics.results import key_of
from pkb_gym.report.categories import category_of, title_of
from pkb_gym.report.embedding import compressed, json_for_script
from pkb_gym.report.trajectories import order_of, trajectory
from pkb_gym.rewards.reward import is_right

COLUMNS = (
    *("agent", "problem", "sample", "turn", "episode", "verdict", "right"),
    *("speedup", "converged", "reward", "chunk", "place"),
)
PER_CHUNK = 24
"""Attempts that are unpacked together: similar texts compress well, and few are unpacked for one that is looked at."""


@dataclass(frozen=True)
class Bundle:
    """The contents of a page on the attempts.

    Attributes:
        index: List of attempts, as JSON.
        chunks: Compressed details, by number.
        left_out: Missing details, in words; empty where nothing is missing.
    """

    index: dict[str, object]
    chunks: tuple[str, ...]
    left_out: str = ""

    @property
    def nbytes(self) -> int:
        """The size on the page."""
        return len(json_for_script(self.index)) + sum(len(chunk) + CHUNK_BYTES for chunk in self.chunks)


CHUNK_BYTES = 70
"""Size of the element around a chunk."""


def bundle_of(attempts: Sequence[Attempt], max_bytes: int) -> Bundle:
    """The most complete bundle that fits: everything, then without the models' words, then the best of each problem.

    Args:
        attempts: Attempts of any agents.
        max_bytes: Size of the list and the chunks. The last of the three, one attempt for each agent and problem, is
            cut to as many attempts as fit.
    """
    ordered = order_of(attempts)
    best = _best(ordered)
    bundle = _bundle(ordered, with_replies=True)
    if bundle.nbytes <= max_bytes:
        return bundle
    bundle = _bundle(ordered, with_replies=False, left_out="Replies of models are left out, for the size of the page.")
    if bundle.nbytes <= max_bytes:
        return bundle
    while True:
        words = f"{len(best)} of {len(ordered)} attempts are shown, for the size of the page: the best of each problem."
        bundle = _bundle(best, with_replies=False, left_out=words)
        if bundle.nbytes <= max_bytes or not best:
            return bundle
        best = best[: min(len(best) - 1, int(0.9 * len(best) * max_bytes / bundle.nbytes))]


def _best(ordered: Sequence[Attempt]) -> list[Attempt]:
    """One attempt of each agent and problem: the one with the most reward, of equal ones the first."""
    best: dict[tuple[str | None, str], Attempt] = {}
    for attempt in ordered:
        key = (attempt.agent, attempt.problem)
        if key not in best or _value(attempt) > _value(best[key]):
            best[key] = attempt
    return list(best.values())


def _value(attempt: Attempt) -> tuple[bool, float, float]:
    feedback = attempt.feedback
    right = feedback is not None and is_right(feedback)
    speedup = 0.0 if feedback is None or feedback.speedup is None else feedback.speedup
    return right, speedup if right else 0.0, attempt.reward or 0.0


def _bundle(attempts: Sequence[Attempt], *, with_replies: bool, left_out: str = "") -> Bundle:
    agents, problems, verdicts = _Numbers(), _Numbers(), _Numbers()
    episodes: dict[object, int] = {}
    # By problem, so that texts that resemble each other are compressed together.
    by_problem = sorted(range(len(attempts)), key=lambda number: (attempts[number].problem, number))
    place_of = {number: divmod(place, PER_CHUNK) for place, number in enumerate(by_problem)}
    rows = []
    for number, attempt in enumerate(attempts):
        feedback = attempt.feedback
        right = feedback is not None and is_right(feedback)
        timing = None if feedback is None or not right else feedback.timing
        chunk, place = place_of[number]
        rows.append(
            (
                agents.of(printable(attempt.agent or "")),
                problems.of(printable(attempt.problem)),
                attempt.sample,
                attempt.turn,
                episodes.setdefault((attempt.agent, *key_of(attempt)[:-1]), len(episodes)),
                verdicts.of(attempt.verdict),
                int(right),
                None if timing is None else round(timing.speedup, 4),
                None if timing is None else int(timing.converged),
                None if attempt.reward is None else round(attempt.reward, 4),
                chunk,
                place,
            )
        )
    chunks = []
    for start in range(0, len(by_problem), PER_CHUNK):
        of_chunk = [attempts[number] for number in by_problem[start : start + PER_CHUNK]]
        chunks.append(compressed([_details(attempt, with_replies=with_replies) for attempt in of_chunk]))
    index: dict[str, object] = {
        "agents": agents.names,
        "problems": problems.names,
        "categories": [title_of(category_of(name)) for name in problems.names],
        "verdicts": verdicts.names,
        "columns": COLUMNS,
        "attempts": rows,
    }
    return Bundle(index, tuple(chunks), left_out)


def _details(attempt: Attempt, *, with_replies: bool) -> dict[str, object]:
    return trajectory(attempt, with_replies=with_replies).model_dump(mode="json", exclude_defaults=True)


class _Numbers:
    """Names and their numbers, in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)
