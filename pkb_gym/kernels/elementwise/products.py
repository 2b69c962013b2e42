"""Naive kernels for products of matrices that are cut over the ranks."""

from __future__ import annotations

from pkb_gym.kernels.element_kernel import ElementKernel, Step, number

ALL_GATHER_GEMM_AT = ElementKernel(
    "AllGatherGemmAT",
    idea="every element is a dot product with a row of A, whose parts are read from all ranks in place",
    dtype_of="A_local",
    steps=(
        Step(
            "multiply",
            reads=("a", "b"),
            writes=("c",),
            values=(number("part", "A_local.size(1)"), number("N", "B.size(1)")),
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
            reads=("a", "b"),
            writes=("c",),
            values=(number("K", "A.size(1)"), number("part", "B.size(1)")),
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
            reads=("hidden", "weight", "bias"),
            writes=("y",),
            values=(number("h", "hidden_states.size(1)"), number("part", "weight_shard.size(0)")),
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

COMBINED_GEMMS = ElementKernel(
    "CombinedShardedGemms",
    idea="every rank computes its rows of the hidden layer into scratch, from the parts that it reads in place, and "
    "its rows of the result from these",
    dtype_of="x_local",
    setup="""
    const int64_t h = x_local.size(1), F = W1.size(1), m = y_local.size(0), H2 = y_local.size(1);
    """,
    typed_setup="""
    T* const hidden = comm.scratch<T>();  // this rank's alone
    """,
    steps=(
        Step(
            "first_layer",
            reads=("x", "weight"),
            writes=("y",),
            values=(number("h", "h"), number("F", "F"), number("m", "m")),
            body="""
            const int64_t row = comm.rank * m + i / F, f = i % F;
            Sum<T> sum = 0;
            for (int r = 0; r < comm.world_size; ++r) {
              const T *part = comm.peer(x, r) + row * h, *column = weight + r * h * F + f;
              for (int64_t k = 0; k < h; ++k) sum += Sum<T>(part[k]) * Sum<T>(column[k * F]);
            }
            const Sum<T> z = Sum<T>(T(sum));  // rounded, as the product of the reference
            y[i] = T(z / (1 + exp(-z)));      // SiLU
            """,
            calls=(({"x": "x_local", "weight": "W1", "y": "hidden"}, "m * F"),),
        ),
        Step(
            "second_layer",
            reads=("x", "weight"),
            writes=("y",),
            values=(number("F", "F"), number("N", "H2")),
            body="""
            const int64_t row = i / N, n = i % N;
            Sum<T> sum = 0;
            for (int64_t k = 0; k < F; ++k) sum += Sum<T>(x[row * F + k]) * Sum<T>(weight[k * N + n]);
            y[i] = T(sum);
            """,
            calls=(({"x": "hidden", "weight": "W2", "y": "y_local"}, "y_local.numel()"),),
        ),
    ),
)

PRODUCTS = (ALL_GATHER_GEMM_AT, GEMM_ALL_GATHER, GEMV_DECODE, COMBINED_GEMMS)
