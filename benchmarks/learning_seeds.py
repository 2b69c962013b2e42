"""Figures of several seeds of a learning run: each by itself, and all joined.

Seeds of one command share the model, SFT and the controls without training; seeds of separate commands share the model
alone. Joined figures take the episodes of all seeds on a prompt together; gains are paired by prompt, and all standard
errors are clustered by problem. The seeds of a problem are not independent of each other, so that further seeds make a
figure more exact, and never count as further problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.learning_by_problem import ring_by_problem
from benchmarks.learning_study import Arm, compare, joined_gains
from pkb_gym.metrics.estimates import estimate
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.results.policy_summary import (
    EpisodeResult,
    correct_of,
    episodes_by_prompt,
    fast_captured_of,
    gain,
    problem_of,
    reward_of,
)

Rows = Sequence[Row]
Episodes = dict[str, list[EpisodeResult]]

FIGURES = {"reward": reward_of, "correct": correct_of, "fast_captured": fast_captured_of}
CERTAIN = 3.0
"""Standard errors by which a gain is counted."""


@dataclass(frozen=True)
class SeedResults:
    """What one seed has found.

    Attributes:
        seed: its number.
        rows: policy -> results on the rings; SFT's are those of the first seed, unless this one has its own.
        arms: at equal evaluations.
        about: date, machine and commit of the run.
        training: figures of its GRPO; None where there is none.
    """

    seed: int
    rows: Mapping[str, Rows]
    arms: Sequence[Arm] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] | None = None


def seeds_figures(
    seeds: Sequence[SeedResults], rings: Mapping[str, str], gains: Sequence[tuple[str, str]], study_ring: str
) -> dict[str, Any]:
    """Each seed by itself, and all of them joined.

    Args:
        seeds: at least one.
        rings: prompt key -> ring.
        gains: policies that are compared, the later one first.
        study_ring: ring whose problems are shown.

    Returns:
        `seeds`, a list, and `joined`: policies and gains by ring, and gains over the arms at equal evaluations.
    """
    names = sorted(set(rings.values()))

    def by_ring(of: Sequence[SeedResults]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for after, before in gains:
            having = [one for one in of if after in one.rows and before in one.rows]
            if having:
                pairs = {ring: tuple(_of_ring(having, name, rings, ring) for name in (before, after)) for ring in names}
                found[f"{after} over {before}"] = {ring: _gains(*pair) for ring, pair in pairs.items()}
        return found

    alone = [
        {
            "seed": one.seed,
            **one.about,
            "policies": _policies([one], rings, names),
            "gains": by_ring([one]),
            "by_problem": {name: ring_by_problem(of, rings, study_ring) for name, of in one.rows.items()},
            "grpo": one.training,
            "study": [arm.model_dump(mode="json") for arm in compare(one.arms, "grpo")] if one.arms else [],
        }
        for one in seeds
    ]
    arms = [arm for one in seeds for arm in one.arms]
    over = joined_gains(arms, "grpo") if arms else {}
    joined = {
        "seeds": [one.seed for one in seeds],
        "policies": _policies(seeds, rings, names),
        "gains": by_ring(seeds),
        "certain": {pair: _certain(alone, pair) for pair in by_ring(seeds)},
        "study": {name: None if one is None else one.model_dump(mode="json") for name, one in over.items()},
    }
    return {"seeds": alone, "joined": joined}


def _of_ring(seeds: Sequence[SeedResults], policy: str, rings: Mapping[str, str], ring: str) -> Episodes:
    """The episodes of all seeds; those of rows that seeds share once."""
    found: Episodes = {}
    seen: list[Rows] = []
    for one in seeds:
        rows = one.rows.get(policy, ())
        if any(rows is other for other in seen):
            continue
        seen.append(rows)
        for key, episodes in episodes_by_prompt(rows).items():
            if rings.get(key) == ring:
                found.setdefault(key, []).extend(episodes)
    return found


def _policies(seeds: Sequence[SeedResults], rings: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    policies = dict.fromkeys(name for one in seeds for name in one.rows)
    return {
        policy: {ring: _means(of) for ring in names if (of := _of_ring(seeds, policy, rings, ring))}
        for policy in policies
    }


def _means(episodes: Episodes) -> dict[str, Any]:
    """Each prompt counts the same, see `figures_of`."""
    found: dict[str, Any] = {"prompts": len(episodes), "episodes": sum(map(len, episodes.values()))}
    for name, figure in FIGURES.items():
        clusters: dict[str, list[float]] = {}
        for key in sorted(episodes):  # sums of floats depend on the order
            values = [value for one in episodes[key] if (value := figure(one)) is not None]
            if values:
                clusters.setdefault(problem_of(key), []).append(sum(values) / len(values))
        mean = estimate(clusters.values())
        found[name] = None if mean is None else mean.model_dump(mode="json")
    return found


def _gains(before: Episodes, after: Episodes) -> dict[str, Any]:
    found = {name: gain(before, after, figure) for name, figure in FIGURES.items()}
    return {name: None if one is None else one.model_dump(mode="json") for name, one in found.items()}


def _certain(alone: Sequence[Mapping[str, Any]], pair: str) -> dict[str, int]:
    """Ring -> seeds whose gain in reward is more than `CERTAIN` standard errors."""
    counts: dict[str, int] = {}
    for one in alone:
        for ring, of in one["gains"].get(pair, {}).items():
            found = of["reward"]
            has = bool(found and found["standard_error"] and found["mean"] > CERTAIN * found["standard_error"])
            counts[ring] = counts.get(ring, 0) + has
    return counts
