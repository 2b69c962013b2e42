r"""Presets compared on the same evaluations: flat groups, ties, order and noise.

Every recorded evaluation of a policy or search is valued by each preset, on its prompt (problem, size, dtype):

    flat      chance that `GROUP` evaluations, drawn without replacement from those of a prompt, all have one reward:
              sum over values v of C(n_v, GROUP) / C(n, GROUP). Such a group has no gradient.
    ties      share of the pairs of different right kernels of a prompt that have one reward
    order     share of these pairs in which the faster kernel has the greater reward; a tie counts half. A kernel's time
              is the geometric mean over its evaluations.
    noise     mean of (r - r')^2 over pairs of evaluations of one right kernel, by that over pairs of different right
              kernels of a prompt: 0 where the reward repeats exactly, 1 where kernels differ by no more than noise
    margin    least reward of a right kernel less the greatest of a wrong one
    caught    greatest reward of a submission with an integrity finding
    replay    what the preset teaches a policy over the recorded kernels, see `reward_replay`

Submissions are those on the rings, and the first ones of GRPO's rollouts. An evaluation that answered several equal
submissions counts once in `noise`. Prompts and pairs count the same, in `noise` the problems; errors are clustered by
problem. All evaluations have to be of one machine: what differs between machines would count as noise.

    python -m benchmarks.reward_study RUN.tar.gz [RESULTS.jsonl ...]
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import reward_replay
from benchmarks.common import RESULTS, make_parser, save
from benchmarks.reward_replay import Arm, geometric_mean
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.metrics.estimates import Estimate, estimate, estimate_columns
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.reward import is_right
from pkb_gym.training.results.attempts import row_of
from pkb_gym.training.results.policy_summary import problem_of, prompt_key

NAME = "reward_study"
PRESETS = ("default", "kevin", "dr_kernel", "kernelbench", "cuda_agent", "correctness_only", "roofline_only")
GROUP = 8
"""Rollouts of a prompt that GRPO compares."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation.

    Attributes:
        prompt: key of what was asked.
        kernel: digest of the source.
        feedback: what was found.
        rewards: preset -> value.
    """

    prompt: str
    kernel: str
    feedback: Feedback
    rewards: Mapping[str, float]

    @property
    def time_us(self) -> float | None:
        """Of the kernel; None where it is not right or was not timed."""
        timing = self.feedback.timing
        return timing.candidate_us if is_right(self.feedback) and timing is not None else None


@dataclass(frozen=True)
class Judged:
    """A submission that was judged: prompt and kernel as in `Evaluated`."""

    prompt: str
    kernel: str
    feedback: Feedback


def judged(attempts: Iterable[Attempt]) -> Iterator[Judged]:
    """The attempts that were judged."""
    for attempt in attempts:
        if attempt.feedback is not None and attempt.source is not None:
            yield Judged(prompt_key(row_of(attempt)), source_sha256(attempt.source), attempt.feedback)


def judged_in_training(rollouts: Iterable[Mapping[str, Any]]) -> Iterator[Judged]:
    """The first submissions of GRPO's rollouts whose feedback is recorded."""
    for row in rollouts:
        if row.get("feedback") is not None and row["turn"] == 0:
            yield Judged(prompt_key(row), str(row["source_hash"]), Feedback.model_validate(row["feedback"]))


def valued(submissions: Iterable[Judged]) -> list[Evaluated]:
    """Submissions, by every preset; those that this machine could not judge are left out."""
    rewards = {name: find_reward(name) for name in PRESETS}
    found = []
    for one in submissions:
        values = {name: reward(one.feedback) for name, reward in rewards.items()}
        known = {name: value for name, value in values.items() if value is not None}
        if len(known) == len(rewards):
            found.append(Evaluated(one.prompt, one.kernel, one.feedback, known))
    return found


def flat_chance(values: Sequence[float], group: int) -> float | None:
    """Chance that so many of the values, drawn without replacement, are all equal; None of fewer values.

    Example:
        >>> round(flat_chance([0.0, 0.0, 0.0, 1.0], 2), 3)  # 3 of 6 pairs
        0.5
    """
    if len(values) < group:
        return None
    counts = [values.count(value) for value in set(values)]
    return sum(comb(count, group) for count in counts) / comb(len(values), group)


def study(evaluations: Sequence[Evaluated], group: int = GROUP) -> dict[str, Any]:
    """The figures of every preset."""
    prompts: dict[str, list[Evaluated]] = {}
    for one in evaluations:
        prompts.setdefault(one.prompt, []).append(one)
    right = {key: [one for one in of if one.time_us is not None] for key, of in prompts.items()}
    caught = [one for one in evaluations if one.feedback.failure is Failure.INTEGRITY]
    return {
        "evaluations": len(evaluations),
        "right": sum(map(len, right.values())),
        "prompts": len(prompts),
        "problems": len({problem_of(key) for key in prompts}),
        "repeated": sum(_again(one, other) for of in right.values() for one, other in combinations(of, 2)),
        "caught": len(caught),
        "group": group,
        "presets": {name: _figures(name, prompts, right, caught, group) for name in PRESETS},
    }


