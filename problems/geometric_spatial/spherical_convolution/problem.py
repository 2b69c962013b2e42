"""SphericalConvolution: a sparse filter at every longitude of a field that is split over a 2-D grid of ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

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
    Sparse,
    Tensor,
    Trials,
    close,
)
from pkb_gym.engine.problem.rules import all_of, norm_close

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor | None]"

MAX_ENTRIES = 8
"""In one row of the filter, under protocol "robust"."""


def shares(size: int, number: int) -> list[int]:
    """Lengths of the pieces: all equal but the last, which is shorter, or longer where it would be empty."""
    if number == 1:
        return [size]
    piece = -(-size // number)
    if size - piece * (number - 1) <= 0:
        piece = size // number
    return [piece] * (number - 1) + [size - piece * (number - 1)]


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the grid of ranks (rank = q * A + a), its groups, this rank's blocks, and the entries of its filter."""
    A = ax.number_or_none("A") or (2 if ax.W % 2 == 0 else 1)
    if ax.W % A:
        raise SizeError(f"axis A={A} must divide W={ax.W}")
    Q = ax.W // A
    a, q = ax.r % A, ax.r // A
    ax.divide("nlon_in", by="nlon_out")
    for channels in ("Cin", "Cout"):
        ax.divide(channels, by="groups")
    for name, number in (("Cin", A), ("nlon_in", A), ("nlon_out", A), ("nlat_in", Q), ("nlat_out", Q)):
        if ax.number(name) < number:
            raise SizeError(f"axis {name}={ax.number(name)} must be at least the {number} ranks that share it")
    Hl, Wl = shares(ax.nlat_in, Q)[q], shares(ax.nlon_in, A)[a]
    row = min(ax.per_row, Hl * ax.nlon_in)
    world = range(ax.W)
    return {
        "A": A,
        "Q": Q,
        "a": a,
        "q": q,
        "Hl": Hl,
        "Wl": Wl,
        "Cg": ax.Cin // ax.groups,
        "Ca": shares(ax.Cin, A)[a],
        "Hq": shares(ax.nlat_out, Q)[q],
        "Wa": shares(ax.nlon_out, A)[a],
        "columns": Hl * ax.nlon_in,
        "nnz": ax.ints("nnz_by_rank")[ax.r] if "nnz_by_rank" in ax else ax.K * ax.nlat_out * row,
        # None means all ranks, where that is what the group is.
        "azimuth_group": None if Q == 1 else tuple(tuple(world[first : first + A]) for first in range(0, ax.W, A)),
        "polar_group": None if A == 1 else tuple(tuple(world[first::A]) for first in range(A)),
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing cycles through coarser longitudes, groups, no bias, other grids, uneven shares, filled filters.

    Shares are uneven along the latitudes on one trial, and on another along the longitudes and of the channels.
    """
    if draw.timed:
        return {}
    channels = ax.Cin + ax.Cin // 2 + 1
    more = {"Cin": channels, "Cout": 2 * ax.Cout, "groups": 1}
    grouped = 2 if ax.Cin % 4 == 0 and ax.Cout % 2 == 0 else 1
    coarse = {"nlon_out": ax.nlon_out // 2} if ax.nlon_out % 2 == 0 and ax.nlon_out >= 2 * ax.W else {}
    latitudes = {"nlat_in": ax.nlat_in + 1, "nlat_out": ax.nlat_out + 1}
    longitudes = {"nlon_in": ax.nlon_in + 1, "nlon_out": ax.nlon_in + 1}
    modes: tuple[dict[str, AxisValue], ...] = (
        {},
        {"groups": grouped, **coarse, "has_bias": False, "nlat_out": ax.nlat_out + ax.W},
        {**more, **latitudes, **longitudes, "A": ax.W if channels >= ax.W else ax["A"]},
        {"groups": grouped, "A": 1, **latitudes, **coarse},
    )
    changes = modes[draw.trial % len(modes)]
    rows = ax.K * ax.replace(**changes).nlat_out
    counts = tuple(draw.randint(rows * MAX_ENTRIES // 4, rows * MAX_ENTRIES * 3 // 4) for _ in range(ax.W))
    return changes | {"nnz_by_rank": counts}


def random_pattern(make: InputMaker) -> torch.Tensor:
    """Indices (3, nnz) of a filter with some entries in every row (none in few), in random columns, sorted.

    Distinct sorted columns are drawn as numbers that may be equal, the i-th of which is then moved on by i.
    """
    import torch

    ax = make.ax
    rows = ax.K * ax.nlat_out
    most = min(max(MAX_ENTRIES, -(-ax.nnz // max(1, rows))), ax.columns)
    columns = make.randint(0, ax.columns - most + 1, rows, most).sort(dim=1).values
    columns += torch.arange(most, device=make.device)
    # Full rows and sparse ones: each row has a weight of its own.
    order = (make.rand(rows, most) / (0.05 + make.rand(rows, 1))).flatten().argsort()
    stored = order[: ax.nnz].sort().values
    row = stored // most
    return torch.stack([row // ax.nlat_out, row % ax.nlat_out, columns.flatten()[stored]])


def robust_inputs(make: InputMaker) -> Inputs:
    """All normal and different on every rank, the places of the filter's entries too; outputs are of order 1."""
    ax = make.ax
    indices = random_pattern(make)
    values = make.randn(ax.nnz) * max(1.0, ax.Q * ax.nnz / (ax.K * ax.nlat_out)) ** -0.5
    weight = make.normal("weight", std=(ax.Cg * ax.K) ** -0.5)
    return make.normal("x"), (indices, values), weight, make.normal("bias") if ax.flag("has_bias") else None


def published_inputs(make: InputMaker) -> Inputs:
    """Normal values of std 0.05 at places that follow a closed form: latitude o, longitudes o + e (k + 1)."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 62_000 + make.rank + 1_000_003 * make.trial)
    x, weight = stream.normal("x"), stream.normal("weight")
    bias = stream.normal("bias") if ax.flag("has_bias") else None
    per_row = min(ax.per_row, ax.columns)
    k = torch.arange(ax.K, device=make.device).view(-1, 1, 1)
    o = torch.arange(ax.nlat_out, device=make.device).view(1, -1, 1)
    e = torch.arange(per_row, device=make.device).view(1, 1, -1)
    column = (o % ax.Hl) * ax.nlon_in + (o + e * (k + 1)) % ax.nlon_in
    column = column.sort(dim=2).values
    indices = torch.stack([part.expand_as(column).flatten() for part in (k, o, column)])
    return x, (indices, stream.randn(ax.nnz) * 0.05), weight, bias


def cost(ax: Axes) -> Cost:
    """The filter at all positions of this rank's share of the channels, then the mixing of its output block.

    Partial sums of a rank's output block may be added by the switch on their way in, and a switch that multicasts takes
    a rank's field once; every other route takes more: gathering all fields, reducing all blocks, or each over one of
    the two groups.
    """
    field = ax.B * ax.Cin * ax.Hl * ax.Wl
    block = ax.B * ax.Cout * ax.Hq * ax.Wa
    return Cost(
        vector_flops=2 * ax.nnz * ax.B * ax.Cin / ax.A * ax.nlon_out,
        matrix_flops=2 * block * ax.Cg * ax.K,
        memory_bytes=4 * field + ax.nnz * (4 + 24) + 4 * block,
        link_in_bytes=4 * min(block, (ax.W - 1) * field),
        link_out_bytes=4 * min(field, (ax.W - 1) * block),
    )


def least_work(ax: Axes) -> Cost:
    """Of each entry of the filter the value and the column."""
    base = cost(ax)
    return replace(base, memory_bytes=base.memory_bytes - 16 * ax.nnz)


PROBLEM = Problem(
    name="SphericalConvolution",
    upstream="62_torchharmonics_spherical_convolution",
    category="geometric_spatial",
    origin="torch-harmonics (NVIDIA): distributed discrete-continuous convolution on the sphere",
    summary=(
        "A spherical convolution of a latitude-longitude field split over a 2-D grid of ranks, with a sparse filter "
        "tensor applied at every longitude."
    ),
    weaknesses=(
        "The filter's entries lie at places that follow a closed form, so that its indices may be ignored; "
        "coarser output longitudes, groups and no bias are never run.",
    ),
    no_capture_because="The host never waits, but torch invalidates the capture in the middle of the call.",
    tags=("all_to_all", "all_reduce", "sparse", "subgroups"),
    dtypes=("float32",),
    # A None is 2 where W is even.
    sizes={
        "tiny": {
            "A": None,
            "B": 2,
            "Cin": 4,
            "Cout": 4,
            "groups": 1,
            "K": 3,
            "nlat_in": 8,
            "nlat_out": 8,
            "nlon_in": 16,
            "nlon_out": 16,
            "per_row": 4,
            "has_bias": True,
        },
        "published": {
            "A": None,
            "B": 32,
            "Cin": 8,
            "Cout": 8,
            "groups": 1,
            "K": 3,
            "nlat_in": 128,
            "nlat_out": 128,
            "nlon_in": 256,
            "nlon_out": 256,
            "per_row": 4,
            "has_bias": True,
        },
        "large": {
            "A": None,
            "B": 2,
            "Cin": 64,
            "Cout": 64,
            "groups": 1,
            "K": 3,
            "nlat_in": 512,
            "nlat_out": 512,
            "nlon_in": 1024,
            "nlon_out": 1024,
            "per_row": 4,
            "has_bias": True,
        },
    },
    args=(
        Tensor(
            "x", ("B", "Cin", "Hl", "Wl"), about="this rank's latitudes (block q of Q) and longitudes (block a of A)"
        ),
        Sparse(
            "psi",
            ("K", "nlat_out", "columns"),
            nnz="nnz",
            about="the filter on this rank's input latitudes, column = latitude * nlon_in + longitude; differs by rank",
        ),
        Tensor("weight", ("Cout", "Cg", "K"), about="channel mixing; differs by rank, every rank uses its own"),
        Scalar("groups", "int", about="of channels, for the mixing"),
        Scalar("nlon_out", "int", about="longitudes of the output"),
        Scalar("nlon_in", "int", about="longitudes of the input, a multiple"),
        Group("azimuth_group", about="the A ranks that share latitudes; None means all ranks"),
        Group("polar_group", about="the Q ranks that share longitudes; None means all ranks"),
        Tensor("bias", ("Cout",), optional="has_bias", about="differs by rank, every rank uses its own"),
    ),
    outputs=(
        Output(
            "out",
            ("B", "Cout", "Hq", "Wa"),
            # In float32 1e-4 of the root mean square, and 5e-6 of the norm, where other orders of sums are off by 1e-7
            # and 16 bits on the link by 9e-6 and more.
            check=all_of((close(atol_rms=0.1), norm_close(5e-3))),
            about="this rank's block of the output field",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The own block depends on every foreign field: as many numbers come in as the block has, or as the fields "
        "have. Filter and mixing may change places, and rows of a sorted filter need not be read.",
        of=("memory", "link"),
        work=least_work,
    ),
)
