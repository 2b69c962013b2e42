"""Shared part of DDP, ZeRO1, ZeRO2 and FSDPStep: one Adam step of a two-layer MLP on a batch split over ranks.

The parameters in flat order are W1 (hid, d_in), b1 (hid), W2 (d_out, hid), b2 (d_out), each row-major: Pn elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from math import prod, sqrt
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, AxisValue, Cost, Draw, InputMaker, LeastWork, Stream, with_link
from pkb_gym.engine.problem.rules import Check, CheckContext, far, outside, rms, rule, wide

if TYPE_CHECKING:
    import torch

PARAMETERS = ("W1", "b1", "W2", "b2")

# n None: the global batch is fixed. eps None: an eighth of `gradient_scale`.
_CONSTANTS: dict[str, AxisValue] = {"lr": 2e-2, "beta1": 0.9, "beta2": 0.98, "eps": None, "step": 8}
SIZES: dict[str, dict[str, AxisValue]] = {
    "tiny": {"n": 16, "batch": None, "d_in": 32, "hid": 64, "d_out": 16, **_CONSTANTS},
    "published": {"n": None, "batch": 1024, "d_in": 256, "hid": 512, "d_out": 256, **_CONSTANTS},
    "large": {"n": 4096, "batch": None, "d_in": 2048, "hid": 8192, "d_out": 2048, **_CONSTANTS},
}


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds local rows, number of parameters and eps where the size leaves them open."""
    n = ax.n if ax["n"] is not None else -(-ax.batch // ax.W)
    eps = gradient_scale(ax.replace(n=n)) / 8 if ax["eps"] is None else ax["eps"]
    return {"n": n, "Pn": ax.hid * ax.d_in + ax.hid + ax.d_out * ax.hid + ax.d_out, "eps": eps}


def derive_sharded(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's share of the flat parameters too."""
    additions = derive(ax)
    return additions | {"part": ax.replace(**additions).divide("Pn", by="W")}


def gradient_scale(ax: Axes) -> float:
    """About the root mean square of the averaged gradient of W1 under `robust_inputs`; the others' are larger."""
    return 1.5 / (ax.d_out * sqrt(ax.n * ax.W))


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Draws beta2 (0.999 would be lost in bfloat16) and the step: the first one, or one of 8 .. 20.

    At step 2, and with a smaller beta2 later too, the two bias corrections nearly cancel. Odd checks have another lr
    and beta1, and every second of them a beta2 so small that the decay of a second moment shows, at step 8.
    """
    changes: dict[str, AxisValue] = {"step": 1 if draw.trial % 4 == 1 else draw.randint(8, 20)}
    changes["beta2"] = draw.uniform(0.975, 0.99)
    if draw.trial % 2 and not draw.timed:
        changes |= {"lr": ax.real("lr") * 1.5, "beta1": 0.88}
    if draw.trial % 4 == 3 and not draw.timed:
        changes |= {"step": 8, "beta2": draw.uniform(0.8, 0.85)}
    return changes


def vary_published(_: Axes, draw: Draw) -> dict[str, AxisValue]:
    """The published constants."""
    return {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": 1 + draw.trial % 7}


def parameter_std(ax: Axes) -> dict[str, float]:
    """Standard deviation of each parameter, so that both layers' gradients have about one size."""
    return {"W1": ax.d_in**-0.5, "b1": 0.1, "W2": ax.hid**-0.5, "b2": 0.1}


FEW_SAMPLES = 256
"""Samples of all ranks of which each is a large share of the gradient."""

BIAS_MARGIN = 2.0**-7
"""Share of a bias: a product of that size that is rounded to 16 bits before the bias is added errs by half as much."""


def samples(make: InputMaker, first_layer: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """This rank's standard normal rows.

    Where they are few, a row that brings a hidden unit so near to zero that rounding decides its sign is drawn again:
    with the other sign, the row is missing in that unit's gradient.

    Args:
        make: Maker of the inputs.
        first_layer: Function to W1 and b1 of the network.
    """
    rows = make.normal("X_local")
    if make.ax.n * make.ax.W > FEW_SAMPLES:
        return rows
    weight, bias = (parameter.float() for parameter in first_layer())
    while True:
        near = ((rows.float() @ weight.T + bias).abs() <= BIAS_MARGIN * bias.abs()).any(dim=1)
        if not near.any():
            return rows
        rows[near] = make.normal("X_local")[near]


def rank_parameters(make: InputMaker, rank: int) -> list[torch.Tensor]:
    """The parameters that a rank draws; other ranks can draw them too."""
    stream, std = make.stream("parameters", rank), parameter_std(make.ax)
    return [stream.normal(name, std[name]) for name in PARAMETERS]


def replica_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Rows, targets, and parameters of each rank's own, so that stale ones must be overwritten by rank 0's."""

    def first_layer() -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias, *_ = rank_parameters(make, 0)
        return weight, bias

    return samples(make, first_layer), make.normal("y_local"), *rank_parameters(make, make.rank)


def rank_shard(make: InputMaker, rank: int) -> torch.Tensor:
    """A rank's slice of one whole network's flat parameters; other ranks can draw it too."""
    shard, std = make.stream("parameters", rank).normal("flat_param_shard"), parameter_std(make.ax)
    for name, where in own_pieces(make.ax.replace(r=rank)):
        shard[where] *= std[name]
    return shard


def first_layer_of_shards(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """W1 and b1 of the network that the ranks' slices make."""
    import torch

    flat = torch.cat([rank_shard(make, rank) for rank in range(make.world_size)])
    shape, *_ = parameter_shapes(make.ax)
    end = prod(shape)
    return flat[:end].view(shape), flat[end : end + make.ax.hid]


def first_moment(make: InputMaker, name: str) -> torch.Tensor:
    """Normal, a tenth of the gradient's scale."""
    return make.normal(name, 0.1 * gradient_scale(make.ax))


def second_moment(make: InputMaker, name: str) -> torch.Tensor:
    """Positive, so that no update hangs on the sign of a tiny gradient; as large as what a gradient adds."""
    unit = (1 - make.ax.real("beta2")) * gradient_scale(make.ax) ** 2
    return make.uniform(name, 0.5 * unit, 2 * unit)


def published_batch(make: InputMaker, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of a standard normal global batch: inputs, targets."""
    ax = make.ax
    rows = slice(ax.r * ax.n, (ax.r + 1) * ax.n)
    features, targets = stream.randn(ax.W * ax.n, ax.d_in), stream.randn(ax.W * ax.n, ax.d_out)
    return features[rows].to(make.dtype), targets[rows].to(make.dtype)


def parameter_shapes(ax: Axes) -> tuple[tuple[int, ...], ...]:
    """Shapes of W1, b1, W2, b2."""
    return (ax.hid, ax.d_in), (ax.hid,), (ax.d_out, ax.hid), (ax.d_out,)


def published_parameters(make: InputMaker, stream: Stream) -> list[torch.Tensor]:
    """Standard normal on rank 0, zeros elsewhere."""
    import torch

    shapes = parameter_shapes(make.ax)
    drawn = [stream.randn(*shape) for shape in shapes]
    return [(p if make.rank == 0 else torch.zeros_like(p)).to(make.dtype) for p in drawn]


def own_pieces(ax: Axes) -> Iterator[tuple[str, slice]]:
    """The parameters that this rank's slice of the flat ones has a part of, and where in the slice that lies."""
    first, last = ax.r * ax.part, (ax.r + 1) * ax.part
    ends = list(accumulate(prod(shape) for shape in parameter_shapes(ax)))
    for name, start, end in zip(PARAMETERS, [0, *ends], ends, strict=False):
        if max(start, first) < min(end, last):
            yield name, slice(max(start, first) - first, min(end, last) - first)


def sharded_state_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Inputs of `replica_inputs`, with moments of each rank's part."""
    return *replica_inputs(make), first_moment(make, "exp_avg_part"), second_moment(make, "exp_avg_sq_part")


def published_sharded_state_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Standard normal data and, on rank 0, parameters; all moments 0."""
    import torch

    stream = make.seeded(42 + 1000 * make.problem.number + 1_000_003 * make.trial)
    batch = published_batch(make, stream)
    zeros = torch.zeros(make.ax.part, dtype=make.dtype, device=make.device)
    return *batch, *published_parameters(make, stream), zeros, zeros.clone()


# Tolerances. A float32 evaluation of the whole step, or another order of the sums, uses a third or half of each.
# Norms of errors spread the more the fewer the elements, hence the second number of each pair:
# ||error|| <= (rel[0] + rel[1] / sqrt(elements)) ||out||. Single elements may differ by about an ulp, and by a share
# of the root mean square of what is averaged or changes, as sums of 16-bit gradients cancel: of the elements of an
# evaluation some by four times as much as the worst of 10^5. Few elements carry the norm of a second moment: more room.

Rel = tuple[float, float]
Start = Callable[[CheckContext], "torch.Tensor"]
Cut = Callable[[CheckContext], "list[slice]"]

CHANGE: Rel = (4.5e-2, 1.6)
VALUE: Rel = (1e-2, 0.2)


def whole(_: CheckContext) -> list[slice]:
    """A tensor that belongs to one parameter."""
    return [slice(None)]


def by_parameter(context: CheckContext) -> list[slice]:
    """A rank's slice of the flat parameters or of a moment, cut at their borders: they differ in scale."""
    return [where for _, where in own_pieces(context.ax)]


def root_value(name: str, context: CheckContext) -> torch.Tensor:
    """Rank 0's value of a parameter."""
    return context.tensor(name, rank=0)


def updated(start: Start, cut: Cut = whole, rel: Rel = CHANGE) -> Check:
    """Rule for parameters after the step; `start` gives them as they were before."""
    mark = partial(_mark_updated, start=start, cut=cut, rel=rel)
    value = f"({VALUE[0]:g} + {VALUE[1]:g} / sqrt(elements)) ||out||"
    change = f"({rel[0]:g} + {rel[1]:g} / sqrt(elements)) ||change||"
    return rule(mark, f"||error|| <= {value} and {change}; |error| <= 2^-7 |out| + 0.4 rms(change)")


def averaged_gradient(cut: Cut = whole) -> Check:
    """Rule for a first moment after the step."""
    return _averaged(2.0**-6, (1.2e-2, 0.04), cut)


def averaged_square(cut: Cut = whole) -> Check:
    """Rule for a second moment after the step."""
    return _averaged(2.0**-5, (2.5e-2, 0.6), cut)


def _averaged(rtol: float, rel: Rel, cut: Cut) -> Check:
    mark = partial(_mark_averaged, rtol=rtol, rel=rel, cut=cut)
    norm = f"({rel[0]:g} + {rel[1]:g} / sqrt(elements)) ||out||"
    return rule(mark, f"||error|| <= {norm}; |error| <= {rtol:.3g} |out| + 0.2 rms(out)")


def _mark_updated(got: torch.Tensor, context: CheckContext, *, start: Start, cut: Cut, rel: Rel) -> torch.Tensor:
    expected = wide(context.expected)
    change = expected - wide(start(context))
    norms = _far(got, expected, expected, VALUE) | _far(got, expected, change, rel)
    return _outside_pieces(got, expected, change, cut(context), 2.0**-7, 0.4) | norms


def _mark_averaged(got: torch.Tensor, context: CheckContext, *, rtol: float, rel: Rel, cut: Cut) -> torch.Tensor:
    expected = wide(context.expected)
    return _outside_pieces(got, expected, expected, cut(context), rtol, 0.2) | _far(got, expected, expected, rel)


def _far(got: torch.Tensor, expected: torch.Tensor, unit: torch.Tensor, rel: Rel) -> torch.Tensor:
    """Whether ||got - expected|| is too large beside ||unit||."""
    import torch

    bound = (rel[0] + rel[1] / sqrt(max(1, unit.numel()))) * torch.linalg.vector_norm(unit)
    return far(wide(got), expected, bound)


def _outside_pieces(
    got: torch.Tensor, expected: torch.Tensor, unit: torch.Tensor, pieces: list[slice], rtol: float, share: float
) -> torch.Tensor:
    """Marks |got - expected| > rtol |expected| + share rms(unit), with the rms of each piece by itself.

    Pieces too short to estimate their scale take that of the whole.
    """
    import torch

    marks = []
    for piece in pieces:
        scale = rms(unit[piece]) if unit[piece].numel() >= 16 else rms(unit)
        bound = rtol * expected[piece].abs() + share * scale
        marks.append(outside(wide(got[piece]), expected[piece], bound))
    return torch.cat(marks)


def sharded_state_cost(ax: Axes) -> Cost:
    """ZeRO: gradients are reduce-scattered by the endpoints, the state is updated in parts, parameters are gathered.

    Ranks but 0 get the parameters over the link, and need not read their stale ones.
    """
    flat, part = ax.itemsize * ax.Pn, ax.itemsize * ax.part
    foreign = flat - part
    root, linked = ax.r == 0, ax.W > 1
    return Cost(
        matrix_flops=matrix_flops(ax),
        vector_flops=elementwise_flops(ax) + (15 + ax.W - 1) * ax.part,
        memory_bytes=batch_bytes(ax) + (2 if root else 1) * flat + 4 * part,
        link_in_bytes=2 * foreign + (0 if root else flat),
        # A switch that multicasts takes the old parameters, and each rank's new ones, once.
        link_out_bytes=linked * (foreign + part + (flat if root else 0)),
    )


def _sharded_state_least_work(ax: Axes) -> Cost:
    """Over the link rank 0's parameters out, and elsewhere the new ones and a slice of gradients in."""
    flat, part = ax.itemsize * ax.Pn, ax.itemsize * ax.part
    root, linked = ax.r == 0, ax.W > 1
    return with_link(sharded_state_cost(ax), linked * (0 if root else flat + part), linked * (flat if root else 0))


SHARDED_STATE_LEAST_WORK = LeastWork(
    "Except on rank 0, all new parameters are unknown until they have come in, and so is the gradient of the own "
    "slice. Gradients can be replaced by the batch that they come from.",
    work=_sharded_state_least_work,
)


def matrix_flops(ax: Axes) -> int:
    """The five products of forward and backward."""
    return 2 * ax.n * ax.hid * (2 * ax.d_in + 3 * ax.d_out)


def elementwise_flops(ax: Axes) -> int:
    """Activation, loss and bias gradients of the local rows."""
    return 4 * ax.n * (ax.hid + ax.d_out)


def batch_bytes(ax: Axes) -> int:
    """The local rows of X and y."""
    return ax.itemsize * ax.n * (ax.d_in + ax.d_out)
