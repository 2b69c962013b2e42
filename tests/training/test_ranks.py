"""Two ranks that learn together: groups spread over both, rounds that one needs and the other does not."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file

from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.examples import failed, timed
from tests.training.rank_processes import run_ranks
from tests.training.scripted import write_tiny_policy
from tests.waiting import PATIENCE_S


def value(speedup: float) -> float:
    return LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=speedup))


@pytest.mark.slow
def test_two_ranks_learn_as_one(corpus, tmp_path):
    policy = write_tiny_policy(corpus, tmp_path / "policy")
    run_ranks("tests.training.two_ranks", [policy, tmp_path], os.environ, PATIENCE_S)
    reports = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2)]

    # Values of turns: rollout 0 (1, 10, -), 1 (0.01, 4, 1); 2 and 3 submitted nothing and have one turn, of value 0.
    broken = LadderThenPerformance()(failed("compile_error"))
    first = [value(1), broken, 0.0, 0.0]
    second = [value(10) - value(1), value(4) - broken]
    of_first = [round(own - (sum(first) - own) / 3, 6) for own in first]
    of_second = [round(own - (sum(second) - own), 6) for own in second]
    assert reports[0]["advantages"] == [sorted([of_first[0], of_second[0]]), sorted([of_first[1], of_second[1], 0.0])]
    assert reports[1]["advantages"] == [[of_first[2]], [of_first[3]]]

    assert reports[0]["weights"] == reports[1]["weights"]
    assert reports[0]["logged"]["submissions"] == 5 and reports[0]["logged"]["correct/AllReduce"] == 0.5
    assert reports[0]["logged"]["phase/ranks"] > 0
    # The rank without submissions opened and shut its gate as often as the other one.
    gates = [[note for note in rank["notes"] if note in ("open", "shut")] for rank in reports]
    assert gates[0] == gates[1] == ["shut", *["open", "shut"] * 6]
    for note, next_note in zip(reports[0]["notes"], reports[0]["notes"][1:], strict=False):
        assert not (note == "shut" and next_note.startswith("speedup"))

    # Where generation is a collective, a rank without open rollouts generates for its peer's.
    assert [rank["together"] for rank in reports] == [[3, reports[0]["lengths"]], [3, reports[1]["lengths"]]]

    # A batch that was generated ahead is that of all ranks, too.
    ahead = [rank["ahead"] for rank in reports]
    assert ahead[0]["weights"] == ahead[1]["weights"] and ahead[0]["ages"] == ahead[1]["ages"] == [0, 1, 1]
    best = (value(10) + value(4)) / 4  # of the four rollouts, two submitted nothing
    assert ahead[0]["rewards"] == ahead[1]["rewards"] == pytest.approx([best] * 3)
    tokens = [sum(pair) for pair in zip(ahead[0]["own"], ahead[1]["own"], strict=True)]
    assert ahead[0]["tokens"] == ahead[1]["tokens"] == tokens
    assert ahead[0]["unused"] == ahead[1]["unused"] == 0, "two batches for three steps"

    # With a sequence for each context, ranks have equally many, and rewards count each rollout once.
    trimmed = [rank["trimmed"] for rank in reports]
    assert [rank["sequences"] for rank in trimmed] == [6, 6]
    assert trimmed[0]["weights"] == trimmed[1]["weights"]
    assert trimmed[0]["reward"] == trimmed[1]["reward"] == pytest.approx(best)
    assert trimmed[0]["tokens"] == trimmed[1]["tokens"] == trimmed[0]["own"] + trimmed[1]["own"]
    for rank, of_rank in zip(trimmed, reports, strict=True):
        assert rank["advantages"] == sorted({one for turns in of_rank["advantages"] for one in turns} - {0.0})

    # Ranks that hold a part of the weights each learn what ranks with all of them do, and save the whole.
    for rank in reports:
        assert set(rank["sharded"]["own_parts"]) == {"DTensor"}
        assert rank["sharded"]["losses"] == pytest.approx(rank["losses"], abs=1e-6)
    whole, sharded = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "sharded"))
    before = load_file(policy / "model.safetensors")
    assert whole.keys() == before.keys() == sharded.keys() - {"lm_head.weight"}, "that is tied to the embedding"
    for name, tensor in whole.items():
        torch.testing.assert_close(sharded[name], tensor, rtol=0, atol=1e-5)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in whole.items())
