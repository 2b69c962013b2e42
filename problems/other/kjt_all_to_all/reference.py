import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    lengths: torch.Tensor,
    values: torch.Tensor,
    key_splits: list[int],
    batch_size: int,
    pg: dist.ProcessGroup | None = None,
    weights: torch.Tensor | None = None,
    stride_per_key: list[int] | None = None,
    stagger: int = 1,
) -> dict[str, torch.Tensor]:
    """Redistributes ragged id lists ("bags") from batch-sharded to feature-sharded.

    Args:
        lengths: (sum of strides,) bag lengths, feature-major.
        values: (sum of lengths,) ids of the bags, in the same order.
        key_splits: number of features owned by each of the n ranks, F in all; 0 allowed.
        batch_size: samples on this rank (B_r), for every feature unless stride_per_key is given.
        pg: None means WORLD.
        weights: (sum of lengths,) one weight per id; None on all ranks or on none.
        stride_per_key: F numbers, this rank's samples of each feature; None on all ranks or on none.
        stagger: number of node blocks in the order of source ranks; divides n.

    Returns:
        "lengths", "values" and, if weights were given, "weights" of the k_r features that this rank owns: features
        outermost, then source ranks in staggered order, then samples. Also "stride" (0-dim, sum of B_q) and
        "stride_per_rank" (n,) in plain rank order; or, with stride_per_key, "stride_per_key_per_rank" (k_r, n) with
        the columns in staggered order.
    """
    n, rank, device = dist.get_world_size(pg), dist.get_rank(pg), lengths.device
    k_r = key_splits[rank]
    variable = stride_per_key is not None
    strides = [batch_size] * sum(key_splits) if stride_per_key is None else stride_per_key

    # What each destination will receive: samples and ids over its features.
    ids = [int(bags.sum()) for bags in lengths.split(strides)]
    first = [sum(key_splits[:d]) for d in range(n)]
    bags_to = [sum(strides[o : o + k]) for o, k in zip(first, key_splits, strict=True)]
    ids_to = [sum(ids[o : o + k]) for o, k in zip(first, key_splits, strict=True)]
    columns = [bags_to, ids_to]
    if variable:
        columns.append(key_splits)
    if weights is not None:
        columns.append(ids_to)
    if not variable:
        columns.append([batch_size] * n)
    meta_out = torch.tensor(columns, dtype=torch.int64, device=device).T.contiguous()
    meta_in = torch.empty_like(meta_out)
    dist.all_to_all_single(meta_in, meta_out, group=pg)
    received = meta_in.T.tolist()
    bags_from, ids_from = received[0], received[1]

    def exchange(tensor: torch.Tensor, splits_out: list[int], splits_in: list[int]) -> tuple[torch.Tensor, dist.Work]:
        incoming = tensor.new_empty(sum(splits_in))
        return incoming, dist.all_to_all_single(incoming, tensor, splits_in, splits_out, group=pg, async_op=True)

    exchanges = {
        "lengths": exchange(lengths, bags_to, bags_from),
        "values": exchange(values, ids_to, ids_from),
    }
    if variable:
        own_strides = torch.tensor(strides, dtype=torch.int64, device=device)
        exchanges["strides"] = exchange(own_strides, key_splits, [k_r] * n)
    if weights is not None:
        exchanges["weights"] = exchange(weights, ids_to, ids_from)
    for _, work in exchanges.values():
        work.wait()
    arrived = {name: tensor for name, (tensor, _) in exchanges.items()}

    # Arrival order is source rank, feature, sample; regroup the segments (q, f) by feature, then staggered rank.
    pi = [x + n // stagger * y for x in range(n // stagger) for y in range(stagger)]
    out: dict[str, torch.Tensor] = {}
    if variable:
        strides_in = arrived.pop("strides").view(n, k_r)
        segment_bags = strides_in.flatten().tolist()
        out["stride_per_key_per_rank"] = strides_in[pi].T
    else:
        batches = received[-1]
        segment_bags = [B_q for B_q in batches for _ in range(k_r)]
        out["stride"] = torch.tensor(sum(batches), dtype=torch.int64, device=device)
        out["stride_per_rank"] = torch.tensor(batches, dtype=torch.int64, device=device)
    if k_r == 0:
        return out | arrived
    segment_ids = [int(bags.sum()) for bags in arrived["lengths"].split(segment_bags)]
    order = [q * k_r + f for f in range(k_r) for q in pi]
    for name, tensor in arrived.items():
        segments = tensor.split(segment_bags if name == "lengths" else segment_ids)
        out[name] = torch.cat([segments[i] for i in order])
    return out
