"""Plain kernels of problems without a family; here those that rotate, add up, normalise and convolve."""

from __future__ import annotations

from types import MappingProxyType

from pkb_gym.kernels.element_kernel import ElementKernel, Step, number
from pkb_gym.kernels.elementwise.attention import ATTENTION
from pkb_gym.kernels.elementwise.exchanges import EXCHANGES
from pkb_gym.kernels.elementwise.products import PRODUCTS
from pkb_gym.kernels.elementwise.recurrences import RECURRENCES
from pkb_gym.kernels.elementwise.training import TRAINING

LAYER_NORM_BACKWARD = ElementKernel(
    "LayerNormBackward",
    idea="every rank reads all ranks' tensors in place and adds up all of them, channel by channel",
    dtype_of="X_hat",
    steps=(
        Step(
            "add_up",
            reads=("x_hat", "dy"),
            writes=("d_gamma", "d_beta"),
            values=(number("B", "X_hat.size(0)"),),
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

ROPE_ALL_GATHER = ElementKernel(
    "RopeAllGather",
    idea="every rank rotates the heads of all ranks, which it reads in place",
    dtype_of="q_local",
    steps=(
        Step(
            "rotate",
            reads=("x", "cosine", "sine"),
            writes=("y",),
            values=(number("s", "q_local.size(1)"), number("D", "q_local.size(3)"), number("B", "q_local.size(0)")),
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
            reads=("x", "gamma"),
            writes=("y",),
            values=(number("h", "gamma.numel()"), ("double", "eps", "eps")),
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
    typed_setup="""
    T* const staged = comm.scratch<T>();
    """,
    staging="""
    comm.put(staged, grad_fc1_1_lora_A.data_ptr(), sizes[0] * sizeof(T), comm.rank);
    comm.put(staged + sizes[0], grad_fc1_2_lora_A.data_ptr(), sizes[1] * sizeof(T), comm.rank);
    comm.put(staged + sizes[0] + sizes[1], grad_fc2_lora_B.data_ptr(), sizes[2] * sizeof(T), comm.rank);
    """,
    steps=(
        Step(
            "add_up",
            reads=("x",),
            writes=("y",),
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
            reads=("x", "weight", "bias"),
            writes=("y",),
            values=(
                number("C", "x.size(1)"),
                number("H", "x.size(2)"),
                number("width", "x.size(3)"),
                number("kh", "weight.size(2)"),
                number("kw", "weight.size(3)"),
                number("Co", "out.size(1)"),
                number("Ho", "out.size(2)"),
                number("Wo", "out.size(3)"),
                number("stride", "stride"),
                number("padding", "padding"),
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
            reads=("x", "weight"),
            writes=("y",),
            values=(
                number("H", "x.size(1)"),
                number("l", "x.size(2)"),
                number("K", "weight.size(2)"),
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

CROSS_ENTROPY = ElementKernel(
    "VocabParallelCrossEntropy",
    idea="every rank stages its logits, which it overwrites, in scratch, and computes all rows from those of all ranks "
    "there",
    dtype_of="vocab_parallel_logits",
    group="group",
    setup="""
    const pkb::Group members = comm.group(group);
    const auto* targets = static_cast<const int64_t*>(target.data_ptr());
    """,
    typed_setup="""
    T* const staged = comm.scratch<T>();
    """,
    staging="""
    comm.put(staged, vocab_parallel_logits.data_ptr(), vocab_parallel_logits.numel() * sizeof(T), comm.rank);
    """,
    steps=(
        Step(
            "cross_entropy",
            reads=("x",),
            writes=("logits", "loss"),
            values=(
                number("part", "vocab_parallel_logits.size(2)"),
                ("const int64_t*", "targets", "targets"),
                ("pkb::Group", "members", "members"),
            ),
            body="""
            Sum<T> most = Sum<T>(x[i * part]);
            for (int place = 0; place < members.size; ++place) {
              const T* row = comm.peer(x, members.ranks[place]) + i * part;
              for (int64_t v = 0; v < part; ++v) most = Sum<T>(row[v]) > most ? Sum<T>(row[v]) : most;
            }
            Sum<T> sum = 0, wanted = 0;
            for (int place = 0; place < members.size; ++place) {
              const T* row = comm.peer(x, members.ranks[place]) + i * part;
              for (int64_t v = 0; v < part; ++v) {
                const T shifted = T(Sum<T>(row[v]) - most);
                sum += exp(Sum<T>(shifted));
                if (place * part + v == targets[i]) wanted = Sum<T>(shifted);
                if (place == members.rank) logits[i * part + v] = shifted;
              }
            }
            loss[i] = T(log(sum) - wanted);
            """,
            calls=(({"x": "staged", "logits": "vocab_parallel_logits", "loss": "loss"}, "loss.numel()"),),
        ),
    ),
)

ELEMENT_KERNELS = MappingProxyType(
    {
        kernel.problem: kernel
        for kernel in (
            LAYER_NORM_BACKWARD,
            ROPE_ALL_GATHER,
            REDUCE_SCATTER_RMS_NORM,
            MOE_LORA_GRADIENTS,
            CONV2D,
            HYENA_CONV1D,
            CROSS_ENTROPY,
            *PRODUCTS,
            *EXCHANGES,
            *ATTENTION,
            *RECURRENCES,
            *TRAINING,
        )
    }
)
"""Name of the problem -> its naive kernel."""
