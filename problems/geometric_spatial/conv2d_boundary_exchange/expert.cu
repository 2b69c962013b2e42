// Conv2dBoundaryExchange: neighbours' rows are read where the input is copied for an implicit product on tensor cores.
//
// One kernel copies filters, tap by tap, and then the input with its padding, of which the rows above and below come
// straight from the neighbours' inputs: they have had the time of the filters' copy to begin the call. Equal blocks of
// neighbours then meet. The product (pkb/convolution_cuda.h) needs no other rank, and adds the bias in registers. The
// baseline gathers the boundary rows of all ranks, joins them with the input in another copy, and has a convolution that
// arranges its operands, too.
//
// Bound: arithmetic, 2 outputs C kh kw operations; the rows of two neighbours are a thousandth of the input's bytes.
//
// Left on the table: Winograd's algorithm, of fewer products; the copies of filters and input. Strides, rows of outputs
// that are no multiples of 64, and float32 run on CUDA cores.
#include <algorithm>

#include "pkb/convolution_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using pkb::convolution::AddBias;
using pkb::convolution::Arranged;
using pkb::convolution::Convolution;
using pkb::convolution::kThreads;
using pkb::convolution::Tiles;
using pkb::convolution::Triple;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

// Rows of the image: those that this rank lacks are its neighbours', if it has some.
template <class T>
struct Rows {
  const T *own, *above, *below;  // inputs; null beyond the image
  int height, width;
  int rank_above, rank_below;    // -1: none

  __device__ __forceinline__ const T* operator()(int64_t plane, int, int h) const {
    const T* input = h < 0 ? above : h < height ? own : below;
    const int row = h < 0 ? h + height : h < height ? h : h - height;
    return input ? input + (plane * height + row) * width : nullptr;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    arrange(const __grid_constant__ Convolution<T> g, const __grid_constant__ Arranged<T> to,
            const __grid_constant__ Rows<T> rows, const __grid_constant__ pkb::Device comm) {
  const int64_t first = blockIdx.x * int64_t(kThreads) + threadIdx.x, step = int64_t(gridDim.x) * kThreads;
  const int neighbour = threadIdx.x == 0 ? rows.rank_above : threadIdx.x == 1 ? rows.rank_below : -1;
  comm.signal_begun();
  pkb::convolution::arrange_filters(g, to, first, step);
  if (neighbour >= 0) comm.wait_begun(neighbour);
  __syncthreads();
  pkb::convolution::arrange_input(g, to, rows, first, step);
  __syncthreads();
  if (neighbour < 0) return;
  comm.signal_block(0, neighbour);
  comm.wait_block(0, neighbour);
}

template <class T, class Shape>
void on_tensor_cores(const Convolution<T>& g, const Rows<T>& rows, const pkb::Comm& comm) {
  const Arranged<T> to(g);
  arrange<T><<<pkb::blocks_for(to.elements, kThreads * 8), kThreads, 0, comm.cuda_stream()>>>(g, to, rows, comm.device());
  PKB_CUDA_LAUNCHED();
  const int64_t positions = g.out_size.count();
  pkb::gemm::Product product = pkb::gemm::tiles<Shape>(g.filters, positions, g.kernel.count() * to.channels);
  product.destinations = 1;
  for (int sample = 0; sample < g.samples; ++sample) {
    product.out[0] = pkb::gemm::operand_map<T>(g.out + sample * g.filters * positions, g.filters, positions, positions,
                                               pkb::gemm::kStoreRows);
    pkb::convolution::launch_product<T, Shape>(g, to, sample, product, pkb::gemm::Plain(), comm.cuda_stream());
  }
}

// A block makes one tile.
template <class T>
__global__ void __launch_bounds__(kThreads)
    convolve(const __grid_constant__ Convolution<T> g, const __grid_constant__ Rows<T> rows) {
  const int64_t positions = g.out_size.count();
  const auto store = [&](const Tiles::Place& place, int row, int col, float sum) {
    const int64_t filter = place.row + row, position = place.col + col;
    if (filter >= g.filters || position >= positions) return;
    g.out[(place.sample * g.filters + filter) * positions + position] = T(AddBias<T>{g.bias}(filter, 0, sum));
  };
  pkb::convolution::convolve_tile(g, Tiles(g).place(blockIdx.x), rows, store);
}

template <class T>
void launch(const Convolution<T>& g, const Rows<T>& rows, const pkb::Comm& comm) {
  const int64_t positions = g.out_size.count();
  if (int64_t(g.samples) * g.filters * positions == 0) return;
  if constexpr (sizeof(T) == 2) {
    if (pkb::convolution::suits_tensor_cores(g)) {
      if (pkb::gemm::is_large(g.filters, positions)) on_tensor_cores<T, pkb::gemm::Deep>(g, rows, comm);
      else on_tensor_cores<T, pkb::gemm::Small>(g, rows, comm);
      return;
    }
  }
  const bool exchanges = g.padding.h > 0 && comm.world_size > 1;
  const Tiles tiles(g);
  if (exchanges) comm.barrier();
  convolve<T><<<unsigned(tiles.columns * tiles.rows * g.samples), kThreads, 0, comm.cuda_stream()>>>(g, rows);
  PKB_CUDA_LAUNCHED();
  if (exchanges) comm.barrier();
}

}  // namespace

void solution(TensorView x, TensorView weight, Optional<TensorView> bias, int64_t stride, int64_t padding,
              int64_t group, TensorView out, pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  if (members.size != comm.world_size) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  pkb::with_type<__nv_bfloat16, __half, float>(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& tensor) { return static_cast<T*>(tensor.data_ptr()); };
    const int step = int(stride), pad = int(padding), height = int(x.size(2)), width = int(x.size(3));
    Convolution<T> g{of(x), of(weight), bias.has_value() ? of(*bias) : nullptr, of(out)};
    g.samples = int(x.size(0));
    g.channels = int(x.size(1));
    g.filters = int(weight.size(0));
    g.groups = 1;
    g.size = {1, height, width};
    g.kernel = {1, int(weight.size(2)), int(weight.size(3))};
    g.stride = {1, step, step};
    g.padding = {0, pad, pad};
    g.dilation = {1, 1, 1};
    g.out_size = {1, int(out.size(2)), int(out.size(3))};
    Rows<T> rows{g.input, nullptr, nullptr, height, width, -1, -1};
    if (pad > 0 && members.rank > 0) {
      rows.rank_above = members.ranks[members.rank - 1];
      rows.above = comm.peer(g.input, rows.rank_above);
    }
    if (pad > 0 && members.rank + 1 < members.size) {
      rows.rank_below = members.ranks[members.rank + 1];
      rows.below = comm.peer(g.input, rows.rank_below);
    }
    launch(g, rows, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
