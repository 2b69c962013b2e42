"""The rows of token sequences that a batch of rollouts becomes, in the form that TRL's trainer takes.

A rollout is one row, or, where earlier reasoning was left out of what the policy read, one for each context that it
wrote in: there the prompt of a row is exactly what was read, and its completion exactly what was sampled, so that
log-probabilities, masks and advantages belong to the same tokens in generation and in learning. TRL takes equally many
rows of every rank, a multiple of the size of a group: rollouts with fewer rows than the one that has most are filled up
with rows of padding, which have no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trl import GRPOConfig

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.rollout.tool_rounds import Rollout, TokenRow

BY_TOKEN = ("dapo", "bnpo", "cispo")
"""Losses of TRL that divide by numbers of tokens."""


@dataclass(frozen=True)
class BatchRow:
    """One row of a batch.

    Attributes:
        tokens: Tokens of the row.
        rollout: Index of its rollout in the batch.
        turns: Numbers of the policy's messages in it, from 0; empty for padding.
    """

    tokens: TokenRow
    rollout: int
    turns: range

    def advantages(self, of_rollouts: Sequence[Sequence[float]]) -> Sequence[float]:
        """The advantages of its turns, at least one number.

        Args:
            of_rollouts: Advantages of the turns of each rollout.
        """
        turns = of_rollouts[self.rollout]
        return [turns[turn] for turn in self.turns] or [0.0]


def batch_rows(rollouts: Sequence[Rollout], count: int, padding: int) -> list[BatchRow]:
    """The rows of a batch: the first of each rollout, then the second of each, and so on.

    Args:
        rollouts: Rollouts of the batch, none with more than `count` rows.
        count: Number of rows for each rollout, at least 1.
        padding: Token that padding consists of.

    Returns:
        `count * len(rollouts)` rows.
    """
    rows = []
    for place in range(count):
        for number, rollout in enumerate(rollouts):
            if place < len(rollout.rows):
                begin = sum(row.message_count for row in rollout.rows[:place])
                tokens = rollout.rows[place]
                rows.append(BatchRow(tokens, number, range(begin, begin + tokens.message_count)))
            else:
                rows.append(BatchRow(TokenRow([padding], [padding], [0], [0.0]), number, range(0)))
    return rows


def rollout_fields(rows: Sequence[TokenRow], *, with_logprobs: bool) -> dict[str, Any]:
    """What TRL's `rollout_func` returns.

    Args:
        rows: Rows of the batch.
        with_logprobs: Whether TRL is given the log-probabilities of sampling.
    """
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "logprobs": [row.logprobs for row in rows] if with_logprobs else None,
        "env_mask": [row.assistant_mask for row in rows],
    }


def refuse_losses_by_sequence(config: GRPOConfig) -> None:
    """Refuses losses that divide by the number of sequences, which is no number of rollouts where these have several.

    Raises:
        ConfigError: The loss is none of `BY_TOKEN`.
    """
    if config.loss_type not in BY_TOKEN:
        raise ConfigError(
            f"trim_reasoning makes a sequence of each turn, and loss_type={config.loss_type} divides by the number of "
            f"sequences: take {', '.join(BY_TOKEN)}"
        )
