"""Does the default reward teach a policy that is right in one of twenty submissions? GRPO on the CPU, in C++.

Each policy is a distribution over 39 sources of AllReduce: one that does nothing, two right ones (the starter, and the
expert), and 36 attempts that fail in one of six ways. It begins with 5 % of its probability on the right ones. All
sources that differ in their verdict are evaluated several times; a sample of the policy gets one of these records.
Learning is on-policy: groups of 8, credits and advantages of the default recipe, as in `training.grpo`, and a
policy gradient on the logits. The former default, which paid for stages reached and for the share of right outputs,
learns beside it from the same records and seeds.

The first table replays verdicts of a recorded learning run: the mean value of its submissions under either reward, and
that of doing nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.reward import is_caught, is_right
from pkb_gym.starters import make_starter
from pkb_gym.training.learner.turn_credit import find_credit

PROBLEM = "AllReduce"
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", timing_budget_s=0.1)
VERDICTS = Path(__file__).resolve().parent / "data" / "learning_verdicts.json"
GROUP, GROUPS_A_STEP, LEARNING_RATE = 8, 4, 1.0
RIGHT_AT_FIRST = 0.05
ATTEMPTS_OF_EACH = 6
"""Number of distinct wrong sources of each kind."""

BEGINS = "  comm.barrier();  // peers' arguments are there: their calls have begun\n"
ENDS = "  comm.barrier();  // by now peers have read this rank's arguments\n"
LOOP = "  for (int64_t k = begin; k < end; ++k) {\n"

Value = Callable[[Feedback], float]


def former_default(feedback: Feedback) -> float:
    """The former default: stages, the share of right outputs, and speed between the baseline and the roofline."""
    if feedback.stage is None or is_caught(feedback):
        return 0.0
    if is_right(feedback):
        assert feedback.timing is not None and feedback.roofline is not None
        headroom = min(1000.0, max(1.25, feedback.timing.baseline_us / max(1e-9, feedback.roofline.ceiling_us)))
        performance = log(feedback.timing.speedup_low) / log(headroom)
        return 1 + (min(1.0, performance) if performance >= 0 else performance / (1 - performance / 0.25))
    if feedback.stage in (Stage.STATIC, Stage.COMPILE):
        return 0.05 if feedback.stage is Stage.STATIC else 0.2
    if feedback.stage is Stage.RUN:
        check = feedback.check
        return 0.25 + 0.3 * (0.0 if check is None else check.outputs_right / max(1, check.outputs_compared))
    return 0.55


def default(feedback: Feedback) -> float:
    """The default of today."""
    value = find_reward("per_turn")(feedback)
    assert value is not None, "this machine failed"
    return value


REWARDS: Mapping[str, Value] = {"former": former_default, "default": default}


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    Attributes:
        name: Name of the kind.
        source: Text that is evaluated.
        copies: Number of sources of the policy that have this verdict.
    """

    name: str
    source: str
    copies: int


def kinds() -> list[Kind]:
    """The sources, each a change of the starter but for the expert's."""
    problem = find_problem(PROBLEM)
    starter, expert = make_starter(problem, "cpp").source, expert_source(problem, "cpp")
    assert expert is not None

    def changed(old: str, new: str) -> str:
        assert old in starter, old
        return starter.replace(old, new)

    idle = starter[: starter.index("  const DLDataType")] + "}\n" + starter[starter.rindex("\nTVM_FFI") :]
    wrong = {
        "does not compile": changed("comm.peer(x, r)", "comm.peers(x, r)"),
        "crash": changed(LOOP, "  if (comm.rank == 1) __builtin_trap();\n" + LOOP),
        "deadlock": changed(ENDS, "  if (comm.rank == 0) comm.barrier();\n"),
        "own data alone": changed("comm.peer(x, r)", "x + 0 * r"),
        "last element missing": changed(LOOP, LOOP.replace("k < end", "k + 1 < end")),
        "race": changed(BEGINS, ""),
    }
    return [
        Kind("nothing", idle, 1),
        Kind("right", starter, 1),
        Kind("expert", expert, 1),
        *(Kind(name, source, ATTEMPTS_OF_EACH) for name, source in wrong.items()),
    ]


def judged(kind: Kind, repeats: int, evaluator: LocalEvaluator) -> list[Feedback]:
    """The records of several evaluations of a source."""
    problem = find_problem(PROBLEM)
    return [
        evaluator.evaluate(problem, kind.source, CONFIG.model_copy(update={"seed": seed})) for seed in range(repeats)
    ]


