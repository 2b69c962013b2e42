import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    local_tensor: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    output_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sends piece d of this rank's rows to rank d.

    W is the size of the group.

    Args:
        local_tensor: (T, H), rows in order of their destination; T may differ by rank.
        input_split_sizes: W numbers, consecutive rows for each rank; None means T / W each.
        output_split_sizes: W numbers, rows that arrive from each rank; None means T / W each.
        group: None means all ranks.

    Returns:
        (R, H), the pieces meant for this rank in order of their source; R is the sum of output_split_sizes.
    """
    local_tensor = local_tensor.contiguous()
    if dist.get_world_size(group) == 1:
        return local_tensor
    if output_split_sizes is None:
        out = torch.empty_like(local_tensor)
    else:
        out = local_tensor.new_empty(sum(output_split_sizes), local_tensor.shape[1])
    dist.all_to_all_single(out, local_tensor, output_split_sizes, input_split_sizes, group=group)
    return out
