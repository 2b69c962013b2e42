"""Naive kernels for exchanges: pieces along one dimension go to all ranks, and are joined along another."""

from __future__ import annotations

from pkb_gym.kernels.element_kernel import ElementKernel, Step

SIZES = """
constexpr int kMaxDims = 8;

struct Sizes {
  int64_t of[kMaxDims];
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
if (dims > kMaxDims) TVM_FFI_THROW(ValueError) << "at most " << kMaxDims << " dimensions, got " << dims;
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
if (dims > kMaxDims) TVM_FFI_THROW(ValueError) << "at most " << kMaxDims - 1 << " dimensions, got " << dims - 1;
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
        problem: Name of the problem.
        view: Lines that define `dims`, `x_sizes`, `out_sizes`, `cut` and `joined`.
        tensor: Name of the tensor argument.
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
                reads=("x",),
                writes=("out",),
                values=tuple((kind, name, name) for kind, name in shared),
                body=EXCHANGE,
                calls=(({"x": tensor, "out": "out"}, "out.numel()"),),
            ),
        ),
    )


def _plain_view(cut: str, joined: str) -> str:
    return PLAIN_VIEW.replace("$cut", cut).replace("$joined", joined)


EXCHANGES = (
    _exchange("UlyssesAllToAll", _plain_view("scatter_dim", "gather_dim")),
    _exchange("UlyssesGatherSeqScatterHeads", _plain_view("head_dim", "seq_dim")),
    _exchange("UlyssesGatherHeadsScatterSeq", _plain_view("seq_dim", "head_dim")),
    _exchange("UlyssesQKVGatherSeqScatterHeads", QKV_VIEW, tensor="qkv_tensor"),
)
