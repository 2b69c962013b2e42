"""Seeds of a learning run, each by itself and joined, against numbers computed by hand."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import pytest

from benchmarks import learning_run_report
from benchmarks.learning_seeds import SeedResults, seeds_figures
from benchmarks.learning_study import Arm, joined_gains
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.training.results.policy_summary import prompt_key
from tests.benchmarks.test_learning_run_report import turn, write_archive

PROBLEMS = ("A", "B", "C")


def results(*rewards: float) -> list[dict]:
    """One episode of one turn for each problem."""
    return [turn(name, 0, 0, None, reward) for name, reward in zip(PROBLEMS, rewards, strict=True)]


RINGS = {prompt_key(one): "sizes" for one in results(0, 0, 0)}
SFT = results(1.0, 1.0, 1.0)


def test_joined_gains_pair_prompts_and_cluster_problems_by_hand():
    """Gains of seed 0: 1, 2, 3; of seed 1: 1, 0, 1; of both: 1, 1, 2. SFT has the same episodes in both."""
    seeds = [
        SeedResults(0, {"sft": SFT, "grpo": results(2, 3, 4)}),
        SeedResults(1, {"sft": SFT, "grpo": results(2, 1, 2)}),
    ]
    found = seeds_figures(seeds, RINGS, [("grpo", "sft"), ("rft", "sft")], "sizes")
    alone = [one["gains"]["grpo over sft"]["sizes"]["reward"] for one in found["seeds"]]
    assert [one["mean"] for one in alone] == pytest.approx([2.0, 2 / 3])
    joined = found["joined"]["gains"]["grpo over sft"]["sizes"]["reward"]
    assert joined["mean"] == pytest.approx(4 / 3) and joined["clusters"] == 3
    assert joined["standard_error"] == pytest.approx(sqrt(3 / 2 * (2 * (1 / 3) ** 2 + (2 / 3) ** 2)) / 3)
    assert set(found["joined"]["gains"]) == {"grpo over sft"}, "no seed has rft"
    policies = found["joined"]["policies"]
    assert policies["sft"]["sizes"]["episodes"] == 3 and policies["grpo"]["sizes"]["episodes"] == 6
    assert policies["grpo"]["sizes"]["reward"]["mean"] == pytest.approx(7 / 3)
    # Seed 0: 2 with an error of sqrt(3/2 * 2) / 3 = 0.58; seed 1: 0.67 with 0.33.
    assert found["joined"]["certain"] == {"grpo over sft": {"sizes": 1}}


def test_seeds_and_all_joined_have_the_share_that_is_faster_than_captured_by_hand():
    """A kernel for A is twice as fast in seed 0, one for B as fast as the baseline in seed 1; no other is compared."""
    grpo = [results(1, 1, 1), results(1, 1, 1)]
    grpo[0][0]["captured_speedup"], grpo[1][1]["captured_speedup"] = 2.0, 1.0
    seeds = [SeedResults(number, {"sft": SFT, "grpo": rows}) for number, rows in enumerate(grpo)]
    found = seeds_figures(seeds, RINGS, [("grpo", "sft")], "sizes")
    shares = [one["policies"]["grpo"]["sizes"]["fast_captured"]["mean"] for one in (*found["seeds"], found["joined"])]
    assert shares == pytest.approx([1 / 3, 0, 1 / 6])
    assert found["joined"]["gains"]["grpo over sft"]["sizes"]["fast_captured"]["mean"] == pytest.approx(1 / 6)


def arm(seed: int, name: str, training: int, *rewards: float) -> Arm:
    """One prompt each of two problems."""
    keys = list(RINGS)[:2]
    return Arm(seed, name, {key: [reward] for key, reward in zip(keys, rewards, strict=True)}, training)


def test_arms_are_compared_seed_by_seed_and_averaged_by_hand():
    """GRPO has 1 and 2 more in seed 0, 3 and 0 more in seed 1: 2 and 1 on average."""
    arms = [arm(0, "grpo", 4, 2, 3), arm(0, "sft", 0, 1, 1), arm(1, "grpo", 4, 4, 1), arm(1, "sft", 0, 1, 1)]
    found = joined_gains(arms, "grpo")
    assert set(found) == {"sft"} and found["sft"] is not None
    assert found["sft"].mean == pytest.approx(1.5) and found["sft"].clusters == 2


def test_the_report_joins_archives_of_seeds(tmp_path: Path):
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    step = {"step": 0, "wall_s": 1.0, "phases_s": {}, "stages_s": {}, "evaluations": 1, "gpu_utilisations": []}

    def judged(reward: float) -> dict:
        return Attempt(problem="A", requested=config, source="int x;", reward=reward).model_dump(mode="json")

    def files(seed: int, reward: float) -> dict[str, dict]:
        rollout = {**turn("A", 0, 0, "race"), "step": 0, "is_duplicate": False}
        return {
            "about.json": {"commit": "c" * 12, "seed": seed},
            "rings_grpo/results.jsonl": judged(reward),
            "grpo/rollouts.jsonl": rollout,
            "grpo/phases.jsonl": step,
        }

    write_archive(tmp_path / "0.tar.gz", files(0, 0.5) | {"rings_sft/results.jsonl": judged(0.25)})
    write_archive(tmp_path / "1.tar.gz", files(7, 1.0))
    (tmp_path / "prompts.jsonl").write_text(json.dumps({**judged_prompt(config), "ring": "sizes"}) + "\n")
    archives = [str(tmp_path / f"{number}.tar.gz") for number in (0, 1)]
    learning_run_report.main([*archives, "--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path)])
    found = json.loads((tmp_path / "learning_run.json").read_bytes())
    assert found["joined"]["seeds"] == [0, 7]
    gains = [one["gains"]["grpo over sft"]["sizes"]["reward"]["mean"] for one in found["seeds"]]
    assert [*gains, found["joined"]["gains"]["grpo over sft"]["sizes"]["reward"]["mean"]] == [0.25, 0.75, 0.5]
    assert found["joined"]["study"]["sft"]["mean"] == pytest.approx(0.5)
    learning_run_report.main([archives[0], "--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path)])
    assert "joined" not in json.loads((tmp_path / "learning_run.json").read_bytes())


def judged_prompt(config: EvalConfig) -> dict:
    """The row of the prompts that attempts with this configuration answer."""
    columns = ("language", "size", "dtype", "world_size", "seed")
    return {"problem": "A", **{name: getattr(config, name) for name in columns}}
