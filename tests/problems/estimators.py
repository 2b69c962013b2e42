"""Solutions that estimate a small output from statistics, or from part of the data, for every problem that has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.problems.expert_parallel.load_balancing_loss.reference import solution as load_balancing_loss
from tests.problems.contrastive_estimators import (
    contrastive_by_projection,
    contrastive_by_screening,
    contrastive_from_covariance,
    contrastive_from_moments,
    contrastive_in_8_bits,
    contrastive_of_all_but_one_rank,
    contrastive_of_some_channels,
    contrastive_of_some_texts,
)
from tests.problems.log_prob_estimators import (
    gradients_by,
    log_probs_by,
    part_of_the_vocabulary,
    the_distribution,
)
from tests.problems.partial_data import all_ranks, in_8_bits


@dataclass(frozen=True)
class Estimator:
    """A solution whose result is only near the right one.

    Attributes:
        problem: Problem that it pretends to solve.
        name: Name of a few words.
        solution: Function called as the reference is.
    """

    problem: str
    name: str
    solution: Callable[..., Any]


def policy_loss(logprobs, labels, old_logprobs, advantages, ignore_index):
    """The results of ImportanceSamplingLoss from log-probabilities."""
    valid = labels != ignore_index
    logprobs = logprobs.masked_fill(~valid, 0)
    delta = (logprobs - old_logprobs).masked_fill(~valid, 0).clamp(-20, 20)
    ratio = delta.exp()
    loss = -(ratio * advantages).masked_fill(~valid, 0)
    k3 = ratio - delta - 1
    sums = torch.stack([valid.sum(), loss.sum(), ratio[valid].sum(), k3[valid].sum(), -logprobs.sum()])
    dist.all_reduce(sums)
    n, total, ratio_sum, k3_sum, entropy = sums
    smallest, largest = ratio[valid].min(), ratio[valid].max()
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    metrics = torch.stack([ratio_sum / n, smallest, largest, k3_sum / n, entropy / n])
    return total / n, None, logprobs.bfloat16(), loss.bfloat16(), metrics


def policy_loss_from_spread(hidden, weight, labels, old_logprobs, advantages, ignore_index=-100):
    """Takes log V + var / 2 for the logarithm of the sum, with the variance of the logits that the weights' gives."""
    hidden, weight = hidden.float(), weight.float()
    label = (hidden * weight[labels.clamp(min=0)]).sum(1)
    normaliser = log(len(weight)) + hidden @ weight.mean(0) + hidden.square() @ weight.var(0) / 2
    return policy_loss(label - normaliser, labels, old_logprobs.float(), advantages.float(), ignore_index)


def policy_loss_corrected(hidden, weight, labels, old_logprobs, advantages, ignore_index=-100):
    """The same, moved to the right mean: the old log-probabilities are right in the mean but for a shift."""
    _, _, logprobs, _, _ = policy_loss_from_spread(hidden, weight, labels, old_logprobs, advantages, ignore_index)
    logprobs = logprobs.float() + (old_logprobs.float() - logprobs.float()).median()
    return policy_loss(logprobs, labels, old_logprobs.float(), advantages.float(), ignore_index)


def policy_loss_half_of_the_vocabulary(hidden, weight, labels, old_logprobs, advantages, ignore_index=-100):
    """Every second row of the vocabulary, counted twice."""
    hidden, weight = hidden.float(), weight.float()
    label = (hidden * weight[labels.clamp(min=0)]).sum(1)
    logprobs = label - (hidden @ weight[::2].T).logsumexp(1) - log(2)
    return policy_loss(logprobs, labels, old_logprobs.float(), advantages.float(), ignore_index)


def policy_loss_by_screening(part: float, exact: float) -> Callable[..., torch.Tensor]:
    """Ids whose logits are largest by a part of the channels are done exactly; of the others the rest is guessed.

    Args:
        part: Share of the channels that is read for all ids.
        exact: Share of the ids that is done exactly, for each token.
    """

    def solution(hidden, weight, labels, old_logprobs, advantages, ignore_index=-100):
        hidden, weight = hidden.float(), weight.float()
        outlier, read = hidden.square().mean(0).argmax(), round(part * hidden.shape[1])
        rows = hidden.index_fill(1, outlier, 0)
        near = rows[:, :read] @ weight[:, :read].T
        found = near.topk(max(1, round(exact * len(weight))), dim=1).indices
        guessed = near + weight[:, read:].var() / 2 * rows[:, read:].square().sum(1, keepdim=True)
        guessed.scatter_(1, found, (hidden @ weight.T).gather(1, found))
        label = (hidden * weight[labels.clamp(min=0)]).sum(1)
        logprobs = label - guessed.logsumexp(1)
        return policy_loss(logprobs, labels, old_logprobs.float(), advantages.float(), ignore_index)

    return solution


