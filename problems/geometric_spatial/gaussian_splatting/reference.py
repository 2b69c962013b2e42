import torch
import torch.distributed as dist


def covariances(quats: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """World covariances (N, 3, 3) of Gaussians with rotations (w, x, y, z), not normalised, and standard deviations."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    R = torch.stack(
        [
            torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=-1),
            torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=-1),
            torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=-1),
        ],
        dim=-2,
    )
    M = R * scales[:, None, :]
    return M @ M.transpose(-1, -2)


def project(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    image_width: int,
    image_height: int,
    eps2d: float,
    near_plane: float,
    far_plane: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Projects N Gaussians into C cameras.

    Returns:
        radii (C, N, 2), whole numbers, 0 where the Gaussian is not seen; means2d (C, N, 2); depths (C, N); conics
        (C, N, 3), the upper triangle of the inverse covariance.
    """
    S = covariances(quats, scales)
    Rc, t = viewmats[:, :3, :3], viewmats[:, :3, 3]
    m = torch.einsum("cij,nj->cni", Rc, means) + t[:, None]
    Sc = Rc[:, None] @ S @ Rc[:, None].transpose(-1, -2)

    tx, ty, tz = m.unbind(-1)
    fx, fy, cx, cy = (Ks[:, i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    tan_x, tan_y = 0.5 * image_width / fx, 0.5 * image_height / fy
    right, left = (image_width - cx) / fx + 0.3 * tan_x, cx / fx + 0.3 * tan_x
    below, above = (image_height - cy) / fy + 0.3 * tan_y, cy / fy + 0.3 * tan_y
    tx = tz * torch.clamp(tx / tz, min=-left, max=right)
    ty = tz * torch.clamp(ty / tz, min=-above, max=below)
    tz2, zero = tz * tz, torch.zeros_like(tz)
    J = torch.stack([fx / tz, zero, -fx * tx / tz2, zero, fy / tz, -fy * ty / tz2], dim=-1).unflatten(-1, (2, 3))
    cov2d = J @ Sc @ J.transpose(-1, -2)
    means2d = torch.einsum("cij,cnj->cni", Ks[:, :2], m) / tz[..., None]

    cov2d = cov2d + torch.eye(2, dtype=cov2d.dtype, device=cov2d.device) * eps2d
    a, b, c, d = cov2d.flatten(-2).unbind(-1)
    det = (a * d - b * c).clamp(min=1e-10)
    conics = torch.stack([d / det, -(b + c) / 2 / det, a / det], dim=-1)

    radii = torch.ceil(3.33 * torch.stack([a, d], dim=-1).sqrt())
    radii[(tz <= near_plane) | (tz >= far_plane)] = 0
    size = torch.tensor([image_width, image_height], dtype=means2d.dtype, device=means2d.device)
    inside = ((means2d + radii > 0) & (means2d - radii < size)).all(dim=-1)
    radii[~inside] = 0
    return radii, means2d, tz, conics


def exchange(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
    """All-to-all of rows (n, ...), sent[q] of them to rank q and received[q] from it."""
    result = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(result, rows.contiguous(), received, sent)
    return result


def solution(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    image_width: int,
    image_height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    camera_model: str = "pinhole",
) -> tuple[torch.Tensor, ...]:
    """Projects this rank's Gaussians into the cameras of all ranks and sends what is seen to the cameras' owners.

    Rows come ordered by source rank, then camera, then Gaussian. A received Gaussian's id is its index at the source
    plus the number of Gaussians on the ranks before the receiver.

    Args:
        means: (N, 3), centres in the world; N may differ by rank.
        quats: (N, 4), rotations (w, x, y, z), not normalised.
        scales: (N, 3), standard deviations along the rotated axes.
        opacities: (N,), carried along.
        colors: (N, D), carried along.
        viewmats: (C, 4, 4), world to camera, this rank's cameras.
        Ks: (C, 3, 3), intrinsics.
        image_width: width of the pictures in pixels.
        image_height: their height in pixels.
        eps2d: added to the diagonal of projected covariances.
        near_plane: depths have to be larger.
        far_plane: depths have to be smaller.
        camera_model: must be "pinhole".

    Returns:
        camera_ids (n,) int64, this rank's cameras; gaussian_ids (n,) int64; radii (n, 2) int32; means2d (n, 2); depths
        (n,); conics (n, 3); opacities (n,); colors (n, D).
    """
    if camera_model != "pinhole":
        raise ValueError(f"camera_model must be 'pinhole', got {camera_model!r}")
    P = dist.get_world_size()
    N, C = means.shape[0], viewmats.shape[0]
    count = torch.tensor([N], dtype=torch.int32, device=means.device)
    counts = torch.empty(P, dtype=torch.int32, device=means.device)
    dist.all_gather_into_tensor(counts, count)
    cameras = torch.cat([viewmats.flatten(1), Ks.flatten(1)], dim=1)
    every_camera = cameras.new_empty(P * C, 25)
    dist.all_gather_into_tensor(every_camera, cameras)
    all_viewmats, all_Ks = every_camera[:, :16].view(-1, 4, 4), every_camera[:, 16:].view(-1, 3, 3)

    radii, means2d, depths, conics = project(
        means, quats, scales, all_viewmats, all_Ks, image_width, image_height, eps2d, near_plane, far_plane
    )
    camera_ids, gaussian_ids = torch.where((radii > 0).all(dim=-1))
    seen = (camera_ids, gaussian_ids)
    owners = camera_ids // C
    floats = torch.cat(
        [
            means2d[seen],
            depths[seen][:, None],
            conics[seen],
            opacities[gaussian_ids, None],
            colors[gaussian_ids],
        ],
        dim=1,
    )
    offsets = counts.cumsum(0) - counts  # by receiver
    ids = torch.stack([camera_ids - owners * C, gaussian_ids + offsets[owners]], dim=1)
    whole_radii = radii[seen].to(torch.int32)

    if P > 1:
        to_send = torch.bincount(owners, minlength=P)
        to_receive = torch.empty_like(to_send)
        dist.all_to_all_single(to_receive, to_send)
        sent, received = to_send.tolist(), to_receive.tolist()
        whole_radii = exchange(whole_radii, sent, received)
        floats = exchange(floats, sent, received)
        ids = exchange(ids, sent, received)
    means2d, depths, conics, opacities, colors = floats.split([2, 1, 3, 1, colors.shape[1]], dim=1)
    return ids[:, 0], ids[:, 1], whole_radii, means2d, depths.squeeze(1), conics, opacities.squeeze(1), colors
