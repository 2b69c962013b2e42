// ContrastiveLoss: texts are fetched from the peers beside the product with a rank's own, and logits never leave
// registers.
//
// What moves: every rank's texts come in once, all from where they lie. Images and texts are multiplied on the tensor
// cores (pkb/gemm_sm90.h); a warp turns its sums into losses and adds them up, and stores one number a tile. Large
// texts come by copy engines, one peer's while those before are multiplied; small ones by one kernel, and then all are
// multiplied at once. A rank ends its call when its peers have read its texts. A last kernel adds up the numbers in a
// fixed order.
//
// Bound: arithmetic, 2 b^2 D W operations; at small sizes, four launches. The baseline passes texts around a ring,
// stores every block of logits, and makes five passes over it.
//
// Left on the table: logarithms and exponentials stand between two tiles of a warpgroup, about a sixth of the products'
// time at 1024 channels. The other triangle of the ranks' pairs is not used: blocks of two ranks are no transposes of
// each other. float32, and rows that are no multiples of 16 bytes, run on CUDA cores, and store a block's logits.
#include "pkb/fetch_beside_cuda.h"
#include "pkb/gemm_linear.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256;

// log(1 + e), by its series where e is small, as nearly all are.
constexpr float kSmall = 0.01f;
__device__ __forceinline__ float log1p_of_small(float e) { return e * (1.0f - e * (0.5f - e * 0.333333f)); }
__device__ __forceinline__ float log1p_of(float e) { return e < kSmall ? log1p_of_small(e) : __logf(1.0f + e); }

// The loss of an image and a text: -log(sigmoid(z)) = max(-z, 0) + log(1 + e^-|z|), where z is the logit of a match, and
// minus the logit of another pair.
struct Loss {
  float scale, bias;
  int match;  // column of the first image's match; below -b where there is none

  __device__ __forceinline__ float operator()(float product, bool is_match) const {
    const float logit = scale * product + bias, z = is_match ? logit : -logit;
    return fmaxf(-z, 0.0f) + log1p_of(__expf(-fabsf(z)));
  }

  // Whether there is a match in a range of rows and columns.
  __device__ __forceinline__ bool has_match(int row, int rows, int col, int cols) const {
    return col < row + rows + match && col + cols > row + match;
  }
};

// The sum of max(x, 0) + log(1 + e^-|x|), x being minus z.
template <int kCount>
__device__ __forceinline__ float sum_losses(const float (&logits)[kCount]) {
  constexpr int kGroup = 16;  // formed together: there are no registers to keep more exponentials in
  float all = 0.0f;
#pragma unroll
  for (int first = 0; first < kCount; first += kGroup) {
    float e[kGroup], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float x = logits[first + i];
      e[i] = __expf(-fabsf(x));
      largest = fmaxf(largest, e[i]);
      all += fmaxf(x, 0.0f) + log1p_of_small(e[i]);
    }
    if (largest < kSmall) continue;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) all += log1p_of(e[i]) - log1p_of_small(e[i]);
  }
  return all;
}

// Hooks that add up the losses of a tile, one number a warp, instead of storing sums.
struct AddLosses : pkb::gemm::Plain {
  Loss loss;
  float* numbers;
  int rows, cols;
  AddLosses(const Loss& loss, float* numbers, int64_t rows, int64_t cols)
      : loss(loss), numbers(numbers), rows(int(rows)), cols(int(cols)) {}

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const pkb::gemm::Tile& tile, float (&sums)[Shape::kSums],
                                         const pkb::gemm::Block& block, int consumer, uint32_t) const {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int warp = (block.in_cluster * pkb::gemm::kConsumers + consumer) * 4 + thread / 32;
#pragma unroll
    for (float& sum : sums) sum = loss.scale * sum + loss.bias;
    if (tile.out_row + Shape::kTileRows > rows || tile.col + Shape::kBlockN > cols ||
        loss.has_match(tile.out_row, Shape::kTileRows, tile.col, Shape::kBlockN)) {
      const int row = tile.out_row + warp * 16 + lane / 4, col = tile.col + lane % 4 * 2;
      const int rows_left = rows - row, cols_left = cols - col, match = row + loss.match - col;
#pragma unroll
      for (int i = 0; i < Shape::kSums; ++i) {
        const int down = i / 2 % 2 * 8, along = i / 4 * 8 + i % 2;
        if (along == match + down) sums[i] = -sums[i];
        if (down >= rows_left || along >= cols_left) sums[i] = -pkb::kInfinity;  // nothing is lost by it
      }
    }
    float all = sum_losses(sums);
    all = pkb::Warp().sum(all);
    if (lane == 0) numbers[int64_t(tile.index) * (Shape::kTileRows / 16) + warp] = all;
    return false;
  }
};