class Policy:
    """A distribution over sources, by their kinds.

    Args:
        kinds: Kind of each source.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        right = [name in ("right", "expert") for name in kinds]
        others = (1 - RIGHT_AT_FIRST) / (len(kinds) - sum(right))
        self._logits = [log(RIGHT_AT_FIRST / sum(right) if one else others) for one in right]

    def probabilities(self) -> list[float]:
        """The probability of each source."""
        most = max(self._logits)
        weights = [exp(logit - most) for logit in self._logits]
        return [weight / sum(weights) for weight in weights]

    def learn(self, samples: Sequence[tuple[int, float]]) -> None:
        """One step of the policy gradient: A * grad log p, mean over samples of (source, advantage)."""
        probabilities = self.probabilities()
        step = LEARNING_RATE / len(samples)
        for source, advantage in samples:
            for other, probability in enumerate(probabilities):
                self._logits[other] += step * advantage * ((other == source) - probability)


def trained(
    value: Value, records: Mapping[str, Sequence[Feedback]], copies: Mapping[str, int], steps: int, seed: int
) -> list[dict[str, float]]:
    """Trains one policy.

    Returns:
        Probability of each kind, before and after every step.
    """
    rng = random.Random(seed)
    values = {name: [value(record) for record in of_kind] for name, of_kind in records.items()}
    sources = [name for name, count in copies.items() for _ in range(count)]
    policy, credit, curve = Policy(sources), find_credit(), []
    for _ in range(steps + 1):
        probabilities = policy.probabilities()
        curve.append(
            {name: sum(p for p, one in zip(probabilities, sources, strict=True) if one == name) for name in copies}
        )
        samples: list[tuple[int, float]] = []
        for _ in range(GROUPS_A_STEP):
            drawn = rng.choices(range(len(sources)), probabilities, k=GROUP)
            group = [[rng.choice(values[sources[source]])] for source in drawn]
            samples += [(source, turns[0]) for source, turns in zip(drawn, credit.of_group(group), strict=True)]
        policy.learn(samples)
    return curve


def summary(curves: Sequence[Sequence[Mapping[str, float]]], every: int) -> list[dict[str, float]]:
    """The means over seeds, and standard errors of the share that is right, at every so many steps."""
    rows = []
    for step in range(0, len(curves[0]), every):
        right = [curve[step]["right"] + curve[step]["expert"] for curve in curves]
        rows.append(
            {
                "step": step,
                "right": round(mean(right), 4),
                "right_standard_error": round(stdev(right) / len(right) ** 0.5, 4),
                "expert": round(mean(curve[step]["expert"] for curve in curves), 4),
                "nothing": round(mean(curve[step]["nothing"] for curve in curves), 4),
                "race": round(mean(curve[step]["race"] for curve in curves), 4),
            }
        )
    return rows


def replayed(nothing: Mapping[str, float]) -> list[dict[str, Any]]:
    """The recorded verdicts of policies by ring, with the mean value of their submissions under either reward.

    Right ones count as if they were as fast as the baseline, and wrong ones as if no output were right.

    Args:
        nothing: Value of doing nothing, by the name of the reward.
    """
    rows = []
    for entry in json.loads(VERDICTS.read_text())["rows"]:
        submitted = {name: count for name, count in entry["verdicts"].items() if name != "no_submission"}
        records = {name: timed() if name == "passed" else failed(name) for name in submitted}
        total = sum(submitted.values())
        values = {
            reward: sum(count * value(records[name]) for name, count in submitted.items()) / total
            for reward, value in REWARDS.items()
        }
        rows.append(
            {"policy": entry["policy"], "ring": entry["ring"]}
            | {"submissions": total, "right": submitted.get("passed", 0)}
            | {"mean_value": {name: round(one, 4) for name, one in values.items()}}
            | {"gain_over_nothing": {name: round(one - nothing[name], 4) for name, one in values.items()}}
        )
    return rows


def main() -> None:
    """Evaluates the sources, trains the policies, and keeps the result."""
    parser = make_parser("reward_learning", __doc__)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="evaluations of each source (default: 5)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps of each policy (default: 200)")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="policies for each reward (default: 10)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    given = parser.parse_args()
    with LocalEvaluator() as evaluator:
        found = kinds()
        records = {kind.name: judged(kind, given.repeats, evaluator) for kind in found}
    copies = {kind.name: kind.copies for kind in found}
    values = {
        name: {reward: round(mean(map(value, of_kind)), 4) for reward, value in REWARDS.items()}
        for name, of_kind in records.items()
    }
    learning = {
        reward: summary(
            [trained(value, records, copies, given.steps, seed) for seed in range(given.seeds)], given.steps // 10
        )
        for reward, value in REWARDS.items()
    }
    save(
        "reward_learning",
        {
            "problem": PROBLEM,
            "verdicts": {
                name: sorted({str(one.failure or "passed") for one in of_kind}) for name, of_kind in records.items()
            },
            "values": values,
            "replayed": replayed(values["nothing"]),
            "learning": learning,
        },
        given.out,
    )


if __name__ == "__main__":
    main()
