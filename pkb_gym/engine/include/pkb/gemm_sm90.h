// Matrix product of 16-bit floats on Hopper's tensor cores: C = sum over segments s of A_s B_s, row-major throughout.
//
//   A_s (rows, depth) and B_s (depth, cols), or its transpose (TransposedB), may lie in any rank's memory, C may be
//   stored to several destinations, and hooks say what a kernel does besides: which tile comes when, what an operand
//   waits for, what happens to sums.
//
// One persistent block a multiprocessor: a warp loads operands by tensor maps (TMA) into a ring of stages, two
// warpgroups of 64 rows each multiply from there (wgmma), and three more warps assist the hooks. Blocks of a cluster
// lie below each other and share the columns of B: each loads a part and multicasts it to the cluster's shared memory.
// Whatever lies beyond the end of a matrix is loaded as zero and not stored, so any shape works whose rows begin at
// multiples of 16 bytes; for others there is pkb/gemm_simt.h.
//
//   gemm::Product product = gemm::tiles<Shape>(rows, cols, depth);
//   product.a[0] = gemm::operand_map<T>(a, rows, depth, stride, gemm::kBlockM);
//   product.b[0] = gemm::operand_map<T>(b, depth, cols, stride, gemm::kBlockK);
//   product.out[0] = gemm::operand_map<T>(out, rows, cols, stride, gemm::kStoreRows);
//   gemm::launch<T, Shape>(product, gemm::Plain(), stream);
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "pkb/gemm_sm90_ptx.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm_cuda.h"

namespace pkb {
namespace gemm {

constexpr int kBlockM = 128;     // rows of a block
constexpr int kBlockK = 64;      // depth of a stage: 128 bytes, the width of a swizzled row
constexpr int kConsumers = 2;    // warpgroups that multiply
constexpr int kAssistants = 3;   // warps beside the one that loads
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kStoreRows = kBlockM / kConsumers;
constexpr int kMaxParts = 8;     // segments or destinations: more would make the arguments of every launch longer
constexpr int kBoxCols = 64;     // columns of a box of B or C: 128 bytes
constexpr int kBoxBytes = kBlockK * kBoxCols * 2;
constexpr int kSharedLimit = 227 * 1024 - 256;  // of dynamic shared memory; barriers take the rest
static_assert(kStoreRows == kBlockK, "boxes of B and C are equally large");

// A block's columns, the blocks of a cluster, the stages of its ring, how many columns of sums are staged at once, and
// in how many buffers by turns.
template <int kBlockN_, int kCluster_, int kStages_, int kStagedCols_, int kBuffers_ = 1>
struct Shape {
  static constexpr int kBlockN = kBlockN_, kCluster = kCluster_, kStages = kStages_;
  static constexpr int kStagedCols = kStagedCols_, kBuffers = kBuffers_;
  static constexpr bool kTransposedB = false;
  static constexpr int kTileRows = kCluster * kBlockM;  // a tile is what a cluster computes
  static constexpr int kSums = kBlockN / 2;             // of a thread
  static constexpr int kBytesA = kBlockM * kBlockK * 2, kBytesB = kBlockK * kBlockN * 2;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBufferBytes = kStoreRows * kStagedCols * 2;
  static constexpr int kStagedBytes = kBuffers * kBufferBytes;  // of a consumer
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kConsumers * kStagedBytes;  // 1024: alignment
  static_assert(kBlockN % (kCluster * kBoxCols) == 0 && kBlockN % (kBuffers * kStagedCols) == 0, "");
  static_assert(kStagedCols % kBoxCols == 0 && kSharedBytes <= kSharedLimit, "");
};

using Deep = Shape<256, 2, 4, 64, 2>;  // the longest ring; sums leave in four rounds through two buffers
using Fluid = Shape<256, 2, 3, 256>;   // sums leave at once, so that slow links do not hold up the tensor cores
using Small = Shape<128, 1, 6, 64, 2>;  // for products of fewer tiles than multiprocessors

// The same for B that lies transposed, (cols, depth) in rows of the depth, as weights of linear layers do.
template <class Shape>
struct TransposedB : Shape {
  static constexpr bool kTransposedB = true;
};

// What a cluster computes, from row `row` of A and column `col` of B on, and the row of C where it belongs.
struct Tile {
  int row, col, out_row;
  int owner, index;  // for hooks
};

// Everything but the hooks; made on the host and passed by value.
struct Product {
  CUtensorMap a[kMaxParts], b[kMaxParts], out[kMaxParts];
  int segments = 1, destinations = 1;
  int steps;                   // stages of depth in a segment
  int row_tiles, col_tiles;
  int group = 4;               // rows of tiles that are worked through together, column by column
  int tiles;
};

// Place `index` of the order in which `row_tiles` x `col_tiles` tiles are worked through.
template <class Shape>
__device__ __forceinline__ Tile tile_at(int index, int row_tiles, int col_tiles, int group) {
  const int first = index / (group * col_tiles) * group;
  const int rows = min(group, row_tiles - first), within = index - first * col_tiles;
  const int row = (first + within % rows) * Shape::kTileRows;
  return Tile{row, within / rows * Shape::kBlockN, row, 0, index};
}

// What one block of the kernel knows of itself.
struct Block {
  int first, stride;   // tiles of this cluster: first, first + stride, ...
  int in_cluster;
  uint32_t completed;  // shared memory, a word a consumer: tiles whose stores have completed (see kCountsTiles)
  uint32_t word;       // shared memory, for hooks; zero at first

