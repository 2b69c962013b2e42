"""Naive kernels for problems that move, add up, multiply or convolve: what one element of their outputs is."""

from __future__ import annotations

from types import MappingProxyType

from pkb_gym.starters.element_kernels import ElementKernel, Step


def _number(name: str, expression: str) -> tuple[str, str, str]:
    return "int64_t", name, expression


ALL_REDUCE = ElementKernel(
    "AllReduce",
    idea="every rank reads all ranks' tensors in place and adds up all of them",
    dtype_of="tensor",
    steps=(
        Step(
            "add_up",
            tensors=("x", "y"),
            body="""
            Sum<T> sum = 0;
            for (int r = 0; r < comm.world_size; ++r) sum += Sum<T>(comm.peer(x, r)[i]);
            y[i] = T(sum);
            """,
            calls=(({"x": "tensor", "y": "out"}, "out.numel()"),),
        ),
    ),
)

BROADCAST = ElementKernel(
    "Broadcast",
    idea="every rank reads the source's tensor in place",
    dtype_of="tensor",
    steps=(
        Step(
            "copy",
            tensors=("from", "to"),
            values=(_number("src", "src"),),
            body="to[i] = comm.peer(from, int(src))[i];",
            calls=(({"from": "tensor", "to": "out"}, "out.numel()"),),
        ),
    ),
)

REDUCE_SCATTER = ElementKernel(
    "ReduceScatter",
    idea="every rank reads its rows of all ranks' tensors in place and adds them up",
    dtype_of="tensor",
    steps=(
        Step(
            "add_up",
            tensors=("x", "y"),
            body="""
            Sum<T> sum = 0;
            for (int r = 0; r < comm.world_size; ++r) sum += Sum<T>(comm.peer(x, r)[comm.rank * count + i]);
            y[i] = T(sum);
            """,
            calls=(({"x": "tensor", "y": "out"}, "out.numel()"),),
        ),
    ),
)

LAYER_NORM_BACKWARD = ElementKernel(
    "LayerNormBackward",
    idea="every rank reads all ranks' tensors in place and adds up all of them, channel by channel",
    dtype_of="X_hat",
    steps=(
        Step(
            "add_up",
            tensors=("x_hat", "dy", "d_gamma", "d_beta"),
            values=(_number("B", "X_hat.size(0)"),),
            body="""
            Sum<T> gamma = 0, beta = 0;
            for (int r = 0; r < comm.world_size; ++r) {
              const T *x = comm.peer(x_hat, r) + i, *g = comm.peer(dy, r) + i;
              for (int64_t b = 0; b < B; ++b) {
                gamma += Sum<T>(g[b * count]) * Sum<T>(x[b * count]);
                beta += Sum<T>(g[b * count]);
              }
            }
            d_gamma[i] = T(gamma);
            d_beta[i] = T(beta);
            """,
            calls=(({"x_hat": "X_hat", "dy": "dY", "d_gamma": "d_gamma", "d_beta": "d_beta"}, "d_gamma.numel()"),),
        ),
    ),
)

ALL_GATHER_GEMM_AT = ElementKernel(
    "AllGatherGemmAT",
    idea="every element is a dot product with a row of A, whose parts are read from all ranks in place",
    dtype_of="A_local",
    steps=(
        Step(
            "multiply",
            tensors=("a", "b", "c"),
            values=(_number("part", "A_local.size(1)"), _number("N", "B.size(1)")),
            body="""
            const int64_t m = i / N, n = i % N;
            Sum<T> sum = 0;
            for (int r = 0; r < comm.world_size; ++r) {
              const T *row = comm.peer(a, r) + m * part, *column = b + r * part * N + n;
              for (int64_t k = 0; k < part; ++k) sum += Sum<T>(row[k]) * Sum<T>(column[k * N]);
            }
            c[i] = T(sum);
            """,
            calls=(({"a": "A_local", "b": "B", "c": "out"}, "out.numel()"),),
        ),
    ),
)

GEMM_ALL_GATHER = ElementKernel(
    "GemmAllGather",
    idea="every rank computes the blocks of all ranks, whose matrices it reads in place",
    dtype_of="A",
    steps=(
        Step(
            "multiply",
            tensors=("a", "b", "c"),
            values=(_number("K", "A.size(1)"), _number("part", "B.size(1)")),
            body="""
            const int64_t N = part * comm.world_size, m = i / N, n = i % N;
            const int r = int(n / part);
            const T *row = comm.peer(a, r) + m * K, *column = comm.peer(b, r) + n % part;
            Sum<T> sum = 0;
            for (int64_t k = 0; k < K; ++k) sum += Sum<T>(row[k]) * Sum<T>(column[k * part]);
            c[i] = T(sum);
            """,
            calls=(({"a": "A", "b": "B", "c": "C"}, "C.numel()"),),
        ),
    ),
)