def _figures(
    name: str,
    prompts: Mapping[str, Sequence[Evaluated]],
    right: Mapping[str, Sequence[Evaluated]],
    caught: Sequence[Evaluated],
    group: int,
) -> dict[str, Any]:
    flat, ties, order = _Clusters(), _Clusters(), _Clusters()
    same, different = _Clusters(), _Clusters()
    for key, of in prompts.items():
        problem = problem_of(key)
        flat.add(problem, flat_chance([one.rewards[name] for one in of], group))
        times = _times(right[key])
        for one, other in combinations(right[key], 2):
            gap = one.rewards[name] - other.rewards[name]
            if one.kernel == other.kernel:
                same.add(problem, gap**2 if _again(one, other) else None)
                continue
            different.add(problem, gap**2)
            ties.add(problem, float(gap == 0))
            faster = times[other.kernel] - times[one.kernel]
            order.add(problem, 0.5 if gap == 0 else float(gap * faster > 0))
    wrong = [one.rewards[name] for of in prompts.values() for one in of if not is_right(one.feedback)]
    values = [one.rewards[name] for of in right.values() for one in of]
    return {
        "flat": _dumped(estimate(flat.values())),
        "ties": _dumped(estimate(ties.values())),
        "order": _dumped(estimate(order.values())),
        "noise": _dumped(_ratio(same, different)),
        "margin": min(values) - max(wrong) if values and wrong else None,
        "right_range": [min(values), max(values)] if values else None,
        "caught": max((one.rewards[name] for one in caught), default=None),
        "replay": _replayed(name, prompts, group),
    }


def _replayed(name: str, prompts: Mapping[str, Sequence[Evaluated]], group: int) -> dict[str, Any]:
    """On the prompts with several kernels, one of them right."""
    arms = {key: arms_of(of, name) for key, of in prompts.items() if any(is_right(one.feedback) for one in of)}
    arms = {key: of for key, of in arms.items() if len(of) > 1}
    return {"prompts": len(arms)} | reward_replay.figures(name, arms, {key: problem_of(key) for key in arms}, group)


def _again(one: Evaluated, other: Evaluated) -> bool:
    """Whether a kernel was evaluated twice; equal requests are answered by one evaluation."""
    return one.kernel == other.kernel and one.feedback.timing != other.feedback.timing


def arms_of(evaluations: Sequence[Evaluated], preset: str) -> list[Arm]:
    """The kernels of one prompt for `reward_replay`."""
    kernels: dict[str, list[Evaluated]] = {}
    for one in evaluations:
        kernels.setdefault(one.kernel, []).append(one)
    return [
        Arm(
            draws=len(of),
            values=[one.rewards[preset] for one in of],
            right=fmean(is_right(one.feedback) for one in of),
            time_us=geometric_mean([one.time_us for one in of if one.time_us is not None]),
        )
        for of in kernels.values()
    ]


class _Clusters(dict[str, list[float]]):
    """Values by problem."""

    def add(self, problem: str, value: float | None) -> None:
        if value is not None:
            self.setdefault(problem, []).append(value)


def _times(evaluations: Sequence[Evaluated]) -> dict[str, float]:
    """Kernel -> geometric mean of its times."""
    times: dict[str, list[float]] = {}
    for one in evaluations:
        if one.time_us is not None:
            times.setdefault(one.kernel, []).append(log(one.time_us))
    return {kernel: exp(fmean(logs)) for kernel, logs in times.items()}


def _ratio(above: Mapping[str, Sequence[float]], below: Mapping[str, Sequence[float]]) -> Estimate | None:
    """Mean of some values by the mean of others, over the problems that have both; None where the latter is 0.

    Each problem's pairs are weighed alike: its sums are divided by its numbers of pairs, so that a problem with many
    repeated kernels does not outweigh the others.
    """
    problems = sorted(above.keys() & below.keys())
    sums = np.array([[fmean(above[problem])] for problem in problems])
    counts = np.array([[fmean(below[problem])] for problem in problems])
    return None if not problems or counts.sum() == 0 else estimate_columns(sums, counts)[0]


def _dumped(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else found.model_dump(mode="json")


def submissions_of(path: Path) -> Iterator[Judged]:
    """Those in a file of results, or in all that `learning_run` collected, as far as it came."""
    yield from judged(attempts_of(path))
    if path.suffix != ".jsonl":
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                if member.name.endswith("/rollouts.jsonl"):
                    yield from judged_in_training(json.loads(line) for line in archive.extractfile(member) or ())


def attempts_of(path: Path) -> Iterator[Attempt]:
    """The attempts of evaluated policies, those of a stage that was broken off included."""
    if path.suffix == ".jsonl":
        yield from read_attempts(path)
        return
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        finished = {member.name.split("/")[0] for member in members if member.name.endswith("/results.jsonl")}
        for member in members:
            file = archive.extractfile(member)
            if member.name.endswith("/results.jsonl"):
                yield from (Attempt.from_line(line) for line in file or ())
            elif "/parts/" in member.name and member.name.split("/")[0] not in finished:
                episodes = (json.loads(line) for line in file or ())
                yield from (Attempt.model_validate(one) for of in episodes for one in of["attempts"])


def source_of(path: Path) -> dict[str, Any]:
    """Where the evaluations were made, as far as it is recorded."""
    if path.suffix == ".jsonl":
        return {}
    with tarfile.open(path) as archive:
        file = archive.extractfile("about.json")
        about: dict[str, Any] = json.loads(file.read()) if file is not None else {}
    return {name: about[name] for name in ("date", "machine", "commit") if name in about}


def main(argv: Sequence[str] | None = None) -> None:
    """Values all evaluations, and writes the result."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="run.tar.gz or results.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    args = parser.parse_args(argv)
    sources = [found for path in args.results if (found := source_of(path))]
    evaluations = valued(one for path in args.results for one in submissions_of(path))
    save(NAME, {"sources": sources} | study(evaluations), args.out)


if __name__ == "__main__":
    main()
