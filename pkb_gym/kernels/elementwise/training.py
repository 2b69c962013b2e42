"""Naive kernels of sharded training: every rank computes what it needs of all ranks' work, and reads it in place."""

from __future__ import annotations

from collections.abc import Mapping

from pkb_gym.kernels.element_kernel import ElementKernel, Step, named, number

MLP_SIZES = """
const int64_t n = X_local.size(0), d_in = X_local.size(1), hid = $hid, d_out = y_local.size(1);
const int64_t rows = comm.world_size * n, parameters = hid * d_in + hid + d_out * hid + d_out;
const double correction1 = 1 - std::pow(beta1, double(step)), correction2 = 1 - std::pow(beta2, double(step));
"""

ALL_SIZES = tuple(number(name, name) for name in ("n", "d_in", "hid", "d_out"))

FORWARD_AND_BACKWARD = (
    Step(
        "first_layer",
        reads=("x", "flat"),
        writes=("hidden",),
        values=ALL_SIZES,
        body="""
        const int64_t row = i / hid, unit = i % hid;  // rows of all ranks
        const T *sample = comm.peer(x, int(row / n)) + row % n * d_in, *weight = flat + unit * d_in;
        Sum<T> sum = Sum<T>(flat[hid * d_in + unit]);
        for (int64_t k = 0; k < d_in; ++k) sum += Sum<T>(sample[k]) * Sum<T>(weight[k]);
        hidden[i] = T(sum > 0 ? sum : Sum<T>(0));
        """,
        calls=((named("flat", "hidden", x="X_local"), "rows * hid"),),
    ),
    Step(
        "gradient_of_outputs",
        reads=("y", "flat", "hidden"),
        writes=("d_outputs",),
        values=ALL_SIZES,
        body="""
        const int64_t row = i / d_out, o = i % d_out, W2 = hid * d_in + hid;
        Sum<T> sum = Sum<T>(flat[W2 + d_out * hid + o]);
        for (int64_t k = 0; k < hid; ++k) sum += Sum<T>(hidden[row * hid + k]) * Sum<T>(flat[W2 + o * hid + k]);
        d_outputs[i] = T(2 * (sum - Sum<T>(comm.peer(y, int(row / n))[row % n * d_out + o])) / Sum<T>(n * d_out));
        """,
        calls=((named("flat", "hidden", "d_outputs", y="y_local"), "rows * d_out"),),
    ),
    Step(
        "gradient_of_hidden",
        reads=("flat", "hidden", "d_outputs"),
        writes=("d_hidden",),
        values=ALL_SIZES,
        body="""
        const int64_t row = i / hid, unit = i % hid;
        const T* weight = flat + hid * d_in + hid + unit;
        Sum<T> sum = 0;
        for (int64_t o = 0; o < d_out; ++o) sum += Sum<T>(d_outputs[row * d_out + o]) * Sum<T>(weight[o * hid]);
        d_hidden[i] = T(Sum<T>(hidden[i]) > 0 ? sum : Sum<T>(0));
        """,
        calls=((named("flat", "hidden", "d_outputs", "d_hidden"), "rows * hid"),),
    ),
)

UPDATE = """
const int64_t f = first + i, place = f % part;  // of the flat parameters, and of their owner's slice
const int owner = int(f / part);
const int64_t b1 = hid * d_in, W2 = b1 + hid, b2 = W2 + d_out * hid;
// The gradient is a sum over rows of a product, or of one factor for a bias.
const bool first_layer = f < W2, is_bias = first_layer ? f >= b1 : f >= b2;
const int64_t stride = first_layer ? hid : d_out, inner = first_layer ? d_in : hid;
const int64_t at = f - (first_layer ? (is_bias ? b1 : 0) : (is_bias ? b2 : W2));
const T* slopes = (first_layer ? d_hidden : d_outputs) + (is_bias ? at : at / inner);
Sum<T> gradient = 0;
for (int64_t row = 0; row < comm.world_size * n; ++row) {
  const T* inputs = first_layer ? comm.peer(x, int(row / n)) + row % n * d_in : hidden + row * hid;
  gradient += Sum<T>(slopes[row * stride]) * (is_bias ? Sum<T>(1) : Sum<T>(inputs[at % inner]));
}
gradient /= comm.world_size;
const Sum<T> m = Sum<T>(beta1) * Sum<T>(comm.peer(moment, owner)[place]) + Sum<T>(1 - beta1) * gradient;
const Sum<T> v = Sum<T>(beta2) * Sum<T>(comm.peer(square, owner)[place]) + Sum<T>(1 - beta2) * gradient * gradient;
const Sum<T> step = m / Sum<T>(correction1) / (sqrt(v / Sum<T>(correction2)) + Sum<T>(eps));
const Sum<T> old = Sum<T>(flat[f]);
updated[i] = T(old - Sum<T>(lr) * step - Sum<T>(lr * decay) * old);
if (owner == comm.rank) {
  new_moment[place] = T(m);
  new_square[place] = T(v);
}
"""