GEMV_DECODE = ElementKernel(
    "GemvDecode",
    idea="every rank computes all logits from all ranks' weights, which it reads in place",
    dtype_of="hidden_states",
    steps=(
        Step(
            "multiply",
            tensors=("hidden", "weight", "bias", "y"),
            values=(_number("h", "hidden_states.size(1)"), _number("part", "weight_shard.size(0)")),
            body="""
            const int64_t V = part * comm.world_size, t = i / V, v = i % V;
            const int r = int(v / part);
            const T *x = hidden + t * h, *row = comm.peer(weight, r) + v % part * h;
            Sum<T> sum = 0;
            for (int64_t k = 0; k < h; ++k) sum += Sum<T>(x[k]) * Sum<T>(row[k]);
            y[i] = T(sum + Sum<T>(comm.peer(bias, r)[v % part]));
            """,
            calls=(
                (
                    {"hidden": "hidden_states", "weight": "weight_shard", "bias": "bias_shard", "y": "logits"},
                    "logits.numel()",
                ),
            ),
        ),
    ),
)

ROPE_ALL_GATHER = ElementKernel(
    "RopeAllGather",
    idea="every rank rotates the heads of all ranks, which it reads in place",
    dtype_of="q_local",
    steps=(
        Step(
            "rotate",
            tensors=("x", "cosine", "sine", "y"),
            values=(_number("s", "q_local.size(1)"), _number("D", "q_local.size(3)"), _number("B", "q_local.size(0)")),
            body="""
            const int64_t S = s * comm.world_size, heads = count / (B * S * D);
            const int64_t d = i % D, head = i / D % heads, p = i / (D * heads) % S, b = i / (D * heads * S);
            const int r = int(p / s);
            const int64_t token = b * s + p % s, half = D / 2;
            const T* row = comm.peer(x, r) + (token * heads + head) * D;
            const Sum<T> turned = d < half ? -Sum<T>(row[d + half]) : Sum<T>(row[d - half]);
            const Sum<T> c = Sum<T>(comm.peer(cosine, r)[token * D + d]), z = Sum<T>(comm.peer(sine, r)[token * D + d]);
            y[i] = T(Sum<T>(row[d]) * c + turned * z);
            """,
            calls=(
                ({"x": "q_local", "cosine": "cos_local", "sine": "sin_local", "y": "q_global"}, "q_global.numel()"),
                ({"x": "k_local", "cosine": "cos_local", "sine": "sin_local", "y": "k_global"}, "k_global.numel()"),
            ),
        ),
    ),
)

REDUCE_SCATTER_RMS_NORM = ElementKernel(
    "ReduceScatterRMSNorm",
    idea="every rank reads its rows of all ranks' activations in place; a row is averaged and normalised in one go",
    dtype_of="rs_input_1d",
    steps=(
        Step(
            "average_and_normalise",
            tensors=("x", "gamma", "y"),
            values=(_number("h", "gamma.numel()"), ("double", "eps", "eps")),
            body="""
            // Row i of this rank; averages are rounded as the reference rounds them, and kept in the output meanwhile.
            const int64_t first = (comm.rank * count + i) * h;
            Sum<T> squares = 0;
            for (int64_t k = 0; k < h; ++k) {
              Sum<T> sum = 0;
              for (int r = 0; r < comm.world_size; ++r) sum += Sum<T>(comm.peer(x, r)[first + k]);
              y[i * h + k] = T(sum / comm.world_size);
              squares += Sum<T>(y[i * h + k]) * Sum<T>(y[i * h + k]);
            }
            const Sum<T> scale = 1 / sqrt(squares / h + Sum<T>(eps));
            for (int64_t k = 0; k < h; ++k) y[i * h + k] = T(Sum<T>(y[i * h + k]) * scale * Sum<T>(gamma[k]));
            """,
            calls=(({"x": "rs_input_1d", "gamma": "gamma", "y": "out"}, "out.size(0)"),),
        ),
    ),
)

