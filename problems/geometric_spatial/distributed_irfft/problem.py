"""DistributedIRFFT: half a spectrum that is split by rows becomes a real image that is split by columns."""

from __future__ import annotations

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
    SizeError,
    Tensor,
    Trials,
    close,
    with_link,
)

if TYPE_CHECKING:
    import torch

LAYOUTS = {"bchw": (-2, -1), "bhcw": (1, 3), "hcbw": (0, -1), "bhw": (1, 2), "hw": (0, 1)}
"""Order of the batch axes, rows and columns in memory -> dim; columns are always last."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the rows of one rank, image lengths, the shapes in this layout, and the default group."""
    layout = ax.one_of("layout", LAYOUTS)
    ax = ax.replace(Hl=ax.divide("H", by="W"))
    # Without s the number of rows is the local one.
    n0, n1 = (ax.Hl, 2 * (ax.Wc - 1)) if ax["n1"] is None else (ax.n0, ax.n1)
    if n1 < ax.Wc:
        raise SizeError(f"axis n1={n1} must be at least Wc={ax.Wc}")
    sizes = {"b": ax.B, "c": ax.C, "w": ax.Wc, "h": ax.Hl}
    image = sizes | {"w": ax.replace(n1=n1).divide("n1", by="W"), "h": n0}
    return {
        "Hl": ax.Hl,
        "n0": n0,
        "n1": n1,
        "images": prod(sizes[letter] for letter in layout if letter in "bc"),
        "columns": image["w"],
        "x_shape": tuple(sizes[letter] for letter in layout),
        "y_shape": tuple(image[letter] for letter in layout),
        "s": None if ax["n1"] is None else (n0, n1),
        "dim": LAYOUTS[layout],
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing cycles through norms, layouts, padding and cropping of rows and columns, and no `s`.

    Odd n1 is run on one rank, which alone divides it.
    """
    if draw.timed or draw.trial == 0:
        return {}
    n1 = ax.number_or_none("n1") or 2 * (ax.Wc - 1)
    n0 = ax.number_or_none("n0") or ax.H
    wider = n1 + ax.W * draw.randint(1, max(1, n1 // ax.W // 4))
    fewer = draw.randint(1, max(1, n0 // 3))
    modes: tuple[dict[str, AxisValue], ...] = (
        {"layout": "hcbw", "norm": "forward"},
        {"n1": wider, "n0": n0 + fewer, "norm": "backward", "layout": "bhcw"},
        {"n1": None, "n0": None, "norm": "forward", "layout": "bhw", "Wc": n1 // 2 + 1},
        {"n0": n0 - fewer, "n1": n1, "Wc": min(n1, n1 // 2 + 1 + fewer), "layout": "hw"},
        {"n1": n1 + 1 if ax.W == 1 else n1, "n0": n0, "norm": "backward"},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Normal real and imaginary parts that differ by rank; the columns 0 and n1/2 are not Hermitian."""
    import torch

    shape, _ = make.spec("x")
    return (torch.complex(make.randn(*shape), make.randn(*shape)),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """This rank's rows of the spectrum of a real image that every rank draws from the published seed."""
    import torch

    ax = make.ax
    image = make.seeded(42 + 60_000 + 1_000_003 * make.trial).randn(ax.B, ax.C, ax.H, ax.n1)
    spectrum = torch.fft.rfft2(image, norm="ortho")
    return (spectrum[:, :, ax.r * ax.Hl : (ax.r + 1) * ax.Hl].contiguous(),)


def cost(ax: Axes) -> Cost:
    """FFTs with real output, half as long as complex ones; every rank's rows of each block of columns go to its owner.

    The gather of the baseline is not needed: the mirrored half adds to the real part what the stored half does, but for
    the columns 0 and n1/2. What a foreign rank's rows add to a block of columns takes no more numbers than the rows
    themselves, their transform along the row, or the block.
    """
    numbers = min(2 * ax.Hl * ax.Wc, 2 * ax.Hl * ax.columns, ax.n0 * ax.columns)
    link = 4 * ax.images * (ax.W - 1) * numbers
    first = min(ax.Hl, ax.n0) * ax.n1 * log2(ax.n1)
    second = ax.columns * ax.n0 * log2(ax.n0)
    return Cost(
        vector_flops=2.5 * ax.images * (first + second),
        memory_bytes=8 * prod(ax.ints("x_shape")) + 4 * prod(ax.ints("y_shape")),
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link what foreign rows add, or the columns themselves, as a switch may add the ranks' parts."""
    base = cost(ax)
    return with_link(base, min(base.link_in_bytes, 4 * ax.images * ax.n0 * ax.columns if ax.W > 1 else 0), 0)


PROBLEM = Problem(
    name="DistributedIRFFT",
    upstream="60_physicsnemo_distributed_irfft",
    category="geometric_spatial",
    origin="NVIDIA PhysicsNeMo: distributed 2-D inverse FFT of spatially model-parallel FourCastNet / SFNO",
    summary="The inverse of the distributed real FFT: a half spectrum split by frequency rows becomes a real image "
    "split by columns.",
    weaknesses=(
        "The spectrum is always that of a real image, with as many columns as fit: inconsistent self-conjugate bins, "
        "odd n1, padding and cropping never occur.",
    ),
    tags=("all_to_all", "all_gather", "fft", "complex"),
    dtypes=("float32",),
    # n0 and n1 None: s is None.
    sizes={
        "tiny": {"B": 2, "C": 2, "H": 16, "Wc": 13, "n0": 16, "n1": 24, "norm": "ortho", "layout": "bchw"},
        "published": {"B": 2, "C": 10, "H": 720, "Wc": 721, "n0": 720, "n1": 1440, "norm": "ortho", "layout": "bchw"},
        "large": {"B": 2, "C": 73, "H": 720, "Wc": 721, "n0": 720, "n1": 1440, "norm": "ortho", "layout": "bchw"},
    },
    args=(
        Tensor("x", "x_shape", dtype="complex64", about="rows r*Hl .. (r+1)*Hl-1 along dim[0], columns 0 .. Wc-1"),
        Scalar("s", "ints", optional=True, about="(n0, n1); None: (Hl, 2*(Wc-1)) with the local Hl; W divides n1"),
        Scalar("dim", "ints", about="(dim0, dim1), dim1 being the last axis; negative axes count from the end"),
        Scalar("norm", "str", about='"ortho", "forward" or "backward", of each of the two transforms'),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "y",
            "y_shape",
            # 2e-5 of the root mean square in float32; right transforms are off by 1e-6, 16 bits on the link by 6e-5.
            check=close(atol_rms=0.02),
            about="columns r*n1/W .. (r+1)*n1/W-1",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The own columns depend on every foreign row: as many numbers come in as these rows add, or as the columns "
        "have where that is less. FFTs have no known least work.",
        of=("memory", "link"),
        work=least_work,
    ),
)
