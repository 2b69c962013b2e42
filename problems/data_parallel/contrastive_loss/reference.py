import torch
import torch.distributed as dist
import torch.nn.functional as F


def block_loss(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float,
    own: bool,
) -> torch.Tensor:
    """Pairwise sigmoid loss of b images against b texts; in the rank's own block row i of both is a match."""
    b = image_features.shape[0]
    logits = logit_scale * image_features @ text_features.T + logit_bias
    labels = -torch.ones_like(logits)
    if own:
        labels.fill_diagonal_(1)
    return -F.logsigmoid(labels * logits).sum() / b


@torch.no_grad()
def solution(
    image_features: torch.Tensor,
    text_features: torch.Tensor,
    logit_scale: float,
    logit_bias: float = 0.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sigmoid (SigLIP) loss of this rank's images against the texts of all P ranks, which travel around a ring.

    The texts go both ways at once, so that (P - 1) / 2 steps, rounded up, bring all of them by.

    Args:
        image_features: (b, D), rows of unit length.
        text_features: (b, D), likewise; row i matches image i of the same rank.
        logit_scale: factor on the similarities.
        logit_bias: added to every logit.
        group: None means WORLD.

    Returns:
        0-dim tensor, the loss of this rank: a sum over the blocks of all ranks, each divided by b.
    """
    P, r = dist.get_world_size(group), dist.get_rank(group)
    left, right = (r - 1) % P, (r + 1) % P

    loss = block_loss(image_features, text_features, logit_scale, logit_bias, own=True)
    rightward = leftward = text_features.contiguous()  # what travels which way
    for _ in range((P - 1) // 2):
        from_right, from_left = torch.empty_like(leftward), torch.empty_like(rightward)
        exchange(
            [
                dist.P2POp(dist.isend, rightward, group=group, group_peer=right),
                dist.P2POp(dist.isend, leftward, group=group, group_peer=left),
                dist.P2POp(dist.irecv, from_left, group=group, group_peer=left),
                dist.P2POp(dist.irecv, from_right, group=group, group_peer=right),
            ]
        )
        for text in (from_right, from_left):
            loss = loss + block_loss(image_features, text, logit_scale, logit_bias, own=False)
        rightward, leftward = from_left, from_right
    if (P - 1) % 2:
        from_left = torch.empty_like(rightward)
        exchange(
            [
                dist.P2POp(dist.isend, rightward, group=group, group_peer=right),
                dist.P2POp(dist.irecv, from_left, group=group, group_peer=left),
            ]
        )
        loss = loss + block_loss(image_features, from_left, logit_scale, logit_bias, own=False)
    return loss


def exchange(operations: list[dist.P2POp]) -> None:
    """Runs a batch of sends and receives to its end."""
    for work in dist.batch_isend_irecv(operations):
        work.wait()