def _update(first: str, count: str, decay: str, part: str, tensors: Mapping[str, str]) -> Step:
    """Updates parameters.

    Args:
        first: First of the flat parameters.
        count: Number of parameters.
        decay: Weight decay.
        part: Number of parameters of a rank's slice.
        tensors: Moments, and where results belong.
    """
    scalars = ("lr", "beta1", "beta2", "eps", "correction1", "correction2")
    names = ("flat", "hidden", "d_outputs", "d_hidden")
    return Step(
        "update",
        reads=("x", *names, "moment", "square"),
        writes=("updated", "new_moment", "new_square"),
        values=(
            *ALL_SIZES,
            number("first", first),
            number("part", part),
            *(("double", name, name) for name in scalars),
            ("double", "decay", decay),
        ),
        body=UPDATE,
        calls=((named(*names, x="X_local", **tensors), count),),
    )


WORKSPACE = (
    ("flat", "parameters"),
    ("hidden", "rows * hid"),
    ("d_outputs", "rows * d_out"),
    ("d_hidden", "rows * hid"),
)

IDEA = (
    "every rank runs the step for the rows of all ranks, which it reads in place, with all parameters, and updates "
    "those that it needs"
)

PARAMETERS = (("W1", "0"), ("b1", "hid * d_in"), ("W2", "hid * d_in + hid"), ("b2", "hid * d_in + hid + d_out * hid"))
"""Tensors and where they begin in the flat parameters."""


def _zero(problem: str) -> ElementKernel:
    """A step whose parameters are rank 0's, and go to all ranks."""
    of_state = {"moment": "exp_avg_part", "square": "exp_avg_sq_part"}
    results = {"updated": "updated", "new_moment": "new_exp_avg_part", "new_square": "new_exp_avg_sq_part"}
    return ElementKernel(
        problem,
        idea=IDEA,
        dtype_of="X_local",
        setup=MLP_SIZES.replace("$hid", "W1.size(0)"),
        workspace=(*WORKSPACE, ("updated", "parameters")),
        steps=(
            Step(
                "fetch",
                reads=("x",),
                writes=("y",),
                body="y[i] = comm.peer(x, 0)[i];",
                calls=tuple(({"x": name, "y": f"flat + {begin}"}, f"{name}.numel()") for name, begin in PARAMETERS),
            ),
            *FORWARD_AND_BACKWARD,
            _update("0", "parameters", "0.0", "exp_avg_part.numel()", of_state | results),
            Step(
                "store",
                reads=("x",),
                writes=("y",),
                body="y[i] = x[i];",
                calls=tuple(
                    ({"x": f"updated + {begin}", "y": f"new_{name}"}, f"{name}.numel()") for name, begin in PARAMETERS
                ),
            ),
        ),
    )


FSDP_STEP = ElementKernel(
    "FSDPStep",
    idea=IDEA,
    dtype_of="X_local",
    setup=MLP_SIZES.replace("$hid", "param_shapes[0][0]") + "const int64_t part = flat_param_shard.numel();\n",
    workspace=WORKSPACE,
    steps=(
        Step(
            "fetch",
            reads=("x",),
            writes=("y",),
            values=(number("part", "part"),),
            body="y[i] = comm.peer(x, int(i / part))[i % part];",
            calls=(({"x": "flat_param_shard", "y": "flat"}, "parameters"),),
        ),
        *FORWARD_AND_BACKWARD,
        _update(
            "comm.rank * part",
            "part",
            "weight_decay",
            "part",
            {
                "moment": "exp_avg_shard",
                "square": "exp_avg_sq_shard",
                "updated": "theta",
                "new_moment": "m",
                "new_square": "v",
            },
        ),
    ),
)

