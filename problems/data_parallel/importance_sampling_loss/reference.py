import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Importance-sampling policy loss of this rank's tokens, averaged over the tokens of all ranks.

    Each operation rounds to the inputs' dtype; n, means and metrics are float32.

    Args:
        hidden_states: (T, H), this rank's tokens.
        weight: (V, H), output matrix; may differ by rank.
        labels: (T,) int64 in [0, V), or ignore_index.
        old_logprobs: (T,), log-probabilities under the policy that sampled the labels.
        advantages: (T,).
        ignore_index: label of tokens that do not count.

    Returns:
        loss: 0-dim float32, -mean(ratio * advantage) over all ranks; its gradient is that of this rank's tokens.
        None.
        per_token_logprobs: (T,), 0 for ignored tokens.
        per_token_loss: (T,), -ratio * advantage, 0 for ignored tokens.
        metrics: (5,) float32, over all ranks: mean, smallest and largest ratio, mean of ratio - delta - 1, mean of
            -per_token_logprobs.
    """
    valid = labels != ignore_index
    logits = hidden_states @ weight.T
    ce = F.cross_entropy(
        logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=ignore_index, reduction="none"
    ).view(labels.shape)
    logprobs = -ce

    # The ratio counts as a constant: the gradient flows through ce alone.
    delta = (logprobs.detach() - old_logprobs).masked_fill(~valid, 0).clamp(-20, 20)
    ratio = delta.exp()
    per_token_loss = -(ratio * advantages).masked_fill(~valid, 0)

    n = all_reduce(valid.sum().float(), dist.ReduceOp.SUM)
    d = n.clamp(min=1)
    policy_loss = all_reduce(per_token_loss.sum(), dist.ReduceOp.SUM) / d
    surrogate = ((ratio * advantages).masked_fill(~valid, 0) * ce).sum() / d
    loss = policy_loss + surrogate - surrogate.detach()

    smallest = ratio.masked_fill(~valid, torch.inf).min()
    largest = ratio.masked_fill(~valid, -torch.inf).max()
    ratio_mean = all_reduce(ratio.masked_fill(~valid, 0).sum(), dist.ReduceOp.SUM) / d
    ratio_min = all_reduce(smallest, dist.ReduceOp.MIN)
    ratio_max = all_reduce(largest, dist.ReduceOp.MAX)
    k3_mean = all_reduce((ratio - delta - 1).masked_fill(~valid, 0).sum(), dist.ReduceOp.SUM) / d
    entropy_mean = all_reduce(ce.detach().sum(), dist.ReduceOp.SUM) / d
    metrics = torch.stack([ratio_mean, ratio_min.float(), ratio_max.float(), k3_mean, entropy_mean])
    return loss, None, logprobs, per_token_loss, metrics


def all_reduce(value: torch.Tensor, op: dist.ReduceOp.RedOpType) -> torch.Tensor:
    """The 0-dim value reduced over all ranks, in place."""
    dist.all_reduce(value, op=op)
    return value
