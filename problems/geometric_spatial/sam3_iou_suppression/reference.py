import torch
import torch.distributed as dist


def gather_objects(x: torch.Tensor, counts: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Gathers (n_r, ...) from every rank, counts[r] objects from rank r, to (N, ...) in rank order."""
    parts = [x.new_empty(count, *x.shape[1:]) for count in counts]
    dist.all_gather(parts, x, group=group)
    return torch.cat(parts)


def pairwise_iou(masks: torch.Tensor) -> torch.Tensor:
    """Intersection over union of every pair of masks (N, Hm, Wm), foreground being > 0; (N, N)."""
    binary = (masks > 0).flatten(1).float()
    inter = binary @ binary.T  # whole numbers, exact in float32
    area = binary.sum(dim=1)
    union = area[:, None] + area[None, :] - inter
    return inter / union.clamp(min=1)


@torch.no_grad()
def solution(
    low_res_masks_local: torch.Tensor,
    obj_scores_local: torch.Tensor,
    num_obj_per_gpu: list[int],
    last_occluded: torch.Tensor,
    iou_threshold: float = 0.7,
    reverse: bool = False,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gathers all objects and blanks those that overlap another one and were occluded more recently.

    Of two objects whose masks overlap with IoU >= iou_threshold, the one with the larger last_occluded (the smaller,
    if reverse) is suppressed, provided that the other one has been occluded at all. Decisions use the original masks.

    Args:
        low_res_masks_local: (n_r, Hm, Wm), mask logits of this rank's objects.
        obj_scores_local: (n_r,), their scores.
        num_obj_per_gpu: n_0 .. n_{W-1}; N is their sum.
        last_occluded: (N,) int64, frame of the last occlusion per object, -1 = never; equal on all ranks.
        iou_threshold: overlap from which two objects compete.
        reverse: the video is tracked backward in time.
        group: the ranks that take part; None means all.

    Returns:
        masks (N, Hm, Wm) float32, -10 everywhere in suppressed ones; scores (N,) float32; suppressed (N,) bool.

    Raises:
        ValueError: the masks or scores do not have n_r entries.
    """
    n_r = num_obj_per_gpu[dist.get_rank(group)]
    if low_res_masks_local.shape[0] != n_r or obj_scores_local.shape[0] != n_r:
        raise ValueError(
            f"expected {n_r} objects, got {low_res_masks_local.shape[0]} masks and {obj_scores_local.shape[0]} scores"
        )
    masks = gather_objects(low_res_masks_local.float(), num_obj_per_gpu, group)
    scores = gather_objects(obj_scores_local.float(), num_obj_per_gpu, group)

    overlap = (pairwise_iou(masks) >= iou_threshold).triu(diagonal=1)  # pairs i < j
    last = last_occluded.to(torch.int64)
    i, j = last[:, None], last[None, :]
    i_later, j_later = (i < j, j < i) if reverse else (i > j, j > i)
    suppress_i = overlap & i_later & (j > -1)
    suppress_j = overlap & j_later & (i > -1)
    suppressed = suppress_i.any(dim=1) | suppress_j.any(dim=0)

    masks[suppressed] = -10.0
    return masks, scores, suppressed
