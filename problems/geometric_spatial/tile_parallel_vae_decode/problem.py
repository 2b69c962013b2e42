"""TileParallelVAEDecode: a latent video is decoded in overlapping tiles on different ranks, blended and stitched."""

from __future__ import annotations

from itertools import product
from math import ceil, prod
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
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, far, outside, rule, wide

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the size of the video, the number of cells of all tiles, and the default group."""
    size = (ax.T, ax.H, ax.width)
    tile = (ax.tile_length + (1 if ax.flag("first_frame_as_image") else 0), ax.tile_height, ax.tile_width)
    spatial, temporal = ax.real("spatial_overlap"), ax.real("temporal_overlap")
    space = ax.spatial_upsample * ax.sr_ratio
    out, lengths = [], []
    for n, cells, factor, up in zip(
        size, tile, (temporal, spatial, spatial), (ax.temporal_upsample, space, space), strict=True
    ):
        step = int(cells * (1 - factor))
        if step <= 0:
            raise SizeError(
                f"a tile of {cells} cells with overlap {factor} has a stride of {step}; it must be positive"
            )
        kept = cells * up - int(cells * up * factor)
        along = [min(cells, n - i * step) for i in range(ceil(n / step))]
        lengths.append(along)
        out.append(sum(min(kept, length * up) for length in along))
    return {
        "T_out": out[0],
        "H_out": out[1],
        "W_out": out[2],
        "tile_cells": sum(prod(tile) for tile in product(*lengths)),
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing cycles through overlaps along t, super-resolution, longer tiles, few channels, and odd strides.

    On half of the trials tiles are not square, of which there are other numbers across than down.
    """
    if draw.timed or draw.trial == 0:
        return {}
    flat = ax.tile_height - ax.tile_height // 4
    overlap = ax.real("temporal_overlap") or (0.4 if ax.tile_length > 1 else 0.0)
    modes: tuple[dict[str, AxisValue], ...] = (
        {"temporal_overlap": overlap, "C": 1, "spatial_upsample": max(1, ax.spatial_upsample // 2), "sr_ratio": 2},
        {"first_frame_as_image": True, "temporal_overlap": overlap, "sr_ratio": 2},
        # A stride that is cut to a whole number, so that pieces kept do not fit strides.
        {"spatial_overlap": 0.3, "temporal_overlap": 0.0, "C": 2, "B": 2, "tile_height": flat},
        {"first_frame_as_image": True, "temporal_overlap": 0.3, "spatial_overlap": 0.0, "tile_height": flat},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """A normal latent that differs by rank, so that tiles must come from their owners."""
    return (make.normal("z"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Inputs of `robust`, from the published seed."""
    return (make.seeded(42 + 78_000 + make.rank + 1_000_003 * make.trial).normal("z"),)


def video_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks |got - expected| > 2e-2 + 3e-2 |expected|, and all if ||got - expected|| > 4e-3 ||expected||.

    The video is bfloat16 whatever the dtype of the latent. The baseline rounds pixels, both parts of a blend and their
    sum, along each of three axes: eight half steps at most, where a kernel that blends in float32 has one. Of that
    kernel the norm of all errors is below 2.3e-3; with latents in 8 bits it is 5.5e-3 and more.
    """
    import torch

    expected = wide(context.expected)
    bad = outside(wide(got), expected, 2e-2 + 3e-2 * expected.abs())
    return bad | far(wide(got), expected, 4e-3 * torch.linalg.vector_norm(expected))


def cost(ax: Axes) -> Cost:
    """The own tiles are decoded; latent tiles, which are smaller than decoded ones, travel to all ranks.

    Of the latent the three first channels are needed. Interpolating the last axis alone, after the others, takes three
    operations an element. Tiles come from different latents, so that cells in two tiles travel twice.
    """
    channels = min(3, ax.C)
    decoded = ax.B * 3 * ax.tile_cells * ax.temporal_upsample * (ax.spatial_upsample * ax.sr_ratio) ** 2
    latent = ax.B * channels * ax.T * ax.H * ax.width
    link = (ax.W - 1) / ax.W * ax.itemsize * ax.B * channels * ax.tile_cells
    return Cost(
        vector_flops=3 * decoded / ax.W,
        memory_bytes=ax.itemsize * latent + 2 * ax.B * 3 * ax.T_out * ax.H_out * ax.W_out,
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """Each cell once, on the rank that owns its tile; means over the ranks."""
    latent = ax.itemsize * ax.B * min(3, ax.C) * ax.T * ax.H * ax.width
    link = (ax.W - 1) / ax.W * latent
    return Cost(
        memory_bytes=latent / ax.W + 2 * ax.B * 3 * ax.T_out * ax.H_out * ax.W_out,
        link_in_bytes=link,
        link_out_bytes=link,
    )


_PUBLISHED: dict[str, AxisValue] = {
    "B": 1,
    "C": 16,
    "T": 6,
    "H": 90,
    "width": 90,
    "tile_length": 3,
    "tile_height": 32,
    "tile_width": 32,
    "spatial_overlap": 0.25,
    "temporal_overlap": 0.0,
    "spatial_upsample": 8,
    "temporal_upsample": 4,
    "sr_ratio": 1,
    "first_frame_as_image": False,
}

PROBLEM = Problem(
    name="TileParallelVAEDecode",
    upstream="78_magi1_tile_parallel_vae_decode",
    category="geometric_spatial",
    origin="MAGI-1 (Sand AI): tile-parallel VAE decoding, with trilinear up-sampling for the decoder",
    summary=(
        "A latent video is cut into overlapping tiles, the tiles are decoded on different ranks, exchanged, blended "
        "across overlaps, exchanged again and stitched into the full video on every rank."
    ),
    weaknesses=(
        "Tiles do not overlap in time, and sr_ratio, first_frame_as_image and fewer than 3 channels never vary.",
    ),
    tags=("all_gather", "ragged", "tiles", "interpolation"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": _PUBLISHED
        | {
            "C": 4,
            "T": 3,
            "H": 7,
            "width": 7,
            "tile_length": 2,
            "tile_height": 4,
            "tile_width": 4,
            "temporal_overlap": 0.5,
            "spatial_upsample": 2,
            "temporal_upsample": 2,
        },
        "published": _PUBLISHED,
        "large": _PUBLISHED | {"T": 12, "width": 160},
    },
    args=(
        Tensor(
            "z", ("B", "C", "T", "H", "width"), about="latent video; differs by rank: a tile's owner decodes its own"
        ),
        Scalar("tile_latent_min_length", "int", axis="tile_length", about="cells of a tile along t"),
        Scalar("tile_latent_min_height", "int", axis="tile_height", about="along h"),
        Scalar("tile_latent_min_width", "int", axis="tile_width", about="along w"),
        Scalar(
            "spatial_tile_overlap_factor", "float", axis="spatial_overlap", about="share that overlaps along h and w"
        ),
        Scalar("temporal_tile_overlap_factor", "float", axis="temporal_overlap", about="along t"),
        Scalar("spatial_upsample", "int", about="pixels per cell along h and w, times sr_ratio"),
        Scalar("temporal_upsample", "int", about="frames per cell"),
        Scalar("sr_ratio", "int", about="factor on spatial_upsample"),
        Scalar("first_frame_as_image", "bool", about="tiles are one cell longer along t"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "video",
            ("B", 3, "T_out", "H_out", "W_out"),
            dtype="bfloat16",
            check=rule(
                video_mark,
                description="|out - ref| <= 2e-2 + 3e-2 |ref|, ||out - ref|| <= 4e-3 ||ref||, whatever the dtype of z",
            ),
            about="equal on all ranks",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The video depends on every tile, of which each rank reads its own and is sent the others, and is written on "
        "every rank.",
        work=least_work,
    ),
)
