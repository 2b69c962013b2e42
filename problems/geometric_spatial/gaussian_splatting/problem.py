"""GaussianSplatting: Gaussians and cameras are split over ranks; what a camera sees is sent to its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    SizeError,
    Stream,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, more_than, outside, rows_close, rule, wide

if TYPE_CHECKING:
    import torch

Gaussians: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"

VISIBLE = 0.25
"""Share of the pairs of Gaussian and camera that robust inputs show at least, on average over trials."""

MIN_DEPTH = 0.25
"""In front of a camera, nearer Gaussians amplify rounding too much to be seen in robust inputs."""

FEW = 0.02
"""Share of the coordinates that rounding may amplify."""

MAX_CONDITION = 20.0
"""Of a projected covariance: product of the diagonal over the determinant, which cancels by as much."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the numbers of Gaussians of all ranks, and the most rows that this rank can receive."""
    counts = ax.ints("counts") if "counts" in ax else (ax.N,) * ax.W
    if min(counts) < 1 or ax.C < 1:
        raise SizeError(f"every rank needs a Gaussian and a camera, got {counts} and C={ax.C}")
    pairs = ax.C * sum(counts)
    return {
        "n": counts[ax.r],
        "total": sum(counts),
        "visible": ax.get("visible", VISIBLE),
        "pairs": pairs,
        "pairs2": 2 * pairs,
        "pairs3": 3 * pairs,
        "pairsD": ax.D * pairs,
        "camera_model": "pinhole",
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: several cameras a rank, numbers of Gaussians that differ by rank, other planes and channels.

    About half of the ranks keep the size's number, and on one trial in four all else is as in timing: so no rank can
    infer the others' numbers from its own.
    """
    if draw.timed:
        return {}
    changed = draw.sample(range(ax.W), (ax.W + 1) // 2)
    counts = tuple(draw.randint(-(-3 * ax.N // 4), ax.N) if rank in changed else ax.N for rank in range(ax.W))
    if draw.trial % 4 == 0:
        return {"counts": counts}
    return {
        "C": max(2, ax.C) + draw.trial % 2,
        "D": ax.D + 2 * (draw.trial % 2),
        "counts": counts,
        "height": ax.height if draw.trial % 2 else max(1, 3 * ax.height // 4),
        "eps2d": draw.uniform(0.1, 0.6),
        "near_plane": draw.uniform(0.3, 0.8),
        "far_plane": draw.uniform(3, 4) if draw.trial % 4 > 1 else ax["far_plane"],
    }


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Every camera sees every Gaussian."""
    return {"visible": 1.0}


def random_cameras(stream: Stream, ax: Axes) -> tuple[torch.Tensor, torch.Tensor]:
    """C cameras around the origin that look at places near it, with different focal lengths, centres and skews."""
    import torch

    direction = stream.randn(ax.C, 3)
    place = direction / direction.norm(dim=1, keepdim=True) * (1.2 + 1.2 * stream.rand(ax.C, 1))
    z = 0.5 * stream.randn(ax.C, 3) - place
    z = z / z.norm(dim=1, keepdim=True)
    x = torch.linalg.cross(stream.randn(ax.C, 3), z)
    x = x / x.norm(dim=1, keepdim=True)
    rotation = torch.stack([x, torch.linalg.cross(z, x), z], dim=1)
    viewmats = torch.eye(4, device=place.device).repeat(ax.C, 1, 1)
    viewmats[:, :3, :3] = rotation
    viewmats[:, :3, 3] = -(rotation @ place[:, :, None]).squeeze(2)

    size = torch.tensor([ax.width, ax.height], device=place.device)
    Ks = torch.eye(3, device=place.device).repeat(ax.C, 1, 1)
    focal = (0.45 + 0.4 * stream.rand(ax.C, 2)) * size.float().mean()
    Ks[:, 0, 0], Ks[:, 1, 1] = focal.unbind(1)
    Ks[:, 0, 1] = 0.03 * focal[:, 0] * stream.randn(ax.C)
    Ks[:, :2, 2] = (0.4 + 0.2 * stream.rand(ax.C, 2)) * size
    return viewmats, Ks


def random_gaussians(stream: Stream, n: int) -> Gaussians:
    """Centres in a cube that reaches behind the cameras, any rotation, sizes that differ by up to four."""
    import torch

    scales = torch.exp(-4 + 1.4 * stream.rand(n, 3))  # 0.018 .. 0.074
    return 3 * stream.rand(n, 3) - 1.5, stream.randn(n, 4), scales


def doubtful(gaussians: Gaussians, cameras: tuple[torch.Tensor, torch.Tensor], ax: Axes) -> torch.Tensor:
    """Marks Gaussians that rounding could show or hide, or give another radius, in some camera; (n,) bool."""
    import torch

    from pkb_gym.problems.geometric_spatial.gaussian_splatting.reference import project

    means, quats, scales = (part.double() for part in gaussians)
    near, far = ax.real("near_plane"), ax.real("far_plane")
    size = torch.tensor([ax.width, ax.height], dtype=torch.float64, device=means.device)
    bad = torch.zeros(len(means), dtype=torch.bool, device=means.device)
    for viewmat, K in zip(*(part.double() for part in cameras), strict=True):  # one at a time, to save memory
        found = project(
            means,
            quats,
            scales,
            viewmat[None],
            K[None],
            ax.width,
            ax.height,
            ax.real("eps2d"),
            near_plane=0.0,
            far_plane=float("inf"),
        )
        _, means2d, depths, conics = (part[0] for part in found)
        # The covariance is the inverse of the conic.
        cross = conics[:, 0] * conics[:, 2]
        condition = cross / (cross - conics[:, 1].square())
        radii = 3.33 * (condition[:, None] / conics[:, [0, 2]]).sqrt()
        behind = (depths < near - 1e-3) | (depths > far + 1e-3)
        outer = radii.ceil() + 1
        away = ((means2d + outer < -0.01) | (means2d - outer > size + 0.01)).any(dim=1)
        whole = radii.ceil()
        edges = torch.cat([means2d + whole, means2d - whole - size], dim=1).abs().amin(dim=1)
        close_call = (
            ((radii - radii.round()).abs() < 1e-3 + 3e-5 * radii).any(dim=1)
            | (edges < 0.01 + 2e-5 * means2d.abs().amax(dim=1))
            | ((depths - near).abs() < 1e-3)
            | ((depths - far).abs() < 1e-3)
            | (depths < MIN_DEPTH)
            | (condition > MAX_CONDITION)
        )
        bad |= close_call.logical_or_(~torch.isfinite(condition)) & ~behind & ~(away & (depths > 1e-3))
    return bad


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Cameras that see different parts of the scene; Gaussians on which rounding could decide are drawn again."""
    import torch

    ax = make.ax
    every = [random_cameras(make.stream("cameras", rank), ax) for rank in range(ax.W)]
    cameras = (torch.cat([viewmats for viewmats, _ in every]), torch.cat([Ks for _, Ks in every]))
    gaussians = random_gaussians(make, ax.n)
    left = doubtful(gaussians, cameras, ax).nonzero().squeeze(1)
    for _ in range(50):
        if not left.numel():
            break
        again = random_gaussians(make, left.numel())
        for part, new in zip(gaussians, again, strict=True):
            part[left] = new
        left = left[doubtful(again, cameras, ax)]
    gaussians[0][left] = 1e3 * cameras[0][0, 2, :3]  # none is left in practice
    viewmats, Ks = every[ax.r]
    return *gaussians, make.uniform("opacities", 0.1, 0.9), make.rand(ax.n, ax.D), viewmats, Ks


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Gaussians well inside the image of one constant camera, the same on all ranks."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 61_000 + make.rank + 1_000_003 * make.trial)
    xy, z = 1.5 * stream.rand(ax.n, 2) - 0.75, 2 + 2 * stream.rand(ax.n, 1)
    quats, scales = stream.normal("quats"), 0.02 * stream.uniform("scales")
    opacities, colors = stream.uniform("opacities", 0.1, 0.9), stream.uniform("colors")
    viewmats = torch.eye(4, device=make.device).repeat(ax.C, 1, 1)
    Ks = torch.eye(3, device=make.device).repeat(ax.C, 1, 1)
    Ks[:, 0, 0] = Ks[:, 1, 1] = 0.8 * ax.width
    Ks[:, 0, 2], Ks[:, 1, 2] = ax.width / 2, ax.height / 2
    return torch.cat([xy, z], dim=1), quats, scales, opacities, colors, viewmats, Ks


def centre_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks centres off by more than 1e-2 + 5e-4 |expected| pixels, and more than few by 1e-3 + 1e-5 |expected|.

    Rounding leaves 1e-4 at most but where it is amplified; centres that cross the link in 16 bits are off by 4e-3.
    """
    expected = wide(context.expected)
    size = expected.abs()
    bad = outside(wide(got), expected, 1e-2 + 5e-4 * size)
    return bad | more_than(FEW, wide(got), expected, 1e-3 + 1e-5 * size)


def depth_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks depths off by more than 1e-4 of themselves, and more than few by 1e-5: 16 bits leave 2e-5."""
    expected = wide(context.expected)
    bad = outside(wide(got), expected, 1e-4 * expected.abs())
    return bad | more_than(FEW, wide(got), expected, 1e-5 * expected.abs())


def cost(ax: Axes) -> Cost:
    """Covariances once, projections of what is seen; rows go to their owners, or raw Gaussians where these are less.

    Radii follow from the conics and need not be sent; nor do the ids of rows in order. Rows are expected to come from
    all ranks alike.
    """
    seen = ax.real("visible") * ax.C
    item = ax.itemsize
    raw = ax.n * (11 + ax.D) * item
    row = (7 + ax.D) * item
    link = min(seen * row, (11 + ax.D) * item)
    return Cost(
        vector_flops=ax.n * (105 + 235 * seen * ax.W),
        memory_bytes=raw + 25 * item * ax.C + seen * ax.total * (16 + 8 + row),
        link_in_bytes=(ax.total - ax.n) * link,
        link_out_bytes=(ax.W - 1) * ax.n * link,
    )


def least_work(ax: Axes) -> Cost:
    """The centres."""
    return Cost(memory_bytes=3 * ax.n * ax.itemsize)


PROBLEM = Problem(
    name="GaussianSplatting",
    upstream="61_gsplat_3d_gaussian_splatting",
    category="geometric_spatial",
    origin="gsplat (nerfstudio): projection and packed all-to-all of multi-GPU rasterization",
    summary=(
        "Gaussians and cameras are split over ranks; each rank projects its Gaussians into all cameras and sends the "
        "visible results to the rank that owns the camera."
    ),
    weaknesses=(
        "All cameras are the same and see every Gaussian: nothing is culled, and counts and ids are known beforehand.",
    ),
    no_capture_because="How many Gaussians each camera sees depends on the data: counts of the exchange "
    "and sizes of the results.",
    tags=("all_to_all", "all_gather", "ragged", "projection"),
    # In bfloat16 only the baseline's own sequence of roundings gives the same rows.
    dtypes=("float32",),
    sizes={
        "tiny": {
            "N": 64,
            "C": 2,
            "D": 3,
            "width": 64,
            "height": 64,
            "eps2d": 0.3,
            "near_plane": 0.01,
            "far_plane": 1e10,
        },
        "published": {
            "N": 1024,
            "C": 1,
            "D": 3,
            "width": 512,
            "height": 512,
            "eps2d": 0.3,
            "near_plane": 0.01,
            "far_plane": 1e10,
        },
        "large": {
            "N": 1000000,
            "C": 1,
            "D": 3,
            "width": 1920,
            "height": 1080,
            "eps2d": 0.3,
            "near_plane": 0.01,
            "far_plane": 1e10,
        },
    },
    args=(
        Tensor("means", ("n", 3), about="centres; n differs by rank"),
        Tensor("quats", ("n", 4), about="rotations (w, x, y, z), not normalised"),
        Tensor("scales", ("n", 3), about="standard deviations along the rotated axes"),
        Tensor("opacities", ("n",), about="carried along"),
        Tensor("colors", ("n", "D"), about="carried along"),
        Tensor("viewmats", ("C", 4, 4), about="world to camera, this rank's cameras"),
        Tensor("Ks", ("C", 3, 3), about="intrinsics; the first two rows count, with skew"),
        Scalar("image_width", "int", axis="width", about="in pixels"),
        Scalar("image_height", "int", axis="height", about="in pixels"),
        Scalar("eps2d", "float", about="added to the diagonal of projected covariances"),
        Scalar("near_plane", "float", about="depths have to be larger"),
        Scalar("far_plane", "float", about="depths have to be smaller"),
        Scalar("camera_model", "str", about='always "pinhole"'),
    ),
    # Rows are ordered by source rank, camera, Gaussian. Inputs keep a distance from all decisions, so that ids and
    # radii are exact; coordinates differ by rounding, amplified by up to the reciprocal of the least depth. Conics that
    # are right are off by 1e-6 of their size, and those that cross the link in 16 bits by 1e-5 and more.
    outputs=(
        Output("camera_ids", ("?",), dtype="int64", capacity="pairs", about="index among this rank's cameras"),
        Output(
            "gaussian_ids", ("?",), dtype="int64", capacity="pairs", about="index at the source + receiver's offset"
        ),
        Output("radii", ("?", 2), dtype="int32", capacity="pairs2", about="in pixels, along x and y"),
        Output(
            "means2d",
            ("?", 2),
            capacity="pairs2",
            check=rule(centre_mark, "allclose(rtol=0.0005, atol=0.01), and 98 % within 1e-3 + 1e-5 |expected|"),
            about="in pixels",
        ),
        Output(
            "depths",
            ("?",),
            capacity="pairs",
            check=rule(depth_mark, "allclose(rtol=0.0001), and 98 % within 1e-5 of themselves"),
            about="z in the camera's frame",
        ),
        Output("conics", ("?", 3), capacity="pairs3", check=rows_close(rel=1e-2), about="inverse 2-D covariances"),
        Output("opacities_out", ("?",), capacity="pairs", about="as given"),
        Output("colors_out", ("?", "D"), capacity="pairsD", about="as given"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Every centre is read. What else is read, written or sent depends on what the cameras see.",
        of=("memory",),
        work=least_work,
    ),
)
