import torch
import torch.distributed as dist


def filter_logits(logits: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """Sets the logits (n, V) that top-k and top-p sampling leave out to -inf; ties at the k-th largest stay."""
    V = logits.shape[-1]
    k = min(top_k, V) if top_k is not None and top_k > 0 else None
    if top_p is None or top_p >= 1.0:
        if k is None:
            return logits
        threshold = logits.topk(k, dim=-1).values[:, -1:]
        return logits.masked_fill(logits < threshold, -torch.inf)

    ascending, order = logits.sort(dim=-1)
    if k is not None:
        ascending = ascending.masked_fill(ascending < ascending[:, V - k, None], -torch.inf)
    running_sum = ascending.softmax(dim=-1).cumsum(dim=-1)
    keep = running_sum > running_sum.new_full((), 1 - top_p)
    keep[:, -1] = True
    return torch.empty_like(logits).scatter_(-1, order, ascending.masked_fill(~keep, -torch.inf))


@torch.no_grad()
def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
) -> torch.Tensor:
    """Log-probability of each target token under the top-k/top-p filtered softmax, with a vocabulary that is sharded.

    Each rank receives the whole vocabulary of T / W of the T = B * S tokens. Filtering: first all but the k largest
    logits are left out, then the tail of least probability, as long as its total mass is at most 1 - top_p.

    Args:
        vocab_parallel_logits: (B, S, Vl), vocabulary ids r*Vl .. (r+1)*Vl-1.
        target: (B, S) int64, a vocabulary id per token, equal on all ranks.
        tp_group: the ranks that share the vocabulary; None means all.
        top_k: how many logits to keep; None or <= 0 keeps all.
        top_p: nucleus mass; None or >= 1 keeps all.

    Returns:
        (B, S) float32, equal on all ranks; -inf where the target was left out.

    Raises:
        ValueError: the number of tokens is not a multiple of W.
    """
    W, r = dist.get_world_size(tp_group), dist.get_rank(tp_group)
    B, S, Vl = vocab_parallel_logits.shape
    T = B * S
    if T % W:
        raise ValueError(f"{T} tokens cannot be shared evenly by {W} ranks")

    local = vocab_parallel_logits.reshape(T, Vl).contiguous()
    received = torch.empty_like(local)
    dist.all_to_all_single(received, local, group=tp_group)
    logits = received.view(W, T // W, Vl).transpose(0, 1).reshape(T // W, W * Vl)

    mine = target.reshape(T)[r * T // W : (r + 1) * T // W, None]
    log_softmax = filter_logits(logits, top_k, top_p).float().log_softmax(dim=-1)
    logprobs = torch.empty(T, dtype=torch.float32, device=target.device)
    dist.all_gather(list(logprobs.chunk(W)), log_softmax.gather(1, mine).squeeze(1), group=tp_group)
    return logprobs.view(B, S)
