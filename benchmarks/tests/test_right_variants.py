"""The study of right variants: what it judges, and how it counts."""

from __future__ import annotations

from benchmarks import right_variants
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.examples import failed, timed


class RefusesFourRanks:
    """An evaluator that finds everything right on two ranks, and nothing on four."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def evaluate(self, problem: object, source: str, config: EvalConfig, progress: object = None) -> Feedback:
        self.sources.append(source)
        right = timed(baseline_us=100, speedup=2.0)
        return right if config.world_size == 2 else failed("output_mismatch", message="far off")

    def close(self) -> None:
        """Nothing is open."""


def test_every_problem_is_judged_on_two_and_four_ranks_with_other_seeds():
    evaluator = RefusesFourRanks()
    result = right_variants.study(evaluator, [find_problem("AllReduce"), find_problem("FP8AllGatherParams")], 7)
    assert (result["problems"], result["evaluations"], result["evaluations_refused"]) == (2, 4, 2)
    assert [row["seed"] for row in result["rows"]] == [7, 107, 7, 107]
    assert [row.get("message") for row in result["rows"]] == [None, "far off", None, "far off"]
    passed = timed(baseline_us=100, speedup=2.0)
    assert result["rows"][0]["variants"] == passed.check.trials
    assert result["variants"] == sum(row["variants"] for row in result["rows"])
    widths = ["SEED, RANKS, WIDE, MODES = 7, 1024, True", "SEED, RANKS, WIDE, MODES = 7, 1024, False"]
    assert all(text in source for text, source in zip(widths, evaluator.sources[::2], strict=True))
