"""SAM3IoUSuppression: gathers uneven numbers of masks and blanks overlapping objects that were occluded recently."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
)

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Keeps the first W counts, and adds this rank's count, the sum and the default group."""
    counts = ax.by_rank("num_obj_per_gpu")
    return {"num_obj_per_gpu": counts, "n": counts[ax.r], "N": sum(counts), "group": None}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: more objects, that fall on the ranks at random; both directions and several thresholds.

    On every fourth trial one rank has none, and on one of eight there is no more than one. Ranks are held in others:
    several objects of each decide there about those of its peers, so that one that counts too early is seen. On even
    trials the first two masks of each rank overlap by just the threshold.
    """
    if draw.timed:
        return {}
    ranks = list(range(ax.W))
    if draw.trial % 4 == 1 and ax.W > 1:
        ranks.remove(draw.randrange(ax.W))
    total = (
        draw.randrange(2) if draw.trial % 8 == 6 else sum(ax.by_rank("num_obj_per_gpu")) + 3 * ax.W + draw.randrange(8)
    )
    owners = draw.choices(ranks, weights=[draw.random() + 0.2 for _ in ranks], k=total)
    changed: dict[str, AxisValue] = {"num_obj_per_gpu": tuple(owners.count(rank) for rank in range(ax.W))}
    if draw.trial % 2:
        changed["reverse"] = not ax.flag("reverse")
    if draw.trial % 4 > 1:
        changed["iou_threshold"] = draw.choice((0.5, 0.6, 0.75, 0.8))
    changed["tied"] = draw.trial % 2 == 0
    return changed


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Rotates the counts by the trial."""
    counts = ax.ints("num_obj_per_gpu")
    shift = draw.trial % len(counts)
    return {"num_obj_per_gpu": counts[shift:] + counts[:shift]}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rectangles and ellipses around a few places common to all ranks, with shifted edges and noise at the border.

    About half of the pairs at one place overlap by more than 0.7. Many places are small ones, so that pairs from
    different places seldom do. Some pixels are exactly 0, which is background.
    """
    import torch

    ax, n, N = make.ax, make.ax.n, make.ax.N
    places = max(1, (N + 2) // 3)
    extent = torch.tensor([ax.Hm, ax.Wm], device=make.device)
    scale = min(1.0, 1.7 / places**0.5)
    centre = (0.5 + (0.8 - 0.6 * scale) * (make.shared.rand(places, 2) - 0.5)) * extent
    half = (0.2 + 0.15 * make.shared.rand(places, 2)) * scale * extent
    is_ellipse = make.shared.rand(places) < 0.5
    last_occluded = make.shared.integers("last_occluded", -1, 6)

    place = make.randint(0, places, n)
    low = centre[place] - half[place] * (1 + 0.24 * (make.rand(n, 2) - 0.5) * 2)
    high = centre[place] + half[place] * (1 + 0.24 * (make.rand(n, 2) - 0.5) * 2)
    y = torch.arange(ax.Hm, device=make.device).view(1, -1, 1) + 0.5
    x = torch.arange(ax.Wm, device=make.device).view(1, 1, -1) + 0.5
    (top, left), (bottom, right) = (edge.view(n, 2, 1, 1).unbind(1) for edge in (low, high))
    rectangle = torch.minimum(torch.minimum(y - top, bottom - y), torch.minimum(x - left, right - x))
    a, b = (bottom - top) / 2, (right - left) / 2
    radius = torch.hypot((y - top - a) / a, (x - left - b) / b)
    ellipse = (1 - radius) * torch.minimum(a, b)
    inside = torch.where(is_ellipse[place].view(n, 1, 1), ellipse, rectangle)  # about the pixels to the border
    masks = inside.clamp(-4, 4) + 0.4 * make.randn(n, ax.Hm, ax.Wm)
    masks[masks.abs() < 0.05] = 0
    if ax.flag("tied") and n > 1:
        tie(masks, ax.real("iou_threshold"))
    return masks.to(make.dtype), make.normal("obj_scores_local"), last_occluded


def tie(masks: torch.Tensor, threshold: float) -> None:
    """Makes the second mask a part of the first one, so that their IoU is the threshold, in place."""
    share = Fraction(threshold).limit_denominator(100)
    foreground = (masks[0] > 0).view(-1).nonzero().squeeze(1)
    area = len(foreground) // share.denominator * share.denominator
    masks[0].view(-1)[foreground[area:]] = -1
    masks[1] = masks[0]
    masks[1].view(-1)[foreground[area * share.numerator // share.denominator : area]] = -1


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noise with diagonal stripes, evenly spaced scores, and last_occluded counting -1 .. 3."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 81_000 + make.rank + 1_000_003 * make.trial)
    row = torch.arange(ax.Hm, device=make.device).view(1, -1, 1)
    column = torch.arange(ax.Wm, device=make.device).view(1, 1, -1)
    index = torch.arange(ax.n, device=make.device).view(-1, 1, 1)
    stripes = ((row + column + index + make.rank) % 5 == 0).to(make.dtype)
    masks = stream.normal("low_res_masks_local") + 4 * stripes - 1
    scores = torch.linspace(-5, 5, ax.n, device=make.device).to(make.dtype)
    return masks, scores, torch.arange(ax.N, device=make.device) % 5 - 1


def cost(ax: Axes) -> Cost:
    """Own masks are read, all are written; foreground bits travel for all objects, logits for the half that stays.

    Logits of suppressed objects need not be sent, and the inputs suppress fewer than half of them. Overlaps are
    counted with 64 pixels to a word; a switch that multicasts takes what a rank sends once.
    """
    pixels = ax.Hm * ax.Wm
    sent = pixels * (ax.itemsize / 2 + 1 / 8)
    return Cost(
        vector_flops=ax.n * pixels + ax.N * (ax.N - 1) / 2 * pixels / 64,
        memory_bytes=ax.itemsize * ax.n * pixels + 4 * ax.N * pixels,
        link_in_bytes=(ax.N - ax.n) * sent,
        link_out_bytes=ax.n * sent if ax.n < ax.N else 0,
    )


PROBLEM = Problem(
    name="SAM3IoUSuppression",
    upstream="81_sam3_allgather_iou_suppression",
    category="geometric_spatial",
    origin="SAM 3, multi-GPU video tracking: suppression of recently occluded overlapping objects",
    summary=(
        "Gather variable numbers of object masks from all ranks and blank those that overlap another object strongly "
        "and were occluded more recently."
    ),
    weaknesses=(
        "No pair reaches IoU 0.7, so nothing is ever suppressed and a solution that only gathers passes.",
        "Scores and last_occluded are closed forms.",
    ),
    tags=("all_gather", "ragged", "pairwise"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        # The first W counts are used.
        "tiny": {
            "Hm": 16,
            "Wm": 16,
            "num_obj_per_gpu": (1, 2, 3, 1, 0, 2, 1, 2),
            "iou_threshold": 0.7,
            "reverse": False,
            "tied": False,
        },
        # Nine, so that rotating by the trial keeps the period of three.
        "published": {
            "Hm": 256,
            "Wm": 256,
            "num_obj_per_gpu": (1, 2, 3, 1, 2, 3, 1, 2, 3),
            "iou_threshold": 0.7,
            "reverse": False,
            "tied": False,
        },
        "large": {
            "Hm": 288,
            "Wm": 288,
            "num_obj_per_gpu": (63, 64, 65, 63, 64, 65, 63, 64, 65),
            "iou_threshold": 0.7,
            "reverse": False,
            "tied": False,
        },
    },
    args=(
        Tensor("low_res_masks_local", ("n", "Hm", "Wm"), about="mask logits of this rank's n objects"),
        Tensor("obj_scores_local", ("n",), about="their scores"),
        Scalar("num_obj_per_gpu", "ints", about="objects of each rank, zeros included"),
        Tensor("last_occluded", ("N",), dtype="int64", about="frame of last occlusion, -1 never; equal on all ranks"),
        Scalar("iou_threshold", "float", about="compared in float32, >= counts as overlap"),
        Scalar("reverse", "bool", about="tracking backward in time"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output("masks", ("N", "Hm", "Wm"), dtype="float32", about="-10 everywhere in suppressed objects"),
        Output("scores", ("N",), dtype="float32", about="of all objects, unchanged"),
        Output("suppressed", ("N",), dtype="bool", about="whether an object was suppressed"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Own masks are read and all masks are written. Foregrounds of all foreign objects come in, and logits of "
        "those that stay, which is at least half of them.",
    ),
)