// Losses of stored logits (rows, cols), one number a block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_stored(const T* products, const __grid_constant__ Loss loss, int64_t rows, int64_t cols, float* numbers) {
  float all = 0.0f;
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < rows * cols; i += step) {
    all += loss(pkb::to_float(products[i]), i % cols - i / cols == loss.match);
  }
  all = pkb::reduce_block<kThreads>(all, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) numbers[blockIdx.x] = all;
}

// Fetches all ranks' texts, in order of rank, and waits until all have read this rank's.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, pkb::kBlocksPerSm)
    fetch(const char* texts, char* to, uint64_t bytes, int64_t group, const __grid_constant__ pkb::Device comm) {
  const int ranks = comm.group_size(group), thread = int(threadIdx.x);
  comm.signal_begun(group);
  comm.wait_all_begun(0, group);
  for (int k = 0; k < ranks; ++k) {
    const int place = (comm.group_rank(group) + k) % ranks;
    pkb::copy(to + place * bytes, comm.peer(texts, comm.group_member(group, place)), bytes, blockIdx.x, gridDim.x);
  }
  comm.barrier_blocks(0, group);
}

template <class T, int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads) add_up(const float* numbers, int64_t count, float divisor, T* loss) {
  float all = 0.0f;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) all += numbers[i];
  all = pkb::reduce_block<kBlockThreads>(all, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) *loss = T(all / divisor);
}

// Keep two buffers apart from others of T.
template <class T>
struct Text {
  T element;
};
template <class T>
struct Logit {
  T element;
};

template <class T>
struct Globals {
  const T *images, *texts;
  T* loss;
  int64_t b, D, group;
  Loss of;
  bool on_tensor_cores, is_large;

  int no_match() const { return int(-b - 1); }

  // Numbers that count_block() makes of so many texts.
  int64_t numbers(int64_t texts) const {
    if (!on_tensor_cores) return pkb::blocks_for(b * texts, kThreads);
    using pkb::gemm::Deep, pkb::gemm::Small;
    const pkb::gemm::Product product =
        is_large ? pkb::gemm::tiles<Deep>(b, texts, D) : pkb::gemm::tiles<Small>(b, texts, D);
    return int64_t(product.tiles) * (is_large ? Deep::kTileRows : Small::kTileRows) / 16;
  }
};

