"""TileParallelVAEDecode against a pixel-by-pixel computation from the owners' latents, in float64."""

import math

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "TileParallelVAEDecode"


def upsampled(line: torch.Tensor, factor: int, dim: int) -> torch.Tensor:
    """Linear interpolation along one axis with half-pixel centres, clamped at the tile's borders."""
    n = line.shape[dim]
    parts = []
    for u in range(n * factor):
        s = max(0.0, (u + 0.5) / factor - 0.5)
        low = math.floor(s)
        weight = s - low
        parts.append(line.select(dim, low) * (1 - weight) + line.select(dim, min(low + 1, n - 1)) * weight)
    return torch.stack(parts, dim=dim)


def expected(run: Run) -> torch.Tensor:
    ax = run.axes[0]
    cells = [ax.tile_length + int(ax["first_frame_as_image"]), ax.tile_height, ax.tile_width]
    factors = [ax["temporal_overlap"], ax["spatial_overlap"], ax["spatial_overlap"]]
    space = ax.spatial_upsample * ax.sr_ratio
    ups = [ax.temporal_upsample, space, space]
    size = [ax.T, ax.H, ax.width]
    stride = [int(n * (1 - f)) for n, f in zip(cells, factors, strict=True)]
    fade = [int(n * up * f) for n, up, f in zip(cells, ups, factors, strict=True)]
    number = [-(-n // step) for n, step in zip(size, stride, strict=True)]
    places = [(i, j, k) for i in range(number[0]) for j in range(number[1]) for k in range(number[2])]

    def cut(place, rank):
        begin = [p * step for p, step in zip(place, stride, strict=True)]
        ends = [min(b + n, whole) for b, n, whole in zip(begin, cells, size, strict=True)]
        z = run.args[rank]["z"].double()
        return z[:, :, begin[0] : ends[0], begin[1] : ends[1], begin[2] : ends[2]]

    largest_first = sorted(places, key=lambda place: -cut(place, 0).numel())
    tiles = {}
    for position, place in enumerate(largest_first):
        tile = cut(place, position % ax.W)
        for axis in range(3):
            tile = upsampled(tile, ups[axis], axis + 2)
        channels = [tile[:, c % tile.shape[1]] for c in range(3)]
        tiles[place] = torch.stack(channels, dim=1)
    video = torch.full((ax.B, 3, ax.T_out, ax.H_out, ax.W_out), torch.nan, dtype=torch.float64)
    kept = [n * up - f for n, up, f in zip(cells, ups, fade, strict=True)]
    for place in places:
        cur = tiles[place].clone()
        for axis in range(3):
            if place[axis] == 0:
                continue
            prev = tiles[tuple(p - (a == axis) for a, p in enumerate(place))]
            m = min(prev.shape[axis + 2], cur.shape[axis + 2], fade[axis])
            for u in range(m):
                old = prev.select(axis + 2, prev.shape[axis + 2] - m + u)
                new = cur.select(axis + 2, u)
                new.copy_(old * (1 - u / m) + new * (u / m))
        cur = cur[:, :, : kept[0], : kept[1], : kept[2]]
        first = [p * k for p, k in zip(place, kept, strict=True)]  # all tiles but the last are kept in full
        video[:, :, first[0] :, first[1] :, first[2] :][:, :, : cur.shape[2], : cur.shape[3], : cur.shape[4]] = cur
    return video


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 2), (4, 4), (2, 1)])
def test_trials_match_the_pixels(trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial)
    want = expected(run)
    for rank, outputs in enumerate(run.outputs):
        assert torch.equal(outputs["video"], run.outputs[0]["video"])
        assert run.wrong(rank, "video", want.bfloat16()).sum() == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_published_trials_match_and_are_bfloat16(dtype: str) -> None:
    run = run_reference(NAME, world_size=2, protocol="published", trial=1, dtype=dtype)
    assert (run.outputs[0]["video"].float() - expected(run)).abs().max() < 0.05


@pytest.mark.parametrize("size", ["tiny", "published", "large"])
@pytest.mark.parametrize(("trial", "overlap"), [(2, "spatial_overlap"), (3, "temporal_overlap")])
def test_height_and_width_cannot_be_taken_for_each_other(trial: int, overlap: str, size: str) -> None:
    ax = make_axes(find_problem(NAME), size=size, trial=trial)[0]
    assert (ax.tile_height != ax.tile_width) and (ax.H_out != ax.W_out or trial == 3) and ax.real(overlap) > 0
    down, across = (
        math.ceil(n / int(tile * (1 - ax.real("spatial_overlap"))))
        for n, tile in ((ax.H, ax.tile_height), (ax.width, ax.tile_width))
    )
    assert down != across or (trial, size) == (2, "tiny")


def test_more_ranks_than_tiles() -> None:
    size = {"T": 1, "H": 4, "width": 3, "tile_length": 1, "tile_height": 4, "tile_width": 4, "temporal_overlap": 0.0}
    run = run_reference(NAME, size=size | {"spatial_upsample": 2, "spatial_overlap": 0.0}, world_size=4)
    assert run.wrong(3, "video", expected(run).bfloat16()).sum() == 0


def test_cost_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    ax = problem.axes(size="published", world_size=4, rank=0)
    least = problem.cost(ax)
    assert (ax.T_out, ax.H_out, ax.W_out) == (24, 720, 720)
    assert least.memory_bytes == 291_600 + 74_649_600
    assert least.link_in_bytes == least.link_out_bytes == 350_892
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(5)]
    assert {ax["temporal_overlap"] > 0 for ax in axes} == {True, False}
    assert {ax.sr_ratio for ax in axes} == {1, 2}
    assert {bool(ax["first_frame_as_image"]) for ax in axes} == {True, False}
    assert {ax.C for ax in axes} == {1, 2, 16}
    assert make_axes(problem, trial=2, timed=True)[0].sr_ratio == 1
    with pytest.raises(SizeError, match="stride of 0"):
        problem.axes(size={"spatial_overlap": 0.99}, world_size=4, rank=0)
