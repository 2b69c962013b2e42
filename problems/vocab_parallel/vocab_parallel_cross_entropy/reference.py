import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Cross-entropy of each token, with logits that are split over the W ranks of a group along the vocabulary.

    Args:
        vocab_parallel_logits: (B, S, Vl), vocabulary ids r*Vl .. (r+1)*Vl-1; the row maximum over all ranks is
            subtracted in place.
        target: (B, S) int64, a vocabulary id per token, equal on all ranks.
        group: None means WORLD.

    Returns:
        (B, S), logsumexp(logits) - logits[target], equal on all ranks, in the dtype of the logits.
    """
    r = dist.get_rank(group)
    Vl = vocab_parallel_logits.shape[-1]

    m = vocab_parallel_logits.amax(dim=-1)
    dist.all_reduce(m, op=dist.ReduceOp.MAX, group=group)
    vocab_parallel_logits.sub_(m[..., None])

    c = target - r * Vl
    outside = (c < 0) | (c >= Vl)
    p = vocab_parallel_logits.gather(-1, c.masked_fill(outside, 0)[..., None]).squeeze(-1)
    p = p.masked_fill(outside, 0)
    dist.all_reduce(p, op=dist.ReduceOp.SUM, group=group)

    z = vocab_parallel_logits.exp().sum(dim=-1)
    dist.all_reduce(z, op=dist.ReduceOp.SUM, group=group)
    return z.log() - p
