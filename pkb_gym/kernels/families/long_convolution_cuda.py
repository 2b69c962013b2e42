"""HyenaCP in CUDA: direct convolutions from shared memory, with the positions or the channels shared out."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import Access, cuda_meetings

TEXT = """
constexpr int kThreads = $threads, kOutputs = $outputs, kTile = kThreads * kOutputs;

struct Shape {
  int64_t B, C, l, Lf, group_dim;
  bool zigzag;

  __host__ __device__ int chunks(int W) const { return zigzag ? 2 * W : W; }  // of time
  __host__ __device__ int64_t chunk_length() const { return zigzag ? l / 2 : l; }

  // The rank that holds a chunk, and where it begins in the rank's part.
  __device__ int rank_of(int64_t chunk, int W) const { return int(chunk < W ? chunk : 2 * W - 1 - chunk); }
  __device__ int64_t begin_of(int64_t chunk, int W) const { return chunk < W ? 0 : l / 2; }
};

// Thread i computes outputs i, i + kThreads ... of a tile of one chunk, of one row of batch and channel.
template <class T>
__global__ void __launch_bounds__(kThreads)
convolve(const T* x1, const T* x2, const T* v, const T* h, const T* bias, T* out, const Shape shape,
         const __grid_constant__ pkb::Device comm) {
  __shared__ float u[kTile], taps[2 * kTile];
  const int W = comm.world_size;
  $enter
  const int64_t length = shape.chunk_length(), tiles = (length + kTile - 1) / kTile;
  const int64_t chunk = $chunk, tile = blockIdx.x % tiles * kTile;
  const int64_t $place, row = b * shape.C + c;
  if (c >= shape.C) return;
  const T* filter = h + c / shape.group_dim * shape.Lf;
  const int64_t first = chunk * length + tile;  // time of the tile's first position
  float sums[kOutputs] = {};
  float own[kOutputs] = {};
  const int64_t all = shape.chunks(W) * length;
  const int64_t behind = first / kTile + (first % kTile > 0);  // tiles of time before it, aligned to its beginning
  // Taps above T act on the future, since the convolution is one of 2T points.
  const int64_t ahead = shape.Lf > all + 1 ? (all - first - 1) / kTile : 0;
  for (int64_t step = 0; step <= behind + ahead; ++step) {
    const int64_t back = $order, from = first - back * kTile;
    if (back > 0 && (back - 1) * kTile >= shape.Lf) continue;  // the filter does not reach that far
    __syncthreads();
    for (int k = threadIdx.x; k < kTile; k += kThreads) {
      const int64_t t = from + k;
      u[k] = 0;
      if (t >= 0 && t < all) {
        const int64_t there = t / length, place = row * shape.l + shape.begin_of(there, W) + t % length;
        const int r = shape.rank_of(there, W);
        u[k] = float(T(float(comm.peer(x2, r)[place]) * float(comm.peer(v, r)[place])));
      }
    }
    for (int k = threadIdx.x; k < 2 * kTile; k += kThreads) {
      const int64_t distance = back * kTile + k - (kTile - 1), tap = distance < 0 ? distance + 2 * all : distance;
      taps[k] = tap >= 0 && tap < shape.Lf ? float(filter[tap]) : 0;
    }
    __syncthreads();
    $unroll
    for (int j = 0; j < kTile; ++j) {
      for (int o = 0; o < kOutputs; ++o) sums[o] += u[j] * taps[o * kThreads + threadIdx.x - j + kTile - 1];
    }
    if (back == 0) {
      for (int o = 0; o < kOutputs; ++o) own[o] = u[o * kThreads + threadIdx.x];
    }
  }
  const int r = shape.rank_of(chunk, W);
  for (int o = 0; o < kOutputs; ++o) {
    const int64_t at = tile + o * kThreads + threadIdx.x;
    if (at >= length) continue;
    const int64_t place = shape.begin_of(chunk, W) + at;
    const T y = T(sums[o] + own[o] * float(bias[c]));
    comm.peer(out, r)[(b * shape.l + place) * shape.C + c] =
        T(float(comm.peer(x1, r)[row * shape.l + place]) * float(y));
  }
}

void solution(TensorView x1_seq, TensorView x2_seq, TensorView v_seq, TensorView h, TensorView conv_bias,
              int64_t num_groups, int64_t group_dim, int64_t group, bool with_zigzag_splitting, TensorView out,
              pkb::Comm comm) {
  const int W = comm.world_size;
  const Shape shape{x1_seq.size(0), x1_seq.size(1), x1_seq.size(2), h.size(1), group_dim, with_zigzag_splitting};
  const int64_t tiles = (shape.chunk_length() + kTile - 1) / kTile;
  const dim3 grid($grid);
  $before
  pkb::with_float_type(x1_seq.dtype(), [&](auto zero) {
    using T = decltype(zero);
    convolve<T><<<grid, kThreads, 0, comm.cuda_stream()>>>(
        static_cast<const T*>(x1_seq.data_ptr()), static_cast<const T*>(x2_seq.data_ptr()),
        static_cast<const T*>(v_seq.data_ptr()), static_cast<const T*>(h.data_ptr()),
        static_cast<const T*>(conv_bias.data_ptr()), static_cast<T*>(out.data_ptr()), shape, comm.device());
    PKB_CUDA_LAUNCHED();
  });
  $after
}
"""

SHARES: dict[Knob, tuple[Access, str, str, str]] = {
    "positions": (
        "read",
        "blockIdx.x / tiles == 0 ? comm.rank : 2 * W - 1 - comm.rank",
        "c = blockIdx.y % shape.C, b = blockIdx.y / shape.C",
        "unsigned(tiles * (shape.zigzag ? 2 : 1)), unsigned(shape.B * shape.C)",
    ),
    "channels": (
        "touch",
        "blockIdx.x / tiles",
        "c = int64_t(blockIdx.y) * W + comm.rank, b = blockIdx.z",
        "unsigned(tiles * shape.chunks(W)), unsigned((shape.C + W - 1) / W), unsigned(shape.B)",
    ),
}
"""For each way of sharing out work: use of each other's memory; chunk, channel and batch of a block; the grid."""

BACKS: dict[Knob, str] = {"nearest first": "step - ahead", "farthest first": "behind - step"}

CHOICES: Choices = {
    "share": tuple(SHARES),
    "threads": (128, 32, 64, 256),
    "outputs": (1, 2, 4),
    "order": BACKS,
    "unroll": ("", "#pragma unroll 4", "#pragma unroll 16"),
    "signalling": ("host barrier", "begun words"),
}


def makes_sense(knobs: Knobs) -> bool:
    """Words that a rank has begun come with the plain loop."""
    return knobs["signalling"] == "host barrier" or not knobs["unroll"]


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    access, chunk, place, grid = SHARES[knobs["share"]]
    return {"chunk": chunk, "place": place, "grid": grid, **asdict(cuda_meetings(knobs["signalling"], access))}


FAMILIES = (Family("HyenaCP", "cuda", CHOICES, TEXT, pieces, makes_sense),)
