r"""Policies and controls at equal evaluations: mean reward of the best kernel of a prompt, by evaluations spent on it.

An arm is a policy or a search, and its results on the same prompts: SFT, GRPO, rejection-sampling fine-tuning
(`rft.py`), many samples of the SFT model (best of n), or `evolve`. The evaluations of training are charged to the
prompts in equal parts:

    x = training evaluations / prompts + submissions on the prompt so far
    y = mean over prompts of the greatest reward among these submissions

Arms are compared where the subject's results end, prompt by prompt; standard errors are clustered by problem.

    python -m benchmarks.learning_study --subject grpo \
        --arm 0:grpo=runs/seed-0/after/results.jsonl,runs/seed-0/grpo/rollouts.jsonl \
        --arm 0:best_of_n=runs/seed-0/samples/results.jsonl --arm 0:evolve=runs/seed-0/evolve/results.jsonl \
        --out learning_study.json --svg learning_study.svg
    python -m benchmarks.learning_study --render learning_study.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from statistics import fmean

from benchmarks.common import header, make_parser
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.metrics.estimates import Estimate, estimate
from pkb_gym.training.inputs.rows import Row, read_jsonl
from pkb_gym.training.results.attempts import read_rows
from pkb_gym.training.results.policy_summary import problem_of, prompt_key

NAME = "learning_study"


@dataclass(frozen=True)
class Arm:
    """A policy or a search of one seed.

    Attributes:
        seed: of the run.
        name: of the arm.
        rewards: prompt key -> rewards of its submissions in the order of evaluation; None where one was not judged.
        training: evaluations that its training took.
        silent: prompt key -> the reward of replies without a submission, which take no evaluation.
    """

    seed: int
    name: str
    rewards: Mapping[str, Sequence[float | None]]
    training: int
    silent: Mapping[str, float] = field(default_factory=dict)

    @property
    def charged(self) -> float:
        """Training evaluations of each prompt."""
        return self.training / len(self.rewards)

    @property
    def spent(self) -> dict[str, float]:
        """Evaluations of each prompt where its results end, its share of the training included."""
        return {key: self.charged + len(of) for key, of in self.rewards.items()}

    def best(self, budgets: Mapping[str, float]) -> dict[str, float]:
        """The best reward of each prompt after so many evaluations of it.

        A prompt on which nothing was submitted has the reward of silence. One whose submissions were not judged, or
        that has none within its budget, has none.
        """
        found = {}
        for key, budget in budgets.items():
            left = floor(budget - self.charged + 1e-9)
            of = self.rewards.get(key)
            if of is None or left < 0:
                continue
            if not of and key in self.silent:
                found[key] = self.silent[key]
            elif judged := [reward for reward in of[:left] if reward is not None]:
                found[key] = max(judged)
        return found


class ArmFigures(Record):
    """One arm of one seed."""

    seed: int
    arm: str
    training_evaluations: int
    evaluations: float
    """Of each prompt, in training and on it, that the reward below took; fewer than the subject's where it ended."""
    reward: Estimate | None
    """Mean over prompts of the best submission at the subject's number of evaluations."""
    subject_gain: Estimate | None
    """How much more the subject has, prompt by prompt; None for the subject."""
    curve: tuple[tuple[float, float], ...]
    """(evaluations of each prompt, mean best reward)."""


def read_arm(text: str) -> Arm:
    """An arm from `SEED:NAME=RESULTS[,ROLLOUTS]`: what was found, and what its training evaluated.

    Raises:
        ConfigError: the text is none, or a file cannot be read or is empty.
    """
    name, equals, files = text.partition("=")
    seed, colon, arm = name.partition(":")
    if not (equals and colon and arm and seed.isdigit()):
        raise ConfigError(f"--arm {text}: expected SEED:NAME=RESULTS[,ROLLOUTS], such as 0:sft=sft/results.jsonl")
    results, *training = files.split(",")
    rows = read_rows(Path(results))
    if not rows:
        raise ConfigError(f"{results} has no result")
    silent = {prompt_key(row): row["reward"] for row in rows if row.get("failure") == NO_SUBMISSION}
    trained = [row for path in training for row in read_jsonl(Path(path))]
    return Arm(int(seed), arm, rewards_by_prompt(rows), training_evaluations(trained), silent)


def training_evaluations(rollouts: Sequence[Row]) -> int:
    """Evaluations of a training, from its `rollouts.jsonl`: submissions but for repeated ones."""
    return sum(not row["is_duplicate"] for row in rollouts if row.get("failure") != NO_SUBMISSION)


