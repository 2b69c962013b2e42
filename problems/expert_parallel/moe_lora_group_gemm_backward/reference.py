import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    grad_fc1_1_lora_A: torch.Tensor,
    grad_fc1_2_lora_A: torch.Tensor,
    grad_fc2_lora_B: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums the gradients of three LoRA weights, which all experts share, over the expert-parallel group, in place.

    Args:
        grad_fc1_1_lora_A: (r, F_in), of the gate layer.
        grad_fc1_2_lora_A: (r, F_in), of the up layer.
        grad_fc2_lora_B: (F_out, r), of the down layer.
        group: the expert-parallel group, None for all ranks.

    Returns:
        The three arguments, which now hold the sums.
    """
    for grad in (grad_fc1_1_lora_A, grad_fc1_2_lora_A, grad_fc2_lora_B):
        dist.all_reduce(grad, op=dist.ReduceOp.SUM, group=group)
    return grad_fc1_1_lora_A, grad_fc1_2_lora_A, grad_fc2_lora_B