  __device__ __forceinline__ uint32_t tiles(const Product& product) const {
    return first < product.tiles ? uint32_t(product.tiles - first + stride - 1) / stride : 0;
  }
};

// Where boxes of B lie that are loaded for a tile, of C's columns from `first` on, step by step of the depth.
struct PlainBoxes {
  int first, depth = 0;
  __device__ __forceinline__ int col(int box) const { return first + box * kBoxCols; }
  __device__ __forceinline__ int row(int) const { return depth; }
  __device__ __forceinline__ void advance() { depth += kBlockK; }
};
struct TransposedBoxes {
  int first, depth = 0;
  __device__ __forceinline__ int col(int) const { return depth; }
  __device__ __forceinline__ int row(int box) const { return first + box * kBoxCols; }
  __device__ __forceinline__ void advance() { depth += kBlockK; }
};

// Hooks that do nothing more: the base of others.
struct Plain {
  static constexpr bool kCountsTiles = false;  // keep `completed` after every tile, and not only at the end

  // Called by all threads, first of all.
  __device__ __forceinline__ void enter() const {}
  // Tiles of all blocks, at most those of the product: fewer where only the device knows how many rows there are.
  __device__ __forceinline__ int tiles(const Product& product) const { return product.tiles; }
  template <class Shape>
  __device__ __forceinline__ Tile tile(const Product& product, int index) const {
    return tile_at<Shape>(index, product.row_tiles, product.col_tiles, product.group);
  }
  // Called by the loading warp before it loads A of a segment.
  template <class Shape>
  __device__ __forceinline__ void await(const Tile&, int, const Block&) const {}
  // Called by one thread for the boxes that it loads of a segment: kBoxes of them, of C's columns from `col` on.
  template <class Shape, int kBoxes>
  __device__ __forceinline__ auto boxes_of_b(int col) const {
    return std::conditional_t<Shape::kTransposedB, TransposedBoxes, PlainBoxes>{col};
  }
  // Called by each consumer with its sums: rows 64 * consumer + 16 * warp + lane / 4 (+ 8 for sums 2 and 3 of four),
  // columns 8 * (i / 4) + 2 * (lane % 4) + i % 2. Returns whether they are to be stored. May use the staging memory, and
  // call nothing that is not inlined: all registers are taken.
  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const Tile&, float (&)[Shape::kSums], const Block&, int, uint32_t) const {
    return true;
  }
  // Called by the assisting warps 0 .. kAssistants-1, once.
  template <class Shape>
  __device__ __forceinline__ void assist(const Product&, const Block&, int) const {}
};

// Threads of one consumer wait until the stores of its staging memory have read it, or of the oldest of its buffers.
template <int kBuffers = 1>
__device__ __forceinline__ void claim_staging(int consumer) {
  if (threadIdx.x % 128 == 0) bulk_wait_read<kBuffers - 1>();
  named_barrier(1 + consumer, 128);
}

// What the threads of one consumer have written to shared memory is made known to the copy engine.
__device__ __forceinline__ void publish_staging(int consumer) {
  fence_async_shared();
  named_barrier(1 + consumer, 128);
}

// Stores a consumer's sums to all destinations of a Product, or of what else has `out` and `destinations`, by way of its
// staging memory.
template <class T, class Shape, class Results>
__device__ __forceinline__ void store_sums(const Results& product, const float (&sums)[Shape::kSums], uint32_t staging,
                                           int consumer, int row, int col) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const int box_row = warp * 16 + lane % 16;
#pragma unroll
  for (int round = 0; round < Shape::kBlockN / Shape::kStagedCols; ++round) {
    const uint32_t buffer = staging + round % Shape::kBuffers * Shape::kBufferBytes;
    claim_staging<Shape::kBuffers>(consumer);
#pragma unroll
    for (int group = 0; group < Shape::kStagedCols / 8; group += 2) {
      const float* eight = sums + (round * Shape::kStagedCols / 8 + group) * 4;
      const int unit = group % 8 + lane / 16;  // of 16 bytes, within a box's row; swizzled as tensor maps do
      store_matrices(buffer + group / 8 * kBoxBytes + box_row * 128 + ((unit ^ (box_row % 8)) * 16),
                     pack<T>(eight[0], eight[1]), pack<T>(eight[2], eight[3]), pack<T>(eight[4], eight[5]),
                     pack<T>(eight[6], eight[7]));
    }
    publish_staging(consumer);
    if (thread == 0) {
      for (int to = 0; to < product.destinations; ++to) {
#pragma unroll
        for (int box = 0; box < Shape::kStagedCols / kBoxCols; ++box) {
          store_box(&product.out[to], buffer + box * kBoxBytes,
                    col + round * Shape::kStagedCols + box * kBoxCols, row);
        }
      }
      bulk_commit();
    }
  }
}