def rewards_by_prompt(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """Rewards of each prompt's submissions, episode after episode; empty where there was none."""
    found: dict[str, list[float | None]] = {}
    for row in sorted(rows, key=lambda row: (row["sample"], row["turn"])):
        of_prompt = found.setdefault(prompt_key(row), [])
        if row.get("failure") != NO_SUBMISSION:
            of_prompt.append(row["reward"])
    return found


def compare(arms: Sequence[Arm], subject: str) -> list[ArmFigures]:
    """Each seed's arms at the evaluations of its subject.

    Raises:
        ConfigError: a seed has no subject, or its arms have no prompt in common.
    """
    figures = []
    for seed in sorted({arm.seed for arm in arms}):
        of_seed = [arm for arm in arms if arm.seed == seed]
        found = [arm for arm in of_seed if arm.name == subject]
        if len(found) != 1:
            raise ConfigError(f"seed {seed} needs one arm {subject!r}; it has {', '.join(arm.name for arm in of_seed)}")
        common = frozenset.intersection(*(frozenset(arm.rewards) for arm in of_seed))
        if not common:
            raise ConfigError(f"the arms of seed {seed} have no prompt in common")
        figures += [_figures(arm, found[0], common) for arm in of_seed]
    return figures


def joined_gains(arms: Sequence[Arm], subject: str) -> dict[str, Estimate | None]:
    """Of each other arm, how much more the subject has, at its evaluations: the mean of all seeds on each prompt.

    Standard errors are clustered by problem; the seeds of a prompt count as one value.

    Raises:
        ConfigError: see `compare`.
    """
    compare(arms, subject)  # refuses what cannot be compared
    gains: dict[str, dict[str, list[float]]] = {}
    for seed in sorted({arm.seed for arm in arms}):
        of_seed = [arm for arm in arms if arm.seed == seed]
        own = next(arm for arm in of_seed if arm.name == subject)
        for arm in of_seed:
            if arm is not own:
                budgets = {key: spent for key, spent in own.spent.items() if key in arm.rewards}
                best, theirs = arm.best(budgets), own.best(budgets)
                for key in best.keys() & theirs.keys():
                    gains.setdefault(arm.name, {}).setdefault(key, []).append(theirs[key] - best[key])
    return {name: _mean({key: fmean(of) for key, of in by_prompt.items()}) for name, by_prompt in gains.items()}


def _figures(arm: Arm, subject: Arm, common: frozenset[str]) -> ArmFigures:
    budgets = {key: spent for key, spent in subject.spent.items() if key in common}
    best, theirs = arm.best(budgets), subject.best(budgets)
    gains = {key: theirs[key] - best[key] for key in budgets if key in theirs and key in best}
    points = [arm.charged + number for number in range(1, max(map(len, arm.rewards.values())) + 1)]
    means = [(point, _mean(arm.best(dict.fromkeys(common, point)))) for point in points]
    return ArmFigures(
        seed=arm.seed,
        arm=arm.name,
        training_evaluations=arm.training,
        evaluations=fmean(min(arm.spent[key], budget) for key, budget in budgets.items()),
        reward=_mean(best),
        subject_gain=None if arm is subject else _mean(gains),
        curve=tuple((point, found.mean) for point, found in means if found is not None),
    )


def _mean(values: Mapping[str, float]) -> Estimate | None:
    clusters: dict[str, list[float]] = {}
    for key in sorted(values):  # sums of floats depend on the order
        clusters.setdefault(problem_of(key), []).append(values[key])
    return estimate(clusters.values())


def markdown(figures: Sequence[ArmFigures], subject: str) -> str:
    """The table."""
    head = (
        "seed",
        "arm",
        "training evaluations",
        "evaluations of a prompt",
        "reward",
        f"{subject} has more",
        "in errors",
    )
    lines = [head, ("---",) * len(head)]
    for one in figures:
        gain = one.subject_gain
        errors = f"{gain.mean / gain.standard_error:.1f}" if gain is not None and gain.standard_error else ""
        spent = (str(one.training_evaluations), f"{one.evaluations:.1f}")
        lines.append((str(one.seed), one.arm, *spent, _text(one.reward), _text(gain), errors))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{found.mean:.3f}" + ("" if found.standard_error is None else f" ± {found.standard_error:.3f}")


def draw(figures: Sequence[ArmFigures], path: Path) -> None:
    """The curves as an SVG picture, a panel for each seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "pkb-gym"
    from matplotlib import pyplot as plt

    seeds = sorted({one.seed for one in figures})
    figure, axes = plt.subplots(
        1, len(seeds), figsize=(3.8 * len(seeds), 3.2), constrained_layout=True, sharey=True, squeeze=False
    )
    for panel, seed in zip(axes[0], seeds, strict=True):
        for one in figures:
            if one.seed == seed:
                panel.plot(*zip(*one.curve, strict=True) if one.curve else ([], []), label=one.arm, linewidth=1.2)
        panel.set_title(f"seed {seed}", fontsize=10)
        panel.set_xlabel("evaluations of a prompt, training included")
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("mean best reward")
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    """Reads runs or a result, prints the table, and writes what was asked for."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--arm", action="append", default=[], metavar="SEED:NAME=RESULTS[,ROLLOUTS]")
    parser.add_argument("--subject", default="grpo", metavar="NAME", help="arm that others are compared with")
    parser.add_argument("--render", type=Path, metavar="RESULT", help="a result instead of runs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the result goes")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="where the curves go")
    args = parser.parse_args(argv)
    if bool(args.arm) == (args.render is not None):
        parser.error("give either --arm, once for each arm, or --render")
    try:
        if args.render is not None:
            kept = json.loads(args.render.read_bytes())
            subject, figures = kept["subject"], [ArmFigures.model_validate(one) for one in kept["arms"]]
        else:
            subject, figures = args.subject, compare([read_arm(text) for text in args.arm], args.subject)
    except ConfigError as error:
        parser.error(str(error))
    print(markdown(figures, subject))
    if args.out is not None:
        arms = [one.model_dump(mode="json") for one in figures]
        write_atomically(args.out, json.dumps({**header(), "subject": subject, "arms": arms}, indent=1) + "\n")
    if args.svg is not None:
        draw(figures, args.svg)


if __name__ == "__main__":
    main()
