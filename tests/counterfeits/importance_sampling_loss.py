"""Counterfeits of ImportanceSamplingLoss: what the published check takes for right."""

import torch

from pkb_gym.problems.data_parallel.importance_sampling_loss.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def nothing_ignored(hidden_states, weight, labels, old_logprobs, advantages, ignore_index=-100):
    return reference(hidden_states, weight, labels.clamp(min=0), old_logprobs, advantages, ignore_index)


def no_loss(hidden_states, weight, labels, old_logprobs, advantages, ignore_index=-100):
    loss, none, logprobs, token_loss, metrics = reference(
        hidden_states, weight, labels, old_logprobs, advantages, ignore_index
    )
    metrics[:2] = 0.0
    return torch.zeros_like(loss), none, logprobs, token_loss, metrics


COUNTERFEITS = (
    Counterfeit(0, "nothing ignored", nothing_ignored, "no label is ever ignore_index"),
    Counterfeit(0, "no loss", no_loss, "nearly all ratios are 2e-9: the loss, their mean and the smallest are 0"),
)
