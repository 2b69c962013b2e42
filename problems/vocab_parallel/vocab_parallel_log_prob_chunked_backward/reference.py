import torch
import torch.distributed as dist


def filter_logits(logits: torch.Tensor, top_k: int | None, top_p: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sets the logits (n, V) that top-k and top-p sampling leave out to -inf, and gives the mask of the others.

    Ties at the k-th largest stay.
    """
    V = logits.shape[-1]
    k = min(top_k, V) if top_k is not None and top_k > 0 else None
    if top_p is None or top_p >= 1.0:
        if k is None:
            return logits, torch.ones_like(logits, dtype=torch.bool)
        threshold = logits.topk(k, dim=-1).values[:, -1:]
        keep = logits >= threshold
        return logits.masked_fill(~keep, -torch.inf), keep

    ascending, order = logits.sort(dim=-1)
    in_top_k = torch.ones_like(ascending, dtype=torch.bool)
    if k is not None:
        in_top_k = ascending >= ascending[:, V - k, None]
        ascending = ascending.masked_fill(~in_top_k, -torch.inf)
    running_sum = ascending.softmax(dim=-1).cumsum(dim=-1)
    keep = in_top_k & (running_sum > running_sum.new_full((), 1 - top_p))
    keep[:, -1] = True
    keep = torch.empty_like(keep).scatter_(-1, order, keep)
    return logits.masked_fill(~keep, -torch.inf), keep


def chunk_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    grad_output: torch.Tensor,
    group: dist.ProcessGroup | None,
    top_k: int | None,
    top_p: float | None,
) -> torch.Tensor:
    """Gradient (c, Vl) float32 of c tokens' log-probabilities by their sharded logits (c, Vl); a rank does c / W."""
    W, r = dist.get_world_size(group), dist.get_rank(group)
    c, Vl = logits.shape
    received = torch.empty_like(logits)
    dist.all_to_all_single(received, logits, group=group)
    whole = received.view(W, c // W, Vl).transpose(0, 1).reshape(c // W, W * Vl)

    mine = slice(r * c // W, (r + 1) * c // W)
    filtered, keep = filter_logits(whole, top_k, top_p)
    grad = filtered.float().softmax(dim=-1).neg_()
    grad.scatter_add_(1, target[mine, None], torch.ones_like(grad[:, :1]))
    grad *= grad_output[mine, None].float()
    grad *= keep

    send = grad.view(c // W, W, Vl).transpose(0, 1).contiguous()
    grad_local = torch.empty(c, Vl, dtype=torch.float32, device=logits.device)
    dist.all_to_all_single(grad_local, send.view(c, Vl), group=group)
    return grad_local


@torch.no_grad()
def solution(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    grad_output: torch.Tensor,
    tp_group: dist.ProcessGroup | None = None,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    chunk_size: int = 1,
) -> torch.Tensor:
    """Gradient of the targets' log-probabilities under the top-k/top-p filtered softmax by the logits, chunk by chunk.

    The vocabulary is sharded; of each chunk of B * chunk_size consecutive tokens, n = b * S + s, every rank receives
    the whole vocabulary of one part in W. Filtering: first all but the k largest logits are left out, then the tail of
    least probability, as long as its total mass is at most 1 - top_p. The set that is kept counts as constant.

    Args:
        vocab_parallel_logits: (B, S, Vl), vocabulary ids r*Vl .. (r+1)*Vl-1.
        target: (B, S) int64, a vocabulary id per token, equal on all ranks.
        grad_output: (B, S), gradient of the loss by each log-probability, equal on all ranks.
        tp_group: the ranks that share the vocabulary; None means all.
        top_k: how many logits to keep; None or <= 0 keeps all.
        top_p: nucleus mass; None or >= 1 keeps all.
        chunk_size: a chunk has B * max(1, chunk_size) tokens, the last one what is left.

    Returns:
        (B, S, Vl) float32, 0 for logits that were left out.

    Raises:
        ValueError: the number of tokens, or of those in a chunk, is not a multiple of W.
    """
    W = dist.get_world_size(tp_group)
    B, S, Vl = vocab_parallel_logits.shape
    T, chunk = B * S, B * max(1, chunk_size)
    if T % W or chunk % W:
        raise ValueError(f"{T} tokens in chunks of {chunk} cannot be shared evenly by {W} ranks")

    logits = vocab_parallel_logits.reshape(T, Vl).contiguous()
    parts = zip(logits.split(chunk), target.reshape(T).split(chunk), grad_output.reshape(T).split(chunk), strict=True)
    grads = [chunk_gradient(part, ids, grad, tp_group, top_k, top_p) for part, ids, grad in parts]
    return torch.cat(grads).view(B, S, Vl)