template <class T, class Shape>
void multiply(const Globals<T>& g, const T* texts, int64_t count, const Loss& loss, float* numbers,
              cudaStream_t stream) {
  pkb::gemm::Product product = pkb::gemm::tiles<Shape>(g.b, count, g.D);
  product.a[0] = pkb::gemm::operand_map<T>(g.images, g.b, g.D, g.D, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(texts, count, g.D, g.D, pkb::gemm::kBlockK);
  product.destinations = 0;
  pkb::gemm::launch<T, Shape>(product, AddLosses(loss, numbers, g.b, count), stream);
}

// Losses of all images with some texts, of which `match` is the first image's, as g.numbers(count) numbers.
template <class T>
void count_block(const Globals<T>& g, const T* texts, int64_t count, int match, float* numbers, cudaStream_t stream) {
  const Loss loss{g.of.scale, g.of.bias, match};
  if constexpr (sizeof(T) == 2) {
    if (g.on_tensor_cores) {
      using pkb::gemm::TransposedB;
      if (g.is_large) multiply<T, TransposedB<pkb::gemm::Deep>>(g, texts, count, loss, numbers, stream);
      else multiply<T, TransposedB<pkb::gemm::Small>>(g, texts, count, loss, numbers, stream);
      return;
    }
  }
  T* products = reinterpret_cast<T*>(pkb::kept_memory<Logit<T>>(g.b * count));
  pkb::gemm::linear<T>(g.images, texts, products, g.b, count, g.D, stream);
  add_stored<T><<<unsigned(g.numbers(count)), kThreads, 0, stream>>>(products, loss, g.b, count, numbers);
  PKB_CUDA_LAUNCHED();
}

// Multiplies own texts, and each peer's once they have been copied. Returns how many numbers that makes.
template <class T>
int64_t count_beside_copies(const Globals<T>& g, float* numbers, const pkb::Comm& comm) {
  const pkb::FetchBeside fetch(comm, g.group);
  const int64_t each = g.b * g.D, of_block = g.numbers(g.b);
  T* copies = reinterpret_cast<T*>(pkb::kept_memory<Text<T>>(each * (fetch.ranks() - 1)));
  for (int k = 1; k < fetch.ranks(); ++k) fetch.copy(k, copies + (k - 1) * each, g.texts, each * sizeof(T));
  count_block(g, g.texts, g.b, 0, numbers, comm.cuda_stream());
  for (int k = 1; k < fetch.ranks(); ++k) {
    fetch.await(k);
    count_block(g, copies + (k - 1) * each, g.b, g.no_match(), numbers + k * of_block, comm.cuda_stream());
  }
  fetch.end();
  return fetch.ranks() * of_block;
}

template <class T>
void launch(const Globals<T>& g, const pkb::Comm& comm) {
  const pkb::Group& group = comm.group(g.group);
  const uint64_t bytes = g.b * g.D * sizeof(T);
  const bool by_copy_engines = group.size > 1 && bytes >= pkb::kCopyEngineBytes;
  const int64_t at_once = by_copy_engines ? g.b : g.b * group.size;
  float* numbers = pkb::kept_memory<float>(g.numbers(at_once) * (by_copy_engines ? group.size : 1));
  int64_t count = g.numbers(at_once);
  if (by_copy_engines) {
    count = count_beside_copies(g, numbers, comm);
  } else if (group.size == 1) {
    count_block(g, g.texts, g.b, 0, numbers, comm.cuda_stream());
  } else {
    T* texts = reinterpret_cast<T*>(pkb::kept_memory<Text<T>>(g.b * g.D * group.size));
    const unsigned blocks = pkb::blocks_for(bytes * group.size, pkb::kCopyTile);
    fetch<pkb::kTransferThreads><<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(
        reinterpret_cast<const char*>(g.texts), reinterpret_cast<char*>(texts), bytes, g.group, comm.device());
    PKB_CUDA_LAUNCHED();
    count_block(g, texts, at_once, int(group.rank * g.b), numbers, comm.cuda_stream());
  }
  add_up<T, 1024><<<1, 1024, 0, comm.cuda_stream()>>>(numbers, count, float(g.b), g.loss);
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView image_features, TensorView text_features, double logit_scale, double logit_bias, int64_t group,
              TensorView loss, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(image_features.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Globals<T> g{};
    g.images = static_cast<const T*>(image_features.data_ptr());
    g.texts = static_cast<const T*>(text_features.data_ptr());
    g.loss = static_cast<T*>(loss.data_ptr());
    g.b = image_features.size(0);
    g.D = image_features.size(1);
    g.group = group;
    g.of = Loss{float(logit_scale), float(logit_bias), 0};
    g.on_tensor_cores = sizeof(T) == 2 && pkb::gemm::fits(g.D, 8, 1);
    g.is_large = pkb::gemm::is_large(g.b, g.b);
    launch(g, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
