// Conv3dAllReduce: an implicit product on the tensor cores, whose tiles are summed over ranks while others are computed.
//
// Nothing is unfolded (pkb/convolution_cuda.h). One kernel first copies filters, tap by tap, and the input with its
// padding, once for each tap along W.
// Each tile of the sum has an owner, which receives the others' partial results while the tensor cores work, adds them
// in registers (pkb/gemm_reduce.h), adds the bias (pkb/gemm_change.h), and stores the total to all ranks. The baseline
// all-reduces 16-bit results when all are there, and adds the bias in another pass.
//
// Bound: arithmetic, 2 outputs Ci taps operations a rank; the link carries 2 (W - 1) / W of the outputs beside them.
//
// Left on the table: Winograd's algorithm, of fewer products; the copy of the input. Strides along W, groups, several
// samples, rows of outputs that are no multiples of 64, and float32 run on CUDA cores, and are summed afterwards.
#include <algorithm>

#include "pkb/convolution_cuda.h"
#include "pkb/gemm_reduce.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using pkb::convolution::AddBias;
using pkb::convolution::Arranged;
using pkb::convolution::Convolution;
using pkb::convolution::kThreads;
using pkb::convolution::kTile;
using pkb::convolution::kTileSums;
using pkb::convolution::Tiles;
using pkb::convolution::Triple;
using pkb::convolution::ZeroPadded;
using pkb::gemm::Product;
using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

// ---- on tensor cores ----

template <class T>
__global__ void __launch_bounds__(kThreads)
    arrange(const __grid_constant__ Convolution<T> g, const __grid_constant__ Arranged<T> to) {
  const int64_t first = blockIdx.x * int64_t(kThreads) + threadIdx.x, step = int64_t(gridDim.x) * kThreads;
  pkb::convolution::arrange_filters(g, to, first, step);
  pkb::convolution::arrange_input(g, to, ZeroPadded<T>{g.input, g.size}, first, step);
}

// Returns whether the sum could be exchanged as the tensor cores form it.
template <class T, class Shape>
bool on_tensor_cores(const Convolution<T>& g, const pkb::Comm& comm) {
  using Reduce = pkb::gemm::Reduce<Shape>;
  const int64_t positions = g.out_size.count(), depth = g.kernel.count() * pkb::convolution::whole_stages(g.channels);
  Product product = pkb::gemm::tiles<Shape>(g.filters, positions, depth);
  const int W = comm.world_size;
  if (W > 1 && !Reduce::suits(comm, product.tiles)) return false;

  const Arranged<T> to(g);
  arrange<<<pkb::blocks_for(to.elements, kThreads * 8, 1), kThreads, 0, comm.cuda_stream()>>>(g, to);
  PKB_CUDA_LAUNCHED();
  product.destinations = W;
  for (int k = 0; k < W; ++k) {
    product.out[k] = pkb::gemm::operand_map<T>(comm.peer(g.out, (comm.rank + k + 1) % W), g.filters, positions,
                                               positions, pkb::gemm::kStoreRows);
  }
  const auto launch = [&](const auto& hooks) {
    pkb::convolution::launch_product<T, Shape>(g, to, 0, product, hooks, comm.cuda_stream());
  };
  if (W > 1) launch(Reduce(comm, product, 0));
  else launch(pkb::gemm::Plain());
  return true;
}

// ---- on CUDA cores ----

// A block makes one tile, of those from `first` on: partial sums of this rank's channels.
template <class T>
__global__ void __launch_bounds__(kThreads)
    convolve(const __grid_constant__ Convolution<T> g, int64_t first, float* partial) {
  float* tile = partial + blockIdx.x * int64_t(kTileSums);
  pkb::convolution::convolve_tile(
      g, Tiles(g).place(first + blockIdx.x), ZeroPadded<T>{g.input, g.size},
      [&](const Tiles::Place&, int row, int col, float sum) { tile[row * kTile + col] = sum; });
}

