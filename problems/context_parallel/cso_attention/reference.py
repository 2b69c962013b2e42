import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather_key_value(
    key_value: torch.Tensor, ranges: int, clip: int, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns key_value (n, Hk, 2*D) into this rank's heads of all keys and values, (ranges * clip, hk, D) each."""
    W = dist.get_world_size(group)
    heads = key_value.shape[1]
    if heads % W:
        if W % heads:
            raise ValueError(f"{heads} KV heads can neither be split over nor repeated for {W} ranks")
        key_value = key_value.repeat_interleave(W // heads, dim=1)
    send = torch.stack(key_value.chunk(W, dim=1))  # (W, n, hk, 2*D)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    by_range = received.unflatten(1, (ranges, -1)).transpose(0, 1).flatten(1, 2)  # (R, W*m, hk, 2*D)
    key, value = by_range.narrow(1, 0, clip).flatten(0, 1).chunk(2, dim=-1)
    return key, value


@torch.no_grad()
def solution(
    query: torch.Tensor,
    key_value: torch.Tensor,
    k_ranges: torch.Tensor,
    cp_shuffle_num: int,
    clip_token_nums: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Attention of R independent ranges of queries, heads split over the ranks, exchanges overlapped with attention.

    Row i*m + a of rank s (m = n / R) is slot s*m + a of range i. The first c slots of every range, range after range,
    are the R*c keys; later slots are padding, of which only the queries count.

    Args:
        query: (n, Hq, D).
        key_value: (n, Hk, 2*D), key and value; query head j uses head j // (Hq / Hk).
        k_ranges: (R, 2) int64, equal on all ranks; range i attends to keys k_ranges[i, 0] .. k_ranges[i, 1]-1.
        cp_shuffle_num: R, divides n.
        clip_token_nums: c; None and 0 mean W*m.
        group: the ranks that share the tokens; None means all.

    Returns:
        (n, Hq, D), tokens as in query.
    """
    W = dist.get_world_size(group)
    R = cp_shuffle_num
    n, Hq, D = query.shape
    if n % R:
        raise ValueError(f"{n} tokens are not a multiple of {R} ranges")
    if Hq % W:
        raise ValueError(f"{Hq} query heads are not a multiple of {W} ranks")
    m, hq = n // R, Hq // W
    key, value = gather_key_value(key_value, R, clip_token_nums or W * m, group)
    bounds = k_ranges.tolist()

    def start(rows: torch.Tensor) -> tuple[dist.Work, torch.Tensor, torch.Tensor]:
        """Sends rows d*m .. (d+1)*m-1 to rank d; what is sent must live until the exchange ends."""
        received = torch.empty_like(rows)
        return dist.all_to_all_single(received, rows, group=group, async_op=True), received, rows

    def attend(q: torch.Tensor, first: int, end: int) -> torch.Tensor:
        """Attention of q (W*m, hq, D) to a range of the keys."""
        q, k, v = (x.transpose(0, 1)[None] for x in (q, key[first:end], value[first:end]))
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0].transpose(0, 1)

    # (R, W*m, hq, D): rows d*m .. (d+1)*m-1 of a range are the heads for rank d
    queries = query.view(R, m, W, hq, D).transpose(1, 2).flatten(1, 2)
    attended: list[torch.Tensor] = []
    returned: list[torch.Tensor] = []  # per range (W*m, hq, D): rows s*m .. (s+1)*m-1 are the heads of rank s

    flight = start(queries[0])
    for i in range(R):
        work, arrived, _ = flight
        work.wait()
        if i >= 2:
            returned.append(arrived[..., D:])
        if i == 0 and R > 1:
            flight = start(queries[1])
        elif i + 1 < R:
            flight = start(torch.cat([queries[i + 1], attended[i - 1]], dim=-1))
        elif R > 1:
            flight = start(attended[R - 2].contiguous())
        attended.append(attend(arrived[..., :D], *bounds[i]))
    if R > 1:
        work, arrived, _ = flight
        work.wait()
        returned.append(arrived)
    work, arrived, _ = start(attended[R - 1].contiguous())
    work.wait()
    returned.append(arrived)
    return torch.stack(returned).view(R, W, m, hq, D).transpose(1, 2).reshape(n, Hq, D)
