import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    dp_group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Backward pass of attention over a sequence that is split over cp_group, averaged over the replicas of dp_group.

    Keys and values travel around the ring of C ranks, and one step behind them their gradients.

    Args:
        dout: (B, S, h, d), gradient of the output at positions c*S .. (c+1)*S-1 on cp rank c.
        q: (B, S, h, d), their queries.
        k: (B, S, h, d), their keys.
        v: (B, S, h, d), their values.
        out: (B, S, h, d), the output of the forward pass.
        softmax_lse: (B, h, S) float32, logsumexp of each query's scores; used as given.
        softmax_scale: None means d^(-1/2).
        causal: mask future positions.
        cp_group: None means WORLD.
        dp_group: None means no averaging.

    Returns:
        dq, dk, dv: (B, S, h, d) each, for this rank's positions, in the dtype of q.
    """
    C, c = dist.get_world_size(cp_group), dist.get_rank(cp_group)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale

    passed_grads: list[torch.Tensor] = []
    grad_hop: list[dist.Work] = []
    for step in range(C):  # holds keys and values of cp rank (c - step) mod C
        visible = not causal or step <= c
        if step < C - 1:
            passed_kv, kv_hop = pass_on([k, v], cp_group)
        if visible:
            block = block_backward(dout, q, k, v, out, softmax_lse, scale, triangular=causal and step == 0)
        if step == 0:
            dq, dk, dv = block
        else:
            for work in grad_hop:
                work.wait()
            dk, dv = passed_grads
            if visible:
                dq, dk, dv = dq + block[0], dk + block[1], dv + block[2]
        if step < C - 1:
            for work in kv_hop:
                work.wait()
            k, v = passed_kv
        if C > 1:
            passed_grads, grad_hop = pass_on([dk, dv], cp_group)
    if C > 1:  # after C hops each gradient is at its owner
        for work in grad_hop:
            work.wait()
        dk, dv = passed_grads

    grads = dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)
    if dp_group is not None and dist.get_world_size(dp_group) > 1:
        for grad in grads:
            dist.all_reduce(grad, op=dist.ReduceOp.SUM, group=dp_group)
            grad.div_(dist.get_world_size(dp_group))
    return grads


def pass_on(tensors: list[torch.Tensor], group: dist.ProcessGroup | None) -> tuple[list[torch.Tensor], list[dist.Work]]:
    """Starts sending to the next rank of the ring; returns what will have come from the previous one, and the work."""
    C, c = dist.get_world_size(group), dist.get_rank(group)
    incoming = [torch.empty_like(tensor) for tensor in tensors]
    sends = [dist.P2POp(dist.isend, tensor, group=group, group_peer=(c + 1) % C) for tensor in tensors]
    receives = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=(c - 1) % C) for tensor in incoming]
    return incoming, dist.batch_isend_irecv(sends + receives)


def block_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    triangular: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This rank's queries against one block of keys: float32 dq, dk, dv of shape (B, S, h, d)."""
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    row = torch.einsum("bihd,bihd->bhi", dout, out)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if triangular:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(diagonal=1)
        scores = scores.masked_fill(future, float("-inf"))
    p = torch.exp(scores - lse[..., None])
    ds = p * (torch.einsum("bihd,bjhd->bhij", dout, v) - row[..., None])
    dq = scale * torch.einsum("bhij,bjhd->bihd", ds, k)
    dk = scale * torch.einsum("bhij,bihd->bjhd", ds, q)
    dv = torch.einsum("bhij,bihd->bjhd", p, dout)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()