// Adds up this rank's part of the partial sums that its group has of so many tiles, and stores totals to all of it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_partial(const __grid_constant__ Convolution<T> g, int64_t first, int64_t tiles, const float* partial,
                int64_t group, const __grid_constant__ pkb::Device comm) {
  const int ranks = comm.group_size(group), own = comm.group_rank(group), of_group = g.filters / g.groups;
  const int64_t positions = g.out_size.count(), total = tiles * kTileSums;
  const int64_t begin = total * own / ranks, end = total * (own + 1) / ranks;
  const Tiles all(g);
  for (int64_t i = begin + blockIdx.x * int64_t(kThreads) + threadIdx.x; i < end; i += int64_t(gridDim.x) * kThreads) {
    const Tiles::Place place = all.place(first + i / kTileSums);
    const int64_t row = place.row + i % kTileSums / kTile, col = place.col + i % kTile;
    if (row >= of_group || col >= positions) continue;
    float sum = 0.0f;
    for (int r = 0; r < ranks; ++r) sum += __ldcg(comm.peer(partial, comm.group_member(group, r)) + i);
    const int64_t filter = place.group * of_group + row;
    const T result(AddBias<T>{g.bias}(filter, 0, sum));
    const int64_t to = (place.sample * g.filters + filter) * positions + col;
    for (int r = 0; r < ranks; ++r) comm.peer(g.out, comm.group_member(group, r))[to] = result;
  }
}

// As many tiles at once as scratch holds, which may be fewer than there are: sums are wider than what they are made of.
template <class T>
void on_cuda_cores(const Convolution<T>& g, int64_t group, const pkb::Comm& comm) {
  constexpr uint64_t kOffset = pkb::gemm::Reduce<pkb::gemm::Small>::kFlagBytes;  // no other data lies in flags
  const Tiles all(g);
  const int64_t total = all.columns * all.rows * g.samples;
  const int64_t room = (int64_t(comm.scratch_bytes) - int64_t(kOffset)) / int64_t(kTileSums * sizeof(float));
  if (room < 1) TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold a tile";
  float* partial = comm.scratch<float>(kOffset);
  const bool has_peers = comm.world_size > 1;
  for (int64_t first = 0; first < total; first += room) {
    const int64_t tiles = std::min(room, total - first);
    convolve<T><<<unsigned(tiles), kThreads, 0, comm.cuda_stream()>>>(g, first, partial);
    PKB_CUDA_LAUNCHED();
    if (has_peers) comm.barrier(group);
    add_partial<T><<<pkb::blocks_for(tiles * kTileSums, kThreads), kThreads, 0, comm.cuda_stream()>>>(
        g, first, tiles, partial, group, comm.device());
    PKB_CUDA_LAUNCHED();
    if (has_peers) comm.barrier(group);
  }
}

template <class T>
void launch(const Convolution<T>& g, int64_t group, const pkb::Comm& comm) {
  if (int64_t(g.samples) * g.filters * g.out_size.count() == 0) return;
  if constexpr (sizeof(T) == 2) {
    const bool suits = g.samples == 1 && pkb::convolution::suits_tensor_cores(g) &&
                       comm.group(group).size == comm.world_size && comm.world_size <= pkb::gemm::kMaxParts;
    const bool is_large = pkb::gemm::is_large(g.filters, g.out_size.count());
    if (suits && is_large && on_tensor_cores<T, pkb::gemm::Deep>(g, comm)) return;
    if (suits && on_tensor_cores<T, pkb::gemm::Small>(g, comm)) return;
  }
  on_cuda_cores(g, group, comm);
}

}  // namespace

void solution(TensorView input, TensorView weight, Optional<TensorView> bias, Array<int64_t> stride,
              Array<int64_t> padding, Array<int64_t> dilation, int64_t groups, int64_t group, TensorView out,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(input.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
    const auto spatial = [](const TensorView& x) { return Triple{int(x.size(2)), int(x.size(3)), int(x.size(4))}; };
    const auto triple = [](const Array<int64_t>& x) { return Triple{int(x[0]), int(x[1]), int(x[2])}; };
    Convolution<T> g{of(input), of(weight), bias.has_value() ? of(*bias) : nullptr, of(out)};
    g.samples = int(input.size(0));
    g.channels = int(input.size(1));
    g.filters = int(weight.size(0));
    g.groups = int(groups);
    g.size = spatial(input);
    g.kernel = spatial(weight);
    g.stride = triple(stride);
    g.padding = triple(padding);
    g.dilation = triple(dilation);
    g.out_size = spatial(out);
    launch(g, group, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
