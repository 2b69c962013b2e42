"""Counterfeits of DistributedKNN: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.data_parallel.distributed_knn.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def labels_from_numbers(test_features_rank, train_features_rank_T, train_labels_rank, max_k, group=None):
    n = train_labels_rank.shape[1]
    labels = (dist.get_rank() * n + torch.arange(n)) % 1000
    return reference(test_features_rank, train_features_rank_T, labels.view(1, -1), max_k, group)


COUNTERFEITS = (Counterfeit(0, "labels unread", labels_from_numbers, "a sample's label is its number modulo 1000"),)
NOT_SHOWN = {
    1: "it refuses right answers, whose equal similarities come in another order, rather than accept wrong ones"
}
