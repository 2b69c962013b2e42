"""Rows of tokens: what was read and what was sampled in each context, and the padding of ranks to equal numbers."""

from __future__ import annotations

import math

import pytest
from trl import GRPOConfig

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.learner.token_rows import BY_TOKEN, batch_rows, refuse_losses_by_sequence, rollout_fields
from pkb_gym.training.rollout.tool_rounds import Rollout, TokenRow

PADDING = 99
CALL, ANSWER = {"role": "assistant"}, [{"role": "tool"}]


def rollout(*contexts: list[int] | None) -> Rollout:
    """Messages of two tokens each: 10 and 11, 20 and 21 and so on; the contexts are what is read between."""
    found = Rollout([TokenRow([1, 2])])
    for number, context in enumerate([*contexts, "end"], start=1):
        found.append_assistant_message(CALL, [10 * number, 10 * number + 1], [-float(number), -number - 0.5])
        if context != "end":
            found.append_tool_messages(ANSWER, [7], context)
    return found


def test_all_that_is_read_in_sequence_is_one_row():
    (row,) = rollout(None, None).rows
    assert row.prompt_ids == [1, 2] and row.completion_ids == [10, 11, 7, 20, 21, 7, 30, 31]
    assert row.assistant_mask == [1, 1, 0, 1, 1, 0, 1, 1]
    assert row.logprobs == [-1.0, -1.5, 0.0, -2.0, -2.5, 0.0, -3.0, -3.5]
    assert row.message_count == 3


def test_a_context_that_was_trimmed_begins_a_row():
    """The middle message had nothing to trim, so that the third continues its row."""
    played = rollout([1, 2, 11, 7], [1, 2, 11, 7, 20, 21, 7])
    first, second = played.rows
    assert (first.prompt_ids, first.completion_ids, first.assistant_mask) == ([1, 2], [10, 11], [1, 1])
    assert (second.prompt_ids, second.completion_ids) == ([1, 2, 11, 7], [20, 21, 7, 30, 31])
    assert second.assistant_mask == [1, 1, 0, 1, 1] and second.logprobs == [-2.0, -2.5, 0.0, -3.0, -3.5]
    assert played.context_ids == [1, 2, 11, 7, 20, 21, 7, 30, 31]
    assert played.length == 8, "trimmed tokens count too"


def test_rollouts_are_filled_up_with_padding():
    rows = batch_rows([rollout([1, 2, 11, 7]), rollout(None)], 2, PADDING)
    assert [(row.rollout, list(row.turns)) for row in rows] == [(0, [0]), (1, [0, 1]), (0, [1]), (1, [])]
    assert [list(row.advantages([[0.5, -0.5], [1.0, 2.0]])) for row in rows] == [[0.5], [1.0, 2.0], [-0.5], [0.0]]
    fields = rollout_fields([row.tokens for row in rows], with_logprobs=True)
    assert fields["completion_ids"][3] == [PADDING] and fields["env_mask"][3] == [0]
    for ids, mask, logprobs in zip(fields["completion_ids"], fields["env_mask"], fields["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs)
        assert all((logprob != 0) == bool(own) for logprob, own in zip(logprobs, mask, strict=True))
    assert rollout_fields([], with_logprobs=False)["logprobs"] is None


def test_sampling_without_log_probabilities():
    row = TokenRow([1])
    played = Rollout([row])
    played.append_assistant_message(CALL, [5, 6], None)
    assert len(row.logprobs) == 2 and all(map(math.isnan, row.logprobs))


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "sapo"])
def test_losses_by_sequence_are_refused(loss, tmp_path):
    with pytest.raises(ConfigError, match=f"loss_type={loss} divides by the number of sequences: take dapo"):
        refuse_losses_by_sequence(GRPOConfig(str(tmp_path), loss_type=loss, use_cpu=True, bf16=False))
    for fine in BY_TOKEN:
        refuse_losses_by_sequence(GRPOConfig(str(tmp_path), loss_type=fine, use_cpu=True, bf16=False))
