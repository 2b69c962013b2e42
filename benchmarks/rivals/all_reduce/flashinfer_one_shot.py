"""AllReduce by FlashInfer's copy of TensorRT-LLM's kernel: each rank puts its tensor into every workspace."""

import flashinfer.comm as comm  # optional: the row says where it is missing
import torch
import torch.distributed as dist

_workspaces: dict[tuple[int, int], tuple[object, torch.Tensor]] = {}
ONE_SHOT = True


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of its own."""
    rank, world_size, (tokens, hidden) = dist.get_rank(), dist.get_world_size(), tensor.shape
    if (tokens, hidden) not in _workspaces:
        _workspaces[tokens, hidden] = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
            rank, world_size, tokens, hidden, False, group=dist.group.WORLD
        )
    out = torch.empty_like(tensor)
    comm.trtllm_allreduce_fusion(
        allreduce_in=tensor,
        world_size=world_size,
        world_rank=rank,
        token_num=tokens,
        hidden_dim=hidden,
        workspace_ptrs=_workspaces[tokens, hidden][1],
        launch_with_pdl=True,
        trigger_completion_at_end=True,
        fp32_acc=True,
        pattern_code=comm.AllReduceFusionPattern.kAllReduce,
        use_oneshot=ONE_SHOT,
        allreduce_out=out,
        residual_in=None,
        residual_out=None,
        norm_out=None,
        quant_out=None,
        scale_out=None,
        rms_gamma=None,
        rms_eps=None,
        scale_factor=None,
        layout_code=None,
    )
    return out