// A place in the ring of stages; `phase` is the parity of the round.
template <class Shape>
struct Cursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Shape::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Shared memory, by address. A stage holds 128 rows of A, then kBlockN / 64 boxes of B.
template <class Shape>
struct Ring {
  uint32_t stages, full, empty;
  __device__ __forceinline__ uint32_t a(int stage) const { return stages + stage * Shape::kStageBytes; }
  __device__ __forceinline__ uint32_t b(int stage) const { return a(stage) + Shape::kBytesA; }
  __device__ __forceinline__ uint32_t is_full(int stage) const { return full + stage * 8; }
  __device__ __forceinline__ uint32_t is_empty(int stage) const { return empty + stage * 8; }
};

// The loading warp.
template <class Shape, class Hooks>
__device__ __forceinline__ void load_operands(const Product& product, const Hooks& hooks, const Ring<Shape>& ring,
                                              const Block& block) {
  constexpr int kBoxes = Shape::kBlockN / kBoxCols / Shape::kCluster;  // of B that this block loads
  Cursor<Shape> at;
  for (int index = block.first, tiles = hooks.tiles(product); index < tiles; index += block.stride) {
    const Tile tile = hooks.template tile<Shape>(product, index);
    for (int segment = 0; segment < product.segments; ++segment) {
      hooks.template await<Shape>(tile, segment, block);
      if (elect()) {
        auto boxes = hooks.template boxes_of_b<Shape, kBoxes>(tile.col + block.in_cluster * kBoxes * kBoxCols);
        for (int step = 0; step < product.steps; ++step, at.advance(), boxes.advance()) {
          wait_phase(ring.is_empty(at.stage), at.phase ^ 1);
          expect_bytes(ring.is_full(at.stage), Shape::kStageBytes);
          load_box(ring.a(at.stage), &product.a[segment], step * kBlockK, tile.row + block.in_cluster * kBlockM,
                   ring.is_full(at.stage));
#pragma unroll
          for (int i = 0; i < kBoxes; ++i) {
            const int box = block.in_cluster * kBoxes + i;
            load_box_to_cluster<Shape::kCluster>(ring.b(at.stage) + box * kBoxBytes, &product.b[segment], boxes.col(i),
                                                 boxes.row(i), ring.is_full(at.stage));
          }
        }
      }
      __syncwarp();
    }
  }
}

