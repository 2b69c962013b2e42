"""Counterfeits of CSOAttention: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def attention(query, key_value, ranges, clip, heads, largest_score=float("inf")):
    """Attention of this rank's queries to gathered keys; query head j uses KV head heads[j]."""
    R, W = len(ranges), dist.get_world_size()
    gathered = key_value.new_empty(W, *key_value.shape)
    dist.all_gather_into_tensor(gathered, key_value)
    keys = gathered.unflatten(1, (R, -1)).transpose(0, 1).flatten(1, 2)[:, :clip].flatten(0, 1).float()
    out = []
    for q, (first, end) in zip(query.float().chunk(R), ranges, strict=True):
        k, v = keys[first:end][:, heads].chunk(2, dim=-1)
        scores = torch.einsum("ahd,jhd->haj", q, k) * query.shape[-1] ** -0.5
        scores = scores.clamp(-largest_score, largest_score)
        out.append(torch.einsum("haj,jhd->ahd", scores.softmax(-1), v))
    return torch.cat(out).to(query.dtype)


def right_heads(query, key_value):
    return torch.arange(query.shape[1]) // (query.shape[1] // key_value.shape[1])


def diagonal(query, key_value, k_ranges, cp_shuffle_num, clip_token_nums=None, group=None):
    c = clip_token_nums or dist.get_world_size() * query.shape[0] // cp_shuffle_num
    ranges = [(i * c, (i + 1) * c) for i in range(cp_shuffle_num)]
    return attention(query, key_value, ranges, c, right_heads(query, key_value))


def small_scores(query, key_value, k_ranges, cp_shuffle_num, clip_token_nums=None, group=None):
    return attention(query, key_value, k_ranges.tolist(), clip_token_nums, right_heads(query, key_value), 8.0)


def heads_round_robin(query, key_value, k_ranges, cp_shuffle_num, clip_token_nums=None, group=None):
    W, Hq, Hk = dist.get_world_size(), query.shape[1], key_value.shape[1]
    heads = torch.arange(Hq) // (Hq // W) % Hk if Hk < W else right_heads(query, key_value)
    return attention(query, key_value, k_ranges.tolist(), clip_token_nums, heads)


COUNTERFEITS = (
    Counterfeit(0, "ignores k_ranges", diagonal, "k_ranges is always the block diagonal"),
    Counterfeit(1, "scores limited to 8", small_scores, "queries are random and short, so that no key stands out"),
    Counterfeit(2, "wrong repetition of KV heads", heads_round_robin, "KV heads are never fewer than ranks"),
)
