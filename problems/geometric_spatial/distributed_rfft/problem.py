"""DistributedRFFT: a 2-D real-to-complex FFT of an image that is split by columns; the result is split by rows."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod
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
    close,
)
from pkb_gym.engine.problem.rules import CheckContext, outside, rule, wide

if TYPE_CHECKING:
    import torch

LAYOUTS = {"bhw": (1, 2), "hbw": (0, 2), "wbh": (2, 0), "bwh": (-1, -2), "hw": (-2, -1)}
"""Order of batch, rows and columns in memory -> dim."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the columns of one rank, transform lengths, the shapes in this layout, and the default group."""
    layout = ax.one_of("layout", LAYOUTS)
    n0 = ax.H if ax["n0"] is None else ax.n0
    n1 = ax.width if ax["n1"] is None else ax.n1
    Wl, rows = ax.divide("width", by="W"), ax.replace(n0=n0).divide("n0", by="W")
    batch = 1 if layout == "hw" else ax.B
    sizes_in = {"b": batch, "h": ax.H, "w": Wl}
    sizes_out = {"b": batch, "h": rows, "w": n1 // 2 + 1}
    return {
        "n0": n0,
        "n1": n1,
        "Wl": Wl,
        "rows": rows,
        "batch": batch,
        "x_shape": tuple(sizes_in[letter] for letter in layout),
        "y_shape": tuple(sizes_out[letter] for letter in layout),
        "s": (n0, n1),
        "dim": LAYOUTS[layout],
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing cycles through norms, layouts, and lengths that pad or crop; n1 may be odd."""
    if draw.timed or draw.trial == 0:
        return {}
    rows = ax.number_or_none("n0") or ax.H
    step = draw.randint(1, max(1, rows // ax.W // 4)) * ax.W
    odd = draw.randrange(1, max(2, ax.width // 4), 2)
    modes: tuple[dict[str, AxisValue], ...] = (
        {"norm": "ortho"},
        {"norm": "backward", "layout": "hbw", "n0": rows + step, "n1": ax.width - odd},
        {"norm": "forward", "layout": "wbh", "n0": max(ax.W, rows - step), "n1": ax.width + odd},
        {"norm": "backward", "layout": "hw", "n1": ax.width + odd},
        {"norm": "ortho", "layout": "bwh", "n0": rows + step},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Normal values that differ by rank."""
    return (make.normal("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """This rank's columns of an image that every rank draws from the published seed."""
    ax = make.ax
    image = make.seeded(42 + 59_000 + 1_000_003 * make.trial).randn(ax.B, ax.H, ax.width)
    return (image[:, :, ax.r * ax.Wl : (ax.r + 1) * ax.Wl].contiguous(),)


def real_part_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks real parts that differ by more than 1e-2 + 1e-2 |expected|; imaginary parts are not looked at."""
    expected = wide(context.expected).real
    return outside(wide(got).real, expected, 1e-2 + 1e-2 * expected.abs())


def cost(ax: Axes) -> Cost:
    """Real-input FFTs, half as long as complex ones; rows of the complex intermediate go to their owners.

    Half the spectrum of a foreign column is of no use, as the rows k0 and n0 - k0 lie on different ranks. Columns
    behind n1 are cropped. Where few ranks take part or rows are padded, the real columns themselves are no more.
    """
    columns = max(0, min(ax.width, ax.n1) - min(ax.Wl, ax.n1))  # foreign ones that count
    numbers = min(2 * ax.rows, ax.H, ax.n0)
    link = 4 * ax.batch * columns * numbers
    first = ax.Wl * ax.n0 * log2(ax.n0)
    second = ax.rows * ax.n1 * log2(ax.n1)
    return Cost(
        vector_flops=2.5 * ax.batch * (first + second),
        memory_bytes=4 * ax.batch * min(ax.H, ax.n0) * ax.Wl + 8 * prod(ax.ints("y_shape")),
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """Columns that count; over the link what foreign ones add, or the rows themselves, as a switch may add parts."""
    base = cost(ax)
    own = max(0, min(ax.n1, (ax.r + 1) * ax.Wl) - ax.r * ax.Wl)
    return replace(
        base,
        memory_bytes=4 * ax.batch * min(ax.H, ax.n0) * own + 8 * prod(ax.ints("y_shape")),
        link_in_bytes=min(base.link_in_bytes, 8 * ax.batch * ax.rows * (ax.n1 // 2 + 1)),
        link_out_bytes=0,
    )


PROBLEM = Problem(
    name="DistributedRFFT",
    upstream="59_physicsnemo_distributed_rfft",
    category="geometric_spatial",
    origin="NVIDIA PhysicsNeMo: distributed 2-D FFT of spatially model-parallel FourCastNet / SFNO",
    summary="A 2-D real-to-complex FFT of an image split by columns over ranks; the result comes out split by rows.",
    weaknesses=("The comparison drops the imaginary part of the complex output, so that any imaginary part passes.",),
    tags=("all_to_all", "fft", "complex"),
    dtypes=("float32",),
    # n0 and n1 None are H and width.
    sizes={
        "tiny": {"B": 2, "H": 16, "width": 24, "n0": None, "n1": None, "norm": "ortho", "layout": "bhw"},
        "published": {"B": 16, "H": 1024, "width": 1024, "n0": None, "n1": None, "norm": "ortho", "layout": "bhw"},
        "large": {"B": 32, "H": 2048, "width": 2048, "n0": None, "n1": None, "norm": "ortho", "layout": "bhw"},
    },
    args=(
        Tensor("x", "x_shape", about="any rank >= 2; columns r*Wl .. (r+1)*Wl-1 along axis dim[1]"),
        Scalar("s", "ints", about="(n0, n1): pad with zeros or crop at the end; W divides n0"),
        Scalar("dim", "ints", about="(dim0, dim1): transformed first, and second; negative axes count from the end"),
        Scalar("norm", "str", about='"ortho", "forward" or "backward", of each of the two transforms'),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "y",
            "y_shape",
            dtype="complex64",
            # 2e-5 of the root mean square in float32, real and imaginary parts together; right ones are off by 1e-6,
            # 16 bits on the link by 6e-5.
            check=close(atol_rms=0.02),
            published=rule(real_part_mark, description="allclose(rtol=0.01, atol=0.01) of the real parts"),
            about="rows r*n0/W .. (r+1)*n0/W-1 along dim0, columns 0 .. n1//2 along dim1",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The own rows depend on every foreign column: as many numbers come in as these columns add, or as the rows "
        "have where that is less. FFTs have no known least work.",
        of=("memory", "link"),
        work=least_work,
    ),
)