// A consumer: 64 rows of a block.
template <class T, class Shape, class Hooks>
__device__ __forceinline__ void consume(const Product& product, const Hooks& hooks, const Ring<Shape>& ring,
                                        const Block& block, int consumer, uint32_t staging) {
  // B is N-major: boxes of 64 columns lie kBoxBytes apart, groups of 8 rows 1024 bytes. A, and a transposed B, are
  // K-major: groups of 8 rows lie 1024 bytes apart, and the other distance has no meaning.
  constexpr uint64_t kLayoutA = matrix_layout(16, 1024);
  constexpr uint64_t kLayoutB = Shape::kTransposedB ? kLayoutA : matrix_layout(kBoxBytes, 1024);
  constexpr int kRowB = Shape::kTransposedB ? 2 : 128;  // bytes from one of the depth to the next
  constexpr int kDepth = 16;  // of one instruction
  const int lane = threadIdx.x % 32, steps = product.segments * product.steps;
  const auto release = [&](int stage) {
    if (lane < Shape::kCluster) arrive_in_cluster(ring.is_empty(stage), lane);
  };
  float sums[Shape::kSums];
  Cursor<Shape> at;
  uint32_t completed = 0;
  for (int index = block.first, tiles = hooks.tiles(product); index < tiles; index += block.stride) {
    const Tile tile = hooks.template tile<Shape>(product, index);
    int previous = 0;
    for (int step = 0; step < steps; ++step, at.advance()) {
      wait_phase(ring.is_full(at.stage), at.phase);
      const uint64_t a = kLayoutA | matrix_start(ring.a(at.stage) + consumer * kStoreRows * kBlockK * 2);
      const uint64_t b = kLayoutB | matrix_start(ring.b(at.stage));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kBlockK; k += kDepth) {  // along a row of A, down or along those of B; in units of 16 bytes
        Wgmma<T, Shape::kBlockN, Shape::kTransposedB>::multiply(sums, a + k * 2 / 16, b + k * kRowB / 16, step + k > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) release(previous);
      previous = at.stage;
    }
    wgmma_wait<0>();
    release(previous);

    if constexpr (Hooks::kCountsTiles) {  // by now this costs no waiting
      if (threadIdx.x % 128 == 0) {
        bulk_wait_complete();
        store_release_shared(block.completed + consumer * 4, completed);
      }
    }
    ++completed;
    if (hooks.template finish<T, Shape>(tile, sums, block, consumer, staging)) {
      store_sums<T, Shape>(product, sums, staging, consumer,
                           tile.out_row + block.in_cluster * kBlockM + consumer * kStoreRows, tile.col);
    }
  }
  if (threadIdx.x % 128 == 0) {
    bulk_wait_complete();
    store_release_shared(block.completed + consumer * 4, completed);
  }
}

// Each thread of a warp looks after one segment and one destination.
__device__ __forceinline__ void prefetch_maps(const Product& product) {
  const int lane = threadIdx.x % 32;
  if (lane < product.segments) {
    prefetch_map(&product.a[lane]);
    prefetch_map(&product.b[lane]);
  }
  if (lane < product.destinations) prefetch_map(&product.out[lane]);
}