FSDP_TENSOR_PARALLEL = ElementKernel(
    "FSDPTensorParallel",
    idea="every rank computes the whole hidden layer for its rows from all pieces of the weights, which it reads in "
    "place, and its rows of the result from it",
    dtype_of="x_local",
    setup="""
    const int64_t rows = x_local.size(0), D = x_local.size(1), Dj = W1_shard.size(0), Ft = W1_shard.size(1);
    const int64_t F = Ft * n_tp;
    """,
    workspace=(("hidden", "rows * F"),),
    steps=(
        Step(
            "hidden_layer",
            reads=("x", "W1", "W2"),
            writes=("y",),
            values=tuple(number(name, name) for name in ("D", "Dj", "Ft", "F", "n_tp")),
            body="""
            const int64_t row = i / F, f = i % F;
            Sum<T> gate = 0, up = 0;
            for (int64_t k = 0; k < D; ++k) {
              const int r = int(k / Dj * n_tp + f / Ft);
              const int64_t at = k % Dj * Ft + f % Ft;
              gate += Sum<T>(x[row * D + k]) * Sum<T>(comm.peer(W1, r)[at]);
              up += Sum<T>(x[row * D + k]) * Sum<T>(comm.peer(W2, r)[at]);
            }
            y[i] = T(gate / (1 + exp(-gate)) * up);
            """,
            calls=(({"x": "x_local", "W1": "W1_shard", "W2": "W2_shard", "y": "hidden"}, "rows * F"),),
        ),
        Step(
            "multiply",
            reads=("x", "W3"),
            writes=("y",),
            values=tuple(number(name, name) for name in ("D", "Dj", "Ft", "F", "n_tp")),
            body="""
            const int64_t row = i / D, column = i % D;
            Sum<T> sum = 0;
            for (int64_t f = 0; f < F; ++f) {
              const int r = int(column / Dj * n_tp + f / Ft);
              sum += Sum<T>(x[row * F + f]) * Sum<T>(comm.peer(W3, r)[f % Ft * Dj + column % Dj]);
            }
            y[i] = T(sum);
            """,
            calls=(({"x": "hidden", "W3": "W3_shard", "y": "out"}, "out.numel()"),),
        ),
    ),
)

CONV3D = ElementKernel(
    "Conv3dAllReduce",
    idea="every element is a sum over its window and the channels of all ranks, whose inputs and filters it reads in "
    "place",
    dtype_of="input",
    group="group",
    declarations="""
    struct Triple {
      int64_t t, h, w;
    };
    """,
    setup="""
    const pkb::Group members = comm.group(group);
    const auto spatial = [](const tvm::ffi::TensorView& x) { return Triple{x.size(2), x.size(3), x.size(4)}; };
    """,
    steps=(
        Step(
            "convolve",
            reads=("x", "weight", "bias"),
            writes=("y",),
            values=(
                number("C", "input.size(1)"),
                number("Co", "weight.size(0)"),
                number("groups", "groups"),
                ("Triple", "size", "spatial(input)"),
                ("Triple", "kernel", "spatial(weight)"),
                ("Triple", "out_size", "spatial(out)"),
                *(
                    ("Triple", name, f"Triple{{{name}[0], {name}[1], {name}[2]}}")
                    for name in ("stride", "padding", "dilation")
                ),
                ("pkb::Group", "members", "members"),
            ),
            body="""
            const int64_t column = i % out_size.w, row = i / out_size.w % out_size.h;
            const int64_t frame = i / (out_size.w * out_size.h) % out_size.t;
            const int64_t filter = i / (out_size.w * out_size.h * out_size.t) % Co;
            const int64_t sample = i / (out_size.w * out_size.h * out_size.t * Co);
            const int64_t channels = C / groups, first = filter / (Co / groups) * channels;
            const int64_t taps = kernel.t * kernel.h * kernel.w;
            Sum<T> sum = bias ? Sum<T>(bias[filter]) : Sum<T>(0);
            for (int place = 0; place < members.size; ++place) {
              const T *image = comm.peer(x, members.ranks[place]), *own = comm.peer(weight, members.ranks[place]);
              for (int64_t tap = 0; tap < taps; ++tap) {
                const int64_t t = frame * stride.t - padding.t + tap / (kernel.w * kernel.h) * dilation.t;
                const int64_t h = row * stride.h - padding.h + tap / kernel.w % kernel.h * dilation.h;
                const int64_t w = column * stride.w - padding.w + tap % kernel.w * dilation.w;
                if (t < 0 || t >= size.t || h < 0 || h >= size.h || w < 0 || w >= size.w) continue;  // zeros
                for (int64_t c = 0; c < channels; ++c) {
                  const int64_t channel = sample * C + first + c;
                  sum += Sum<T>(image[((channel * size.t + t) * size.h + h) * size.w + w]) *
                         Sum<T>(own[(filter * channels + c) * taps + tap]);
                }
              }
            }
            y[i] = T(sum);
            """,
            calls=(({"x": "input", "weight": "weight", "bias": "bias", "y": "out"}, "out.numel()"),),
        ),
    ),
)

TRAINING = (_zero("ZeRO1"), _zero("ZeRO2"), FSDP_STEP, FSDP_TENSOR_PARALLEL, CONV3D)
