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


def chunk_log_probs(
    logits: torch.Tensor,
    target: torch.Tensor,
    group: dist.ProcessGroup | None,
    top_k: int | None,
    top_p: float | None,
) -> torch.Tensor:
    """Log-probabilities (c,) float32 of c tokens from their sharded logits (c, Vl); each rank filters c / W of them."""
    W, r = dist.get_world_size(group), dist.get_rank(group)
    c, Vl = logits.shape
    received = torch.empty_like(logits)
    dist.all_to_all_single(received, logits, group=group)
    whole = received.view(W, c // W, Vl).transpose(0, 1).reshape(c // W, W * Vl)

    mine = target[r * c // W : (r + 1) * c // W, None]
    log_softmax = filter_logits(whole, top_k, top_p).float().log_softmax(dim=-1)
    logprobs = torch.empty(c, dtype=torch.float32, device=logits.device)
    dist.all_gather(list(logprobs.chunk(W)), log_softmax.gather(1, mine).squeeze(1), group=group)
    return logprobs


@torch.no_grad()
def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    """Log-probability of each target token under the top-k/top-p filtered softmax, chunk by chunk.

    The vocabulary is sharded; of each chunk of B * chunk_size consecutive tokens, n = b * S + s, every rank receives
    the whole vocabulary of one part in W. Filtering: first all but the k largest logits are left out, then the tail of
    least probability, as long as its total mass is at most 1 - top_p.

    Args:
        vocab_parallel_logits: (B, S, Vl), vocabulary ids r*Vl .. (r+1)*Vl-1.
        target: (B, S) int64, a vocabulary id per token, equal on all ranks.
        tp_group: the ranks that share the vocabulary; None means all.
        top_k: how many logits to keep; None or <= 0 keeps all.
        top_p: nucleus mass; None or >= 1 keeps all.
        chunk_size: a chunk has B * max(1, chunk_size) tokens, the last one what is left.

    Returns:
        (B, S) float32, equal on all ranks; -inf where the target was left out.

    Raises:
        ValueError: the number of tokens, or of those in a chunk, is not a multiple of W.
    """
    W = dist.get_world_size(tp_group)
    B, S, Vl = vocab_parallel_logits.shape
    T, chunk = B * S, B * max(1, chunk_size)
    if T % W or chunk % W:
        raise ValueError(f"{T} tokens in chunks of {chunk} cannot be shared evenly by {W} ranks")

    logits = vocab_parallel_logits.reshape(T, Vl).contiguous()
    parts = zip(logits.split(chunk), target.reshape(T).split(chunk), strict=True)
    return torch.cat([chunk_log_probs(part, ids, tp_group, top_k, top_p) for part, ids in parts]).view(B, S)
