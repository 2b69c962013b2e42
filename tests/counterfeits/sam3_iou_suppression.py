"""Counterfeits of SAM3IoUSuppression: what the published check takes for right."""

import torch

from pkb_gym.problems.geometric_spatial.sam3_iou_suppression.reference import gather_objects, solution
from tests.problems.counterfeit import Counterfeit


def gather_alone(masks, scores, num_obj_per_gpu, last_occluded, iou_threshold=0.7, reverse=False, group=None):
    gathered = [gather_objects(x.float(), num_obj_per_gpu, group) for x in (masks, scores)]
    return *gathered, torch.zeros(sum(num_obj_per_gpu), dtype=torch.bool)


def stored_scores(masks, scores, num_obj_per_gpu, last_occluded, iou_threshold=0.7, reverse=False, group=None):
    result = solution(masks, scores, num_obj_per_gpu, last_occluded, iou_threshold, reverse, group)
    return result[0], torch.cat([torch.linspace(-5, 5, n) for n in num_obj_per_gpu]), result[2]


def stored_occlusions(masks, scores, num_obj_per_gpu, last_occluded, iou_threshold=0.7, reverse=False, group=None):
    stored = torch.arange(sum(num_obj_per_gpu)) % 5 - 1
    return solution(masks, scores, num_obj_per_gpu, stored, iou_threshold, reverse, group)


COUNTERFEITS = (
    Counterfeit(0, "gather alone", gather_alone, "no two objects overlap enough"),
    Counterfeit(1, "stored scores", stored_scores, "scores are evenly spaced"),
    Counterfeit(1, "stored occlusions", stored_occlusions, "last_occluded counts -1 .. 3"),
)
