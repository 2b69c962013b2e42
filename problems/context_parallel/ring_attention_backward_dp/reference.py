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
    B, S, h, d = q.shape
    scale = d**-0.5 if softmax_scale is None else softmax_scale

    dout32, q32, out32 = heads_first(torch.stack([dout, q, out]))
    row = (dout32 * out32).sum(dim=-1, keepdim=True)
    lse = softmax_lse.reshape(B * h, S, 1)

    kv = torch.stack([k, v])
    dq, dkv = torch.empty_like(q32), torch.empty((2, *q32.shape), device=q.device)
    grad_hop: list[dist.Work] = []
    for step in range(C):  # holds keys and values of cp rank (c - step) mod C
        if step < C - 1:
            next_kv, kv_hop = pass_on(kv, cp_group)
        visible = not causal or step <= c
        if visible:
            k32, v32 = heads_first(kv)
            p = torch.baddbmm(lse, q32, k32.mT, beta=-1, alpha=scale).exp_()
            if causal and step == 0:
                p.tril_()
            ds = torch.baddbmm(row, dout32, v32.mT, beta=-1).mul_(p)
            dq.baddbmm_(ds, k32, beta=min(step, 1), alpha=scale)  # beta 0 ignores what was there
        for work in grad_hop:
            work.wait()
        if visible:
            dkv[0].baddbmm_(ds.mT, q32, beta=min(step, 1), alpha=scale)
            dkv[1].baddbmm_(p.mT, dout32, beta=min(step, 1))
        if step < C - 1:
            for work in kv_hop:
                work.wait()
            kv = next_kv
        if C > 1:
            dkv, grad_hop = pass_on(dkv, cp_group)
    for work in grad_hop:  # after C hops each gradient is at its owner
        work.wait()

    grads = q.new_empty(3, B, S, h, d)
    grads[0].copy_(dq.view(B, h, S, d).transpose(1, 2))
    grads[1:].copy_(dkv.view(2, B, h, S, d).transpose(2, 3))
    if dp_group is not None and dist.get_world_size(dp_group) > 1:
        dist.all_reduce(grads, op=dist.ReduceOp.SUM, group=dp_group)
        grads.div_(dist.get_world_size(dp_group))
    dq, dk, dv = grads
    return dq, dk, dv


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """(n, B, S, h, d) in any dtype as (n, B*h, S, d) in float32."""
    return x.transpose(2, 3).to(torch.float32, memory_format=torch.contiguous_format).flatten(1, 2)


def pass_on(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, list[dist.Work]]:
    """Starts sending to the next rank of the ring; returns what will have come from the previous one, and the work."""
    C, c = dist.get_world_size(group), dist.get_rank(group)
    incoming = torch.empty_like(tensor)
    send = dist.P2POp(dist.isend, tensor, group=group, group_peer=(c + 1) % C)
    receive = dist.P2POp(dist.irecv, incoming, group=group, group_peer=(c - 1) % C)
    return incoming, dist.batch_isend_irecv([send, receive])