MOE_LORA_GRADIENTS = ElementKernel(
    "MoELoRAGroupGemmBackward",
    idea="every rank stages its gradients, which it overwrites, in scratch, and adds up those of all ranks there",
    dtype_of="grad_fc1_1_lora_A",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    const int64_t sizes[] = {grad_fc1_1_lora_A.numel(), grad_fc1_2_lora_A.numel(), grad_fc2_lora_B.numel()};
    """,
    staging="""
    T* const staged = comm.scratch<T>();
    comm.put(staged, grad_fc1_1_lora_A.data_ptr(), sizes[0] * sizeof(T), comm.rank);
    comm.put(staged + sizes[0], grad_fc1_2_lora_A.data_ptr(), sizes[1] * sizeof(T), comm.rank);
    comm.put(staged + sizes[0] + sizes[1], grad_fc2_lora_B.data_ptr(), sizes[2] * sizeof(T), comm.rank);
    """,
    steps=(
        Step(
            "add_up",
            tensors=("x", "y"),
            values=(("pkb::Group", "members", "members"),),
            body="""
            Sum<T> sum = 0;
            for (int place = 0; place < members.size; ++place) sum += Sum<T>(comm.peer(x, members.ranks[place])[i]);
            y[i] = T(sum);
            """,
            calls=(
                ({"x": "staged", "y": "grad_fc1_1_lora_A"}, "sizes[0]"),
                ({"x": "staged + sizes[0]", "y": "grad_fc1_2_lora_A"}, "sizes[1]"),
                ({"x": "staged + sizes[0] + sizes[1]", "y": "grad_fc2_lora_B"}, "sizes[2]"),
            ),
        ),
    ),
)

CONV2D = ElementKernel(
    "Conv2dBoundaryExchange",
    idea="every element is a sum over its window, whose rows beyond the border are read from the neighbours in place",
    dtype_of="x",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    """,
    steps=(
        Step(
            "convolve",
            tensors=("x", "weight", "bias", "y"),
            values=(
                _number("C", "x.size(1)"),
                _number("H", "x.size(2)"),
                _number("width", "x.size(3)"),
                _number("kh", "weight.size(2)"),
                _number("kw", "weight.size(3)"),
                _number("Co", "out.size(1)"),
                _number("Ho", "out.size(2)"),
                _number("Wo", "out.size(3)"),
                _number("stride", "stride"),
                _number("padding", "padding"),
                ("pkb::Group", "members", "members"),
            ),
            body="""
            const int64_t column = i % Wo, row = i / Wo % Ho, o = i / (Wo * Ho) % Co, b = i / (Wo * Ho * Co);
            Sum<T> sum = bias ? Sum<T>(bias[o]) : Sum<T>(0);
            for (int64_t dy = 0; dy < kh; ++dy) {
              const int64_t p = row * stride + dy - padding;  // H rows of this rank, others before and after
              const int place = members.rank + (p < 0 ? -1 : p >= H ? 1 : 0);
              if (place < 0 || place >= members.size) continue;  // zeros
              const T* image = comm.peer(x, members.ranks[place]);
              for (int64_t dx = 0; dx < kw; ++dx) {
                const int64_t q = column * stride + dx - padding;
                if (q < 0 || q >= width) continue;  // zeros
                for (int64_t c = 0; c < C; ++c) {
                  sum += Sum<T>(image[((b * C + c) * H + (p + H) % H) * width + q]) *
                         Sum<T>(weight[((o * C + c) * kh + dy) * kw + dx]);
                }
              }
            }
            y[i] = T(sum);
            """,
            calls=(({"x": "x", "weight": "weight", "bias": "bias", "y": "out"}, "out.numel()"),),
        ),
    ),
)

