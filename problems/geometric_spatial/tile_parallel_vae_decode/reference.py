from itertools import product
from math import ceil

import torch
import torch.distributed as dist


def decode(latent: torch.Tensor, temporal_upsample: int, spatial_upsample: int) -> torch.Tensor:
    """Trilinear up-sampling of a tile (B, C, t, h, w), in place of a decoder; the first 3 channels in bfloat16."""
    scale = (temporal_upsample, spatial_upsample, spatial_upsample)
    pixels = torch.nn.functional.interpolate(latent.float(), scale_factor=scale, mode="trilinear", align_corners=False)
    while pixels.shape[1] < 3:
        pixels = torch.cat([pixels, pixels], dim=1)
    return pixels[:, :3].to(torch.bfloat16)


def blend(prev: torch.Tensor, cur: torch.Tensor, extent: int, dim: int) -> None:
    """Fades from the end of the previous tile to the beginning of the current one, in place."""
    m = min(prev.shape[dim], cur.shape[dim], extent)
    if m == 0:
        return
    shape = [1] * cur.dim()
    shape[dim] = m
    rise = (torch.arange(m, dtype=torch.float64, device=cur.device) / m).view(shape)
    end, begin = prev.narrow(dim, prev.shape[dim] - m, m).float(), cur.narrow(dim, 0, m)
    faded_out = (end * (1 - rise).float()).to(cur.dtype)
    faded_in = (begin.float() * rise.float()).to(cur.dtype)
    begin.copy_(faded_out + faded_in)


def gather_tiles(
    mine: list[torch.Tensor],
    shapes: list[torch.Size],
    owned: list[list[int]],
    device: torch.device,
    group: dist.ProcessGroup | None,
) -> dict[int, torch.Tensor]:
    """All ranks' bfloat16 tiles by index, of shape `shapes[index]`; rank q has those of `owned[q]`, in that order."""
    world_size = len(owned)
    if world_size == 1:
        return dict(zip(owned[0], mine, strict=True))
    sizes = [sum(shapes[index].numel() for index in of_rank) for of_rank in owned]

    flat = torch.cat([torch.empty(0, dtype=torch.bfloat16, device=device), *(tile.flatten() for tile in mine)])
    received = torch.empty(sum(sizes), dtype=torch.bfloat16, device=device)
    dist.all_to_all_single(received, flat.repeat(world_size), sizes, [flat.numel()] * world_size, group=group)

    indices = [index for of_rank in owned for index in of_rank]
    parts = received.split([shapes[index].numel() for index in indices])
    return {index: part.view(shapes[index]) for index, part in zip(indices, parts, strict=True)}


@torch.no_grad()
def solution(
    z: torch.Tensor,
    tile_latent_min_length: int,
    tile_latent_min_height: int,
    tile_latent_min_width: int,
    spatial_tile_overlap_factor: float,
    temporal_tile_overlap_factor: float,
    spatial_upsample: int,
    temporal_upsample: int,
    sr_ratio: int = 1,
    first_frame_as_image: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Decodes a latent video in overlapping tiles that are spread over the ranks, and stitches them on every rank.

    Tiles are dealt out by size, the largest first. A tile is decoded from its owner's latent video, and fades into its
    neighbours along t, h and w where they overlap.

    Args:
        z: (B, C, T, H, W); of every tile, its owner's values count.
        tile_latent_min_length: tile size along t in latent cells; likewise height and width.
        tile_latent_min_height: see above.
        tile_latent_min_width: see above.
        spatial_tile_overlap_factor: share of a tile that overlaps the next one, along h and w.
        temporal_tile_overlap_factor: likewise along t.
        spatial_upsample: pixels per latent cell along h and w, times sr_ratio.
        temporal_upsample: frames per latent cell.
        sr_ratio: see above.
        first_frame_as_image: tiles are one cell longer.
        group: the ranks that share the work; None means all.

    Returns:
        (B, 3, T_out, H_out, W_out) bfloat16, equal on all ranks.
    """
    P, r = (dist.get_world_size(group), dist.get_rank(group)) if dist.is_initialized() else (1, 0)
    length = tile_latent_min_length + (1 if first_frame_as_image else 0)
    tile = (length, tile_latent_min_height, tile_latent_min_width)
    factors = (temporal_tile_overlap_factor, spatial_tile_overlap_factor, spatial_tile_overlap_factor)
    upsample = (temporal_upsample, spatial_upsample * sr_ratio, spatial_upsample * sr_ratio)
    stride = [int(n * (1 - f)) for n, f in zip(tile, factors, strict=True)]
    if min(stride) <= 0:
        raise ValueError(f"strides {stride} must be positive: the overlap is too large for the tile {tile}")
    blend_extent = [int(n * up * f) for n, up, f in zip(tile, upsample, factors, strict=True)]
    keep = [n * up - extent for n, up, extent in zip(tile, upsample, blend_extent, strict=True)]

    counts = [ceil(n / step) for n, step in zip(z.shape[2:], stride, strict=True)]
    places = list(product(*(range(count) for count in counts)))
    latents = []
    for place in places:
        latent = z
        for dim, (n, step, i) in enumerate(zip(tile, stride, place, strict=True), start=2):
            latent = latent.narrow(dim, i * step, min(n, z.shape[dim] - i * step))
        latents.append(latent)
    by_size = sorted(range(len(places)), key=lambda index: -latents[index].numel())  # stable
    owned = [by_size[rank::P] for rank in range(P)]

    # The shapes of other ranks' tiles follow from the latent video's.
    decoded_shapes = [
        torch.Size((z.shape[0], 3, *(n * up for n, up in zip(latent.shape[2:], upsample, strict=True))))
        for latent in latents
    ]
    mine = [decode(latents[index], *upsample[:2]) for index in owned[r]]
    decoded = gather_tiles(mine, decoded_shapes, owned, z.device, group)

    blended = []
    for index in owned[r]:
        cur = decoded[index].clone()
        place = places[index]
        for axis, back in enumerate((counts[1] * counts[2], counts[2], 1)):
            if place[axis] > 0:
                blend(decoded[index - back], cur, blend_extent[axis], dim=axis + 2)
        blended.append(cur[:, :, : keep[0], : keep[1], : keep[2]].contiguous())
    kept_shapes = [torch.Size((*shape[:2], *map(min, shape[2:], keep))) for shape in decoded_shapes]
    tiles = gather_tiles(blended, kept_shapes, owned, z.device, group)

    rows = [torch.cat([tiles[row + k] for k in range(counts[2])], dim=4) for row in range(0, len(places), counts[2])]
    frames = [torch.cat(rows[first : first + counts[1]], dim=3) for first in range(0, len(rows), counts[1])]
    return torch.cat(frames, dim=2)