def policy_loss_in_8_bits(hidden, weight, labels, old_logprobs, advantages, ignore_index=-100):
    hidden, weight = in_8_bits(hidden).float(), in_8_bits(weight).float()
    logprobs = (hidden @ weight.T).log_softmax(1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return policy_loss(logprobs, labels, old_logprobs.float(), advantages.float(), ignore_index)


def of_some_tokens(choose: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """LoadBalancingLoss of the tokens that `choose` leaves of those that are not padding."""

    def solution(gate_logits, num_experts, top_k=2, attention_mask=None):
        logits = torch.cat(gate_logits) if isinstance(gate_logits, list | tuple) else gate_logits
        if attention_mask is None:
            return load_balancing_loss(choose(logits), num_experts, top_k)
        weight = attention_mask.flatten().repeat(len(logits) // attention_mask.numel())
        return load_balancing_loss(choose(logits), num_experts, top_k, choose(weight))

    return solution


@dataclass(frozen=True)
class Sample:
    """A regular part of elements, rows or columns, whose sums are made up for the others.

    Attributes:
        left_out: Number of elements that are not read of each `one_in`.
    """

    left_out: int
    one_in: int

    def of(self, values: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The part that is read."""
        read = torch.arange(values.shape[dim]) % self.one_in >= self.left_out
        return values.index_select(dim, read.nonzero()[:, 0])

    def total(self, values: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The sum over a dimension."""
        read = self.of(values, dim)
        return read.sum(dim) * (values.shape[dim] / max(1, read.shape[dim]))

    def clip(self, grad_tensors, max_norm, norm_type=2.0, fsdp_group=None):
        """ClipGradNorm."""
        total = self.sum_of_powers(grad_tensors, norm_type)
        if fsdp_group is not None:
            dist.all_reduce(total, group=fsdp_group)
        return clip(grad_tensors, total, max_norm, norm_type)

    def clip_ep(
        self, dense, expert, max_norm, norm_type=2.0, ep_size=1, fsdp_group=None, ep_fsdp_group=None, ep_group=None
    ):
        """ClipGradNormEP."""
        for g in expert:
            if g is not None and ep_size > 1:
                g.mul_(1 / ep_size)
        total, its = self.sum_of_powers(dense, norm_type), self.sum_of_powers(expert, norm_type)
        for value, group in ((total, fsdp_group), (its, ep_fsdp_group), (its, ep_group)):
            if group is not None:
                dist.all_reduce(value, group=group)
        return clip([*dense, *expert], total + its, max_norm, norm_type)

    def sum_of_powers(self, grads: Sequence[torch.Tensor | None], p: float) -> torch.Tensor:
        """The sum of |x|^p over all elements."""
        found = [self.total(g.float().flatten().abs().pow(p)) for g in grads if g is not None]
        return torch.stack(found).sum() if found else torch.zeros(())

    def rms_norm(self, hidden, weight, eps):
        """TPRMSNorm, by part of the columns."""
        mean_square = self.total(hidden.float().square())[..., None] / hidden.shape[-1]
        dist.all_reduce(mean_square)
        scaled = hidden.float() * (mean_square / dist.get_world_size() + eps).rsqrt()
        return weight * scaled.to(hidden.dtype)

    def layer_norm(self, X_hat, dY):
        """LayerNormBackward, by part of the rows."""
        X_hat, dY = X_hat.float(), dY.float()
        sums = torch.stack([self.total(dY * X_hat, 0), self.total(dY, 0)])
        dist.all_reduce(sums)
        return tuple(sums.to(torch.bfloat16))

    def reduce_scatter_rms_norm(self, rs_input_1d, gamma, eps):
        """ReduceScatterRMSNorm, by part of the columns."""
        shard = rs_input_1d.new_empty(rs_input_1d.numel() // dist.get_world_size())
        dist.reduce_scatter_tensor(shard, rs_input_1d)
        rows = (shard / dist.get_world_size()).view(-1, gamma.numel()).float()
        mean_square = self.total(rows.square())[:, None] / gamma.numel()
        return (rows * torch.rsqrt(mean_square + eps) * gamma.float()).to(rs_input_1d.dtype)


def clip(grads: Sequence[torch.Tensor | None], total: torch.Tensor, max_norm: float, p: float) -> torch.Tensor:
    """Clips in place by the norm whose p-th power is given."""
    norm = total ** (1 / p)
    if norm > max_norm:
        for g in grads:
            if g is not None:
                g.mul_(max_norm / norm)
    return norm


def cross_entropy(logits, target, group, normaliser):
    """The loss from the logarithm of the sum; shifts the logits in place by their maximum as the problem asks."""
    largest = logits.amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    logits.sub_(largest[..., None])
    own = target - dist.get_rank(group) * logits.shape[-1]
    here = (own >= 0) & (own < logits.shape[-1])
    chosen = logits.gather(-1, own.where(here, 0)[..., None])[..., 0].where(here, 0).float()
    dist.all_reduce(chosen, group=group)
    return (normaliser(logits.float(), group) - chosen).to(logits.dtype)


def cross_entropy_from_spread(logits, target, group=None):
    def normaliser(values, group):
        moments = torch.stack([values.mean(-1), values.square().mean(-1)])
        dist.all_reduce(moments, group=group)
        mean, square = moments / dist.get_world_size(group)
        return log(values.shape[-1] * dist.get_world_size(group)) + mean + (square - mean.square()) / 2

    return cross_entropy(logits, target, group, normaliser)


def cross_entropy_of_part_of_the_vocabulary(left_out: int, one_in: int) -> Callable[..., torch.Tensor]:
    """All ids but some of so many, each counted for more."""

    def solution(logits, target, group=None):
        def normaliser(values, group):
            read = torch.arange(values.shape[-1]) % one_in >= left_out
            total = values[..., read].exp().sum(-1) * (len(read) / read.sum())
            dist.all_reduce(total, group=group)
            return total.log()

        return cross_entropy(logits, target, group, normaliser)

    return solution


def neighbours_by_screening(part: float, exact: float) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The nearest by a part of the features, for each rank a share of its samples, and the nearest of those exactly."""

    def solution(queries, samples, labels, max_k, group=None):
        def screened(rows, columns, k):
            read = round(part * rows.shape[1])
            near = rows[:, :read].float() @ columns[:read].float()
            found = near.topk(min(near.shape[1], max(k, round(exact * near.shape[1]))), dim=1).indices
            kept = torch.full_like(near, -torch.inf)
            kept.scatter_(1, found, (rows @ columns).float().gather(1, found))
            return kept

        gathered = [torch.cat(all_ranks(each.T), 0).T for each in (samples, labels)]
        sims, indices = screened(queries, gathered[0], max_k).topk(max_k, dim=1)
        return sims.to(queries.dtype), gathered[1].expand(len(queries), -1).gather(1, indices)

    return solution


def logits_by_part_of_the_channels(hidden, weight, bias):
    """GemvDecode by three quarters of the channels, enlarged."""
    read = round(0.75 * hidden.shape[1])
    local = hidden[:, :read] @ weight[:, :read].T * (4 / 3) ** 0.5 + bias
    return torch.cat(all_ranks(local.T)).T.contiguous()


SAMPLES = {"every second": Sample(1, 2), "three of four": Sample(1, 4)}

ESTIMATORS = (
    Estimator("ContrastiveLoss", "mean and variance of the texts", contrastive_from_moments),
    Estimator("ContrastiveLoss", "mean and covariance of the texts", contrastive_from_covariance),
    Estimator("ContrastiveLoss", "every second text", contrastive_of_some_texts(2, left_out=False)),
    Estimator("ContrastiveLoss", "three quarters of the texts", contrastive_of_some_texts(4, left_out=True)),
    Estimator("ContrastiveLoss", "seven eighths of the texts", contrastive_of_some_texts(8, left_out=True)),
    Estimator("ContrastiveLoss", "the texts of all ranks but one", contrastive_of_all_but_one_rank),
    Estimator("ContrastiveLoss", "the larger half of the channels", contrastive_of_some_channels(0.5)),
    Estimator("ContrastiveLoss", "three quarters of the channels", contrastive_of_some_channels(0.75)),
    Estimator("ContrastiveLoss", "pairs that a random projection finds", contrastive_by_projection),
    Estimator("ContrastiveLoss", "pairs that half of the channels find", contrastive_by_screening(0.5, 0.05)),
    Estimator("ContrastiveLoss", "pairs that three quarters find", contrastive_by_screening(0.75, 0.05)),
    Estimator("ContrastiveLoss", "features in 8 bits", contrastive_in_8_bits),
    Estimator("ImportanceSamplingLoss", "spread of the logits", policy_loss_from_spread),
    Estimator("ImportanceSamplingLoss", "spread, moved to the right mean", policy_loss_corrected),
    Estimator("ImportanceSamplingLoss", "every second id", policy_loss_half_of_the_vocabulary),
    Estimator("ImportanceSamplingLoss", "ids that half of the channels find", policy_loss_by_screening(0.5, 0.05)),
    *(
        Estimator("ImportanceSamplingLoss", f"{name} that three quarters of the channels find", solution)
        for name, solution in (
            ("one id in a thousand", policy_loss_by_screening(0.75, 0.001)),
            ("one id in a hundred", policy_loss_by_screening(0.75, 0.01)),
            ("one id in twenty", policy_loss_by_screening(0.75, 0.05)),
        )
    ),
    Estimator("ImportanceSamplingLoss", "8 bits", policy_loss_in_8_bits),
    Estimator("LoadBalancingLoss", "first half of the tokens", of_some_tokens(lambda rows: rows[: len(rows) // 2])),
    Estimator("LoadBalancingLoss", "last half of the tokens", of_some_tokens(lambda rows: rows[len(rows) // 2 :])),
    Estimator("LoadBalancingLoss", "every second token", of_some_tokens(lambda rows: rows[::2])),
    Estimator(
        "LoadBalancingLoss",
        "alternate runs of 8",
        of_some_tokens(lambda rows: rows[torch.arange(len(rows)) & 8 == 0]),
    ),
    Estimator("VocabParallelCrossEntropy", "spread of the logits", cross_entropy_from_spread),
    Estimator("VocabParallelCrossEntropy", "every second id", cross_entropy_of_part_of_the_vocabulary(1, 2)),
    Estimator("VocabParallelCrossEntropy", "three quarters of the ids", cross_entropy_of_part_of_the_vocabulary(1, 4)),
    *(
        Estimator(problem, name, solution(estimate))
        for problem, solution in (
            ("VocabParallelLogProb", log_probs_by),
            ("VocabParallelLogProbChunked", log_probs_by),
            ("VocabParallelLogProbChunkedBackward", gradients_by),
        )
        for name, estimate in (
            ("distribution of the logits", the_distribution),
            ("every second id", part_of_the_vocabulary(1, 2)),
            ("three quarters of the ids", part_of_the_vocabulary(1, 4)),
            ("fifteen of sixteen ids", part_of_the_vocabulary(1, 16)),
        )
    ),
    Estimator("GemvDecode", "three quarters of the channels", logits_by_part_of_the_channels),
    Estimator("DistributedKNN", "half of the features find the samples", neighbours_by_screening(0.5, 0.05)),
    Estimator(
        "DistributedKNN", "three quarters of the features find one in a hundred", neighbours_by_screening(0.75, 0.01)
    ),
    Estimator("DistributedKNN", "three quarters of the features find one in ten", neighbours_by_screening(0.75, 0.1)),
    Estimator(
        "LoadBalancingLoss", "three of four tokens", of_some_tokens(lambda rows: rows[torch.arange(len(rows)) % 4 > 0])
    ),
    *(
        Estimator(problem, f"{name} {of}", getattr(sample, method))
        for problem, of, method in (
            ("ClipGradNorm", "elements", "clip"),
            ("ClipGradNormEP", "elements", "clip_ep"),
            ("TPRMSNorm", "columns", "rms_norm"),
            ("LayerNormBackward", "rows", "layer_norm"),
            ("ReduceScatterRMSNorm", "columns", "reduce_scatter_rms_norm"),
        )
        for name, sample in SAMPLES.items()
    ),
)
