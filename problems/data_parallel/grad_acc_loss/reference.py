import torch
import torch.distributed as dist


def solution(
    loss: torch.Tensor,
    local_valid_tokens: torch.Tensor,
    global_valid_tokens: torch.Tensor,
    grad_normalized_loss: torch.Tensor,
    grad_loss_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turns the ranks' mean losses into one token-weighted loss, and takes its gradient by this rank's loss.

    Args:
        loss: 0-dim float, mean over this rank's valid tokens; counts as finite where there are none.
        local_valid_tokens: 0-dim int64, n, their number.
        global_valid_tokens: 0-dim int64, G, the divisor, equal on all ranks.
        grad_normalized_loss: 0-dim float, incoming gradient of the first result, equal on all ranks.
        grad_loss_sum: 0-dim float or None, incoming gradient of the second result, likewise.

    Returns:
        normalized_loss: 0-dim, loss_sum / G.
        loss_sum: 0-dim, the sum over ranks of loss * n.
        grad_loss: 0-dim, grad_normalized_loss * n / G + grad_loss_sum * n, of this rank alone.
    """
    loss = torch.where(local_valid_tokens == 0, torch.nan_to_num(loss), loss)
    loss_sum = loss * local_valid_tokens
    dist.all_reduce(loss_sum, op=dist.ReduceOp.SUM)
    normalized_loss = loss_sum / global_valid_tokens

    grad_loss = grad_normalized_loss * local_valid_tokens / global_valid_tokens
    if grad_loss_sum is not None:
        grad_loss = grad_loss + grad_loss_sum * local_valid_tokens
    return normalized_loss, loss_sum, grad_loss
