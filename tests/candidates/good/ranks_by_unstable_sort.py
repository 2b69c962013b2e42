# expect: passed
# problem: GNNNegativeScoring
# size: published
# Equal scores come in the order of a sort that is not stable, here in the order of random numbers.
import torch
import torch.distributed as dist


def gather_rows(local, group):
    parts = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, local, group=group)
    return torch.cat(parts)


def solution(local_pos_scores, local_neg_scores, group=None):
    scores = torch.sigmoid(torch.cat([local_pos_scores.view(-1, 1), local_neg_scores], dim=1))
    shuffled = torch.rand(scores.shape).argsort(dim=1)
    order = shuffled.gather(1, scores.gather(1, shuffled).argsort(dim=1, descending=True, stable=True))
    return gather_rows((order == 0).int().argmax(dim=1) + 1, group)
