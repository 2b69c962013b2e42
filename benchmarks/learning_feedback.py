"""Second turns: how many failures they repair, and what the text of the feedback adds to that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import Estimate, estimate
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.results.policy_summary import (
    EpisodeResult,
    correct_of,
    episode_result,
    gain,
    problem_of,
    prompt_key,
    reward_of,
    turns_by_prompt,
)
from pkb_gym.training.results.ring_summary import TurnLimitFigures, summarise_rings

Figure = Callable[[EpisodeResult], float | None]


class SecondTurn(Record):
    """The gain of a second submission in episodes whose first one failed."""

    episodes: int
    failed_first: int
    """Episodes whose first submission failed, or could not be read."""
    answered: int
    """Those of them that submitted once more."""
    repeated: int
    """Those of the `answered` that submitted the same source."""
    repaired: Estimate | None
    """Share of the `failed_first` whose second submission was right; clustered by problem."""
    gain: Estimate | None
    """Share correct after the second turn less that after the first, by prompt."""


class Answered(Record):
    """A policy on one ring, under one kind of feedback."""

    submissions: int
    second_turn: SecondTurn
    turns: tuple[TurnLimitFigures, ...]
    """As if every episode had ended after its first turn, after its second, ..."""


class TextEffect(Record):
    """A policy with the text of the feedback, and with a verdict in its place, on the prompts that both answered."""

    ring: str
    prompts: int
    whole: Answered
    verdict: Answered
    reward: Estimate | None
    """How much more reward the turns after the first add where there is a text, prompt by prompt."""
    correct: Estimate | None
    """Likewise, of the share correct."""


def second_turn(rows: Sequence[Row]) -> SecondTurn:
    """The figures of the second turn; episodes in which the evaluator failed are left out."""
    failed, answered, repeated, episodes = 0, 0, 0, 0
    repaired: dict[str, list[float]] = {}
    for key, found in turns_by_prompt(rows).items():
        for turns in map(in_order, found):
            if episode_result(turns).reward is None:
                continue
            episodes += 1
            if turns[0]["is_right"]:
                continue
            failed += 1
            if len(turns) > 1 and turns[1]["failure"] != NO_SUBMISSION:
                answered += 1
                repeated += turns[1]["source_hash"] == turns[0]["source_hash"]
            repaired.setdefault(problem_of(key), []).append(float(len(turns) > 1 and turns[1]["is_right"]))
    return SecondTurn(
        episodes=episodes,
        failed_first=failed,
        answered=answered,
        repeated=repeated,
        repaired=estimate(repaired.values()),
        gain=gain(after_turns(rows, 1), after_turns(rows, 2), correct_of),
    )


def text_effects(whole: Sequence[Row], verdict: Sequence[Row], rings: Mapping[str, str]) -> list[TextEffect]:
    """What the text of the feedback adds, on each ring.

    First turns are drawn anew under either kind of feedback, and have not read any. So it is the gain of the turns
    after the first that is compared.

    Args:
        whole: results of a policy that reads the feedback.
        verdict: of the same one, which reads of a failure only that it was one.
        rings: prompt key -> ring.
    """
    both = {prompt_key(row) for row in whole} & {prompt_key(row) for row in verdict}
    found = []
    for ring in sorted({rings[key] for key in both if key in rings}):
        keys = {key for key in both if rings.get(key) == ring}
        kept = [[row for row in rows if prompt_key(row) in keys] for rows in (whole, verdict)]
        found.append(
            TextEffect(
                ring=ring,
                prompts=len(keys),
                whole=_answered(kept[0], rings),
                verdict=_answered(kept[1], rings),
                reward=_added(kept[0], kept[1], reward_of),
                correct=_added(kept[0], kept[1], correct_of),
            )
        )
    return found


def in_order(turns: Sequence[Row]) -> list[Row]:
    """The rows of an episode, turn by turn."""
    return sorted(turns, key=lambda row: row["turn"])


def after_turns(rows: Sequence[Row], turns: int | None) -> dict[str, list[EpisodeResult]]:
    """Episodes as if each had ended after so many turns; those that could not be judged are left out altogether."""
    return {
        key: [episode_result(in_order(of)[:turns]) for of in found if episode_result(of).reward is not None]
        for key, found in turns_by_prompt(rows).items()
    }


def _answered(rows: Sequence[Row], rings: Mapping[str, str]) -> Answered:
    (figures,) = summarise_rings(rows, rings).values()
    submissions = sum(row["failure"] != NO_SUBMISSION for row in rows)
    return Answered(submissions=submissions, second_turn=second_turn(rows), turns=figures.turns)


def _added(whole: Sequence[Row], verdict: Sequence[Row], figure: Figure) -> Estimate | None:
    """The difference of the gains of later turns, by prompt."""
    gains = [_later_gain(rows, figure) for rows in (whole, verdict)]
    clusters: dict[str, list[float]] = {}
    for key in sorted(gains[0].keys() & gains[1].keys()):  # sums of floats depend on the order
        clusters.setdefault(problem_of(key), []).append(gains[0][key] - gains[1][key])
    return estimate(clusters.values())


def _later_gain(rows: Sequence[Row], figure: Figure) -> dict[str, float]:
    """Of each prompt, the mean at the end of its episodes less that after their first turn."""
    first, last = after_turns(rows, 1), after_turns(rows, None)
    found = {}
    for key, episodes in last.items():
        ends, begins = ([value for one in of if (value := figure(one)) is not None] for of in (episodes, first[key]))
        if ends and begins:
            found[key] = fmean(ends) - fmean(begins)
    return found