HYENA_CONV1D = ElementKernel(
    "HyenaConv1d",
    idea="every element is a sum over its filter's taps; their positions are read from the ranks that have them",
    dtype_of="x",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    """,
    steps=(
        Step(
            "convolve",
            tensors=("x", "weight", "y"),
            values=(
                _number("H", "x.size(1)"),
                _number("l", "x.size(2)"),
                _number("K", "weight.size(2)"),
                ("pkb::Group", "members", "members"),
            ),
            body="""
            const int64_t half = l / 2, position = i % l, row = i / l, n = members.size;
            const int64_t chunk = position < half ? members.rank : 2 * n - 1 - members.rank;  // of 2n, in time's order
            Sum<T> sum = 0;
            for (int64_t k = 0; k < K; ++k) {
              const int64_t t = chunk * half + position % half - (K - 1) + k;
              if (t < 0) continue;  // before the sequence
              const int64_t c = t / half;
              const T* theirs = comm.peer(x, members.ranks[c < n ? c : 2 * n - 1 - c]) + row * l + (c < n ? 0 : half);
              sum += Sum<T>(weight[row % H * K + k]) * Sum<T>(theirs[t % half]);
            }
            y[i] = T(sum);
            """,
            calls=(({"x": "x", "weight": "weight", "y": "y"}, "y.numel()"),),
        ),
    ),
)

# ---- one dimension is cut, another one joined -----------------------------------------------------------------------

SIZES = """
constexpr int kMostDims = 8;

struct Sizes {
  int64_t of[kMostDims];
};
"""

EXCHANGE = """
int64_t rest = i, at = 0, stride = 1;
int place = 0;
bool is_padding = false;
for (int d = dims - 1; d >= 0; --d) {
  int64_t k = rest % out_sizes.of[d];
  rest /= out_sizes.of[d];
  if (d == joined) {  // which rank has this position, and where
    place = int(k / part);
    k %= part;
  }
  if (d == cut) k += members.rank * piece;  // this rank's piece
  is_padding |= k >= x_sizes.of[d];
  at += k * stride;
  stride *= x_sizes.of[d];
}
out[i] = is_padding ? T(0.0f) : comm.peer(x, members.ranks[place])[at];
"""

PLAIN_VIEW = """
const int dims = x.ndim();
if (dims > kMostDims) TVM_FFI_THROW(ValueError) << "at most " << kMostDims << " dimensions, got " << dims;
Sizes x_sizes, out_sizes;
for (int d = 0; d < dims; ++d) {
  x_sizes.of[d] = x.size(d);
  out_sizes.of[d] = out.size(d);
}
const int cut = int(($cut + dims) % dims), joined = int(($joined + dims) % dims);
"""

PARTS = """
const pkb::Group members = comm.group(group);
const int64_t part = cut == joined ? x_sizes.of[cut] / members.size : x_sizes.of[joined];  // that a rank has
const int64_t piece = cut == joined ? part : out_sizes.of[cut];                            // that a rank receives
"""

QKV_VIEW = """
const int dims = qkv_tensor.ndim() + 1, cut = dims - 1, joined = int((seq_dim + dims - 1) % (dims - 1));
if (dims > kMostDims) TVM_FFI_THROW(ValueError) << "at most " << kMostDims - 1 << " dimensions, got " << dims - 1;
Sizes x_sizes, out_sizes;  // as (.., 3, columns of each)
for (int d = 0; d < dims - 2; ++d) {
  x_sizes.of[d] = qkv_tensor.size(d);
  out_sizes.of[d] = out.size(d);
}
x_sizes.of[dims - 2] = out_sizes.of[dims - 2] = 3;
x_sizes.of[cut] = qkv_tensor.size(dims - 2) / 3;
out_sizes.of[cut] = x_sizes.of[cut] / comm.group(group).size;
"""


def _exchange(problem: str, view: str, tensor: str = "x") -> ElementKernel:
    """Pieces along one dimension go to all ranks, and are joined along another.

    Args:
        problem: which.
        view: lines that make `dims`, `x_sizes`, `out_sizes`, `cut` and `joined`.
        tensor: name of the argument.
    """
    names = (("int", "dims"), ("int", "cut"), ("int", "joined"), ("int64_t", "part"), ("int64_t", "piece"))
    shared = (("Sizes", "x_sizes"), ("Sizes", "out_sizes"), *names, ("pkb::Group", "members"))
    return ElementKernel(
        problem,
        idea="every rank reads each of its elements from the rank that has it, in place",
        dtype_of=tensor,
        group="group",
        declarations=SIZES,
        setup=view.strip("\n") + PARTS,
        steps=(
            Step(
                "exchange",
                tensors=("x", "out"),
                values=tuple((kind, name, name) for kind, name in shared),
                body=EXCHANGE,
                calls=(({"x": tensor, "out": "out"}, "out.numel()"),),
            ),
        ),
    )


def _plain_view(cut: str, joined: str) -> str:
    return PLAIN_VIEW.replace("$cut", cut).replace("$joined", joined)


ELEMENT_KERNELS = MappingProxyType(
    {
        kernel.problem: kernel
        for kernel in (
            ALL_REDUCE,
            BROADCAST,
            REDUCE_SCATTER,
            LAYER_NORM_BACKWARD,
            ALL_GATHER_GEMM_AT,
            GEMM_ALL_GATHER,
            GEMV_DECODE,
            ROPE_ALL_GATHER,
            REDUCE_SCATTER_RMS_NORM,
            MOE_LORA_GRADIENTS,
            CONV2D,
            HYENA_CONV1D,
            _exchange("UlyssesAllToAll", _plain_view("scatter_dim", "gather_dim")),
            _exchange("UlyssesGatherSeqScatterHeads", _plain_view("head_dim", "seq_dim")),
            _exchange("UlyssesGatherHeadsScatterSeq", _plain_view("seq_dim", "head_dim")),
            _exchange("UlyssesQKVGatherSeqScatterHeads", QKV_VIEW, tensor="qkv_tensor"),
        )
    }
)
"""Name of the problem -> its naive kernel."""