template <class T, class Shape, class Hooks>
__global__ void __launch_bounds__(kThreads, 1)
    multiply(const __grid_constant__ Product product, const __grid_constant__ Hooks hooks) {
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ uint32_t completed[kConsumers], word;

  const uint32_t base = (shared_address(dynamic) + 1023) / 1024 * 1024;  // equal in all blocks of a cluster
  const Ring<Shape> ring{base, shared_address(full), shared_address(empty)};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const Block block{int(blockIdx.x) / Shape::kCluster, int(gridDim.x) / Shape::kCluster,
                    int(blockIdx.x) % Shape::kCluster, shared_address(completed), shared_address(&word)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      init_barrier(ring.is_full(stage), 1);
      init_barrier(ring.is_empty(stage), Shape::kCluster * kConsumers * 4);  // every consuming warp of the cluster
    }
    for (int i = 0; i < kConsumers; ++i) completed[i] = 0;
    word = 0;
    fence_barrier_init();
  }
  hooks.enter();
  if (warp == 1) prefetch_maps(product);
  cluster_sync<Shape::kCluster>();

  // Registers move from the first warpgroup to the consumers: 56 + 2 x 224 is what three warpgroups of 168 have.
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (warp == 0) {
      load_operands<Shape>(product, hooks, ring, block);
    } else {
      hooks.template assist<Shape>(product, block, warp - 1);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const int consumer = warp / 4 - 1;
    consume<T, Shape>(product, hooks, ring, block, consumer,
                      base + Shape::kStages * Shape::kStageBytes + consumer * Shape::kStagedBytes);
  }
  cluster_sync<Shape::kCluster>();  // a block that has ended takes no arrival of an empty stage
}

// ---- host ----

// A tensor map of a row-major matrix (rows, cols) whose rows begin `stride` elements apart, for boxes of 128 bytes and
// `box_rows` rows: kBlockM for A, kBlockK for B, kStoreRows for C.
template <class T>
CUtensorMap operand_map(const T* matrix, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    PKB_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) TVM_FFI_THROW(RuntimeError) << "the driver has no cuTensorMapEncodeTiled";
    return reinterpret_cast<Encode>(entry);
  }();
  const cuuint64_t sizes[2] = {cuuint64_t(cols), cuuint64_t(rows)}, strides[1] = {cuuint64_t(stride) * sizeof(T)};
  const cuuint32_t box[2] = {kBoxCols, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  constexpr auto kType = std::is_same_v<T, __nv_bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map;
  const CUresult result =
      encode(&map, kType, 2, const_cast<T*>(matrix), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    TVM_FFI_THROW(RuntimeError) << "cuTensorMapEncodeTiled: error " << int(result) << " for a matrix (" << rows << ", "
                                << cols << ") of stride " << stride;
  }
  return map;
}

// Whether matrices whose rows are as long as these can be operands and results, and of so many ranks.
inline bool fits(int64_t depth, int64_t cols, int ranks) {
  return depth > 0 && cols > 0 && depth % 8 == 0 && cols % 8 == 0 && ranks <= kMaxParts;
}

inline int divide_up(int64_t a, int64_t b) { return int((a + b - 1) / b); }

template <class Shape>
Product tiles(int64_t rows, int64_t cols, int64_t depth) {
  Product product;
  product.steps = divide_up(depth, kBlockK);
  product.row_tiles = divide_up(rows, Shape::kTileRows);
  product.col_tiles = divide_up(cols, Shape::kBlockN);
  product.tiles = product.row_tiles * product.col_tiles;
  return product;
}

// Whether a product is large enough to occupy all multiprocessors with the larger tiles.
inline bool is_large(int64_t rows, int64_t cols) {
  return int64_t(divide_up(rows, Deep::kTileRows)) * divide_up(cols, Deep::kBlockN) * Deep::kCluster >= multiprocessors();
}

// Enqueues a kernel of a Shape's blocks, as many clusters as can be resident at once: hooks may wait for each other's.
template <auto kKernel, class Shape, class Hooks>
void launch_clusters(const Product& product, const Hooks& hooks, cudaStream_t stream) {
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Shape::kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(Shape::kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = Shape::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  static const int resident = [&] {
    int clusters = 0;
    PKB_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes));
    PKB_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config));
    return clusters;
  }();
  config.gridDim = dim3(unsigned(std::min(resident, product.tiles) * Shape::kCluster));
  PKB_CUDA(cudaLaunchKernelEx(&config, kKernel, product, hooks));
}

template <class T, class Shape, class Hooks>
void launch(const Product& product, const Hooks& hooks, cudaStream_t stream) {
  launch_clusters<multiply<T, Shape, Hooks>, Shape>(product, hooks, stream);
}

}  // namespace gemm
}  // namespace pkb
