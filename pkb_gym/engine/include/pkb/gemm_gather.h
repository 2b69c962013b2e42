// Products whose left matrix lies in shards of columns on all ranks: hooks for pkb/gemm_sm90.h by which spare warps push
// this rank's shard to the peers while the tensor cores work.
//
// Shards are gathered in scratch, one by one as they lie, by warps that would otherwise idle, in the order in which tiles
// need them; a flag for each piece says that it is there. Every tile begins with this rank's own shard, and rows are
// worked through a few tiles at a time, so that the first tiles need little of the others. All ranks may want the whole
// shard, or each some rows of its own. Flags are all the synchronisation: nobody touches a peer's arguments or output.
// Scratch is used in two halves by turns, and each rank needs all others' shards in every call, so that none can be two
// calls ahead.
//
//   gemm::Product product = gemm::tiles<Shape>(rows, cols, depth);       // depth of a shard
//   const gemm::Gather gather(comm, product, Shape{}, shard, rows, depth, step);
//   gather.set_operands(product, shard, comm);                           // A of all segments; segment s is of rank + s
//   gemm::launch<T, Shape>(product, gather, stream);                     // or with Peers, if not gather.fits
//
// gather_and_multiply() is the whole of it for a matrix that all ranks gather.
//
// Bound: arithmetic; W - 1 shards cross the link into each rank once, beside it.
#pragma once

#include "pkb/gemm_peers.h"
#include "pkb/gemm_simt.h"

namespace pkb {
namespace gemm {

constexpr int kGatherGroup = 4;  // rows of tiles: the sooner the first wave's rows are gathered, the less it waits

// Rows of a shard that a tile needs are contiguous: a run of pieces. Segment 0 is this rank's, segment s of rank + s.
template <class T>
struct Gather : Plain {
  static constexpr int kWordsInFlight = 8;                          // of 16 bytes, a thread
  static constexpr int64_t kSmallPiece = kWordsInFlight * 16 * 32;  // what a warp moves at once: least latency
  static constexpr int64_t kLargePiece = 4 * kSmallPiece;           // fewer flags to look at
  static constexpr uint64_t kFlagBytes = 1 << 20;                   // scratch: flags, then shards of even and odd calls

  Device comm;
  const char* shard;
  uint64_t gathered;      // in scratch: the others' shards, by segment
  int64_t rows, depth;    // of a shard that a rank receives
  int64_t step_bytes;     // the rows for rank r begin r times as many bytes on in the shard
  int64_t shard_bytes, run_bytes, piece_bytes;
  int pieces;             // in a run
  bool fits;              // scratch has room

  // Rank r gets (rows, depth) of `from`, from element r * step on: all of it, or where step is 0 the same rows as others.
  // Shape{} tells the shape of tiles.
  template <class Shape>
  Gather(const Comm& host, Product& product, Shape, const T* from, int64_t rows, int64_t depth, int64_t step)
      : comm(host.device()), shard(reinterpret_cast<const char*>(from)), rows(rows), depth(depth),
        step_bytes(step * int64_t(sizeof(T))), shard_bytes(rows * depth * int64_t(sizeof(T))),
        run_bytes(Shape::kTileRows * depth * int64_t(sizeof(T))),
        piece_bytes(std::is_base_of_v<Small, Shape> ? kSmallPiece : kLargePiece),
        pieces(divide_up(run_bytes, piece_bytes)) {
    product.segments = host.world_size;
    product.group = kGatherGroup;
    const uint64_t others = host.world_size - 1, half = (host.scratch_bytes - kFlagBytes) / 512 * 256;
    gathered = kFlagBytes + host.epoch % 2 * half;
    fits = others > 0 && others * shard_bytes <= half &&
           product.row_tiles * others * pieces * sizeof(uint64_t) <= kFlagBytes;
  }

  // The left operands: gathered ones, or those of peers where scratch has no room.
  void set_operands(Product& product, const Comm& host) const {
    for (int segment = 0; segment < host.world_size; ++segment) {
      const int r = (host.rank + segment) % host.world_size;
      const T* a = reinterpret_cast<const T*>(host.peer(shard, r) + host.rank * step_bytes);
      if (fits && segment > 0) a = host.scratch<T>(gathered) + (segment - 1) * rows * depth;
      product.a[segment] = operand_map<T>(a, rows, depth, depth, kBlockM);
    }
  }

  // The loading warp looks at all flags of the run at once.
  template <class Shape>
  __device__ __forceinline__ void await(const Tile& tile, int segment, const Block& block) const {
    if (segment == 0) return;
    const uint64_t* flag = flags(tile.row / Shape::kTileRows, segment);
    bool ready;
    do {
      ready = true;
      for (int i = threadIdx.x % 32; i < pieces; i += 32) ready = ready && load_acquire(flag + i) >= comm.epoch;
    } while (!__all_sync(~0u, ready));
    if (tile.index < block.stride) comm.hold();
    fence_async_global();  // what peers have stored, tensor maps will read
  }

  template <class Shape>
  __device__ __forceinline__ void assist(const Product& product, const Block&, int warp) const {
    const int others = comm.world_size - 1, in_group = product.group * pieces;
    const int groups = (product.row_tiles + product.group - 1) / product.group;
    const int total = groups * others * in_group, stride = gridDim.x * kAssistants;
    for (int i = warp * gridDim.x + blockIdx.x; i < total; i += stride) {
      const int group = i / (others * in_group), in_segment = i % in_group;
      const int row_tile = group * product.group + in_segment / pieces, piece = in_segment % pieces;
      const int segment = i / in_group % others + 1;
      if (row_tile < product.row_tiles) push(row_tile, segment, piece);
    }
  }

 private:
  __device__ __forceinline__ uint64_t* flags(int row_tile, int segment) const {
    return comm.scratch<uint64_t>() + (row_tile * (comm.world_size - 1) + segment - 1) * pieces;
  }

  // To the rank whose segment of this number is this rank's shard.
  __device__ __forceinline__ void push(int row_tile, int segment, int piece) const {
    const int lane = threadIdx.x % 32, receiver = (comm.rank + comm.world_size - segment) % comm.world_size;
    const int64_t begin = row_tile * run_bytes + piece * piece_bytes;
    const int size = int(min(min(piece_bytes, (row_tile + 1) * run_bytes - begin), shard_bytes - begin));
    const char* from = shard + receiver * step_bytes + begin;
    char* to = comm.peer(comm.scratch<char>(gathered) + (segment - 1) * shard_bytes, receiver) + begin;
    for (int at = lane * 16; at < size; at += kWordsInFlight * 16 * 32) {
      uint4 words[kWordsInFlight];
#pragma unroll
      for (int i = 0; i < kWordsInFlight; ++i) {
        if (at + i * 512 < size) words[i] = __ldcg(reinterpret_cast<const uint4*>(from + at + i * 512));
      }
#pragma unroll
      for (int i = 0; i < kWordsInFlight; ++i) {
        if (at + i * 512 < size) __stcg(reinterpret_cast<uint4*>(to + at + i * 512), words[i]);
      }
    }
    fence_async_global();
    __syncwarp();
    if (lane == 0) store_release(comm.peer(flags(row_tile, segment) + piece, receiver), comm.epoch);
  }
};

// The product of gathered shards (rows, depth), as they lie from element r * step of rank s's on, with b, of which rank
// s's rows (depth, cols) begin s * depth rows on. Sums go through hooks_of(hooks), into out (rows, cols).
template <class T, class Shape, class HooksOf>
void multiply_gathered(const T* shard, int64_t rows, int64_t depth, int64_t step, const T* b, int64_t cols, T* out,
                       const Comm& comm, const HooksOf& hooks_of) {
  Product product = tiles<Shape>(rows, cols, depth);
  const Gather<T> gather(comm, product, Shape{}, shard, rows, depth, step);
  gather.set_operands(product, comm);
  for (int segment = 0; segment < comm.world_size; ++segment) {
    const int r = (comm.rank + segment) % comm.world_size;
    product.b[segment] = operand_map<T>(b + r * depth * cols, depth, cols, cols, kBlockK);
  }
  product.out[0] = operand_map<T>(out, rows, cols, cols, kStoreRows);
  if (gather.fits) {
    launch<T, Shape>(product, hooks_of(gather), comm.cuda_stream());
  } else {  // scratch is too small only where the product is: then the shards are read from where they lie
    launch<T, Shape>(product, hooks_of(Peers(comm)), comm.cuda_stream());
  }
}

// The same on CUDA cores, from where the shards lie.
template <class T>
void multiply_gathered_simt(const T* shard, int64_t rows, int64_t depth, int64_t step, const T* b, int64_t cols, T* out,
                            const Comm& comm) {
  SimtProduct<T> product;
  product.rows = rows;
  product.cols = product.b_stride = product.out_stride = cols;
  product.depth = product.a_stride = depth;
  product.segments = comm.world_size;
  for (int r = 0; r < comm.world_size; ++r) {
    product.a[r] = comm.peer(shard, r) + comm.rank * step;
    product.b[r] = b + r * depth * cols;
  }
  product.out[0] = out;
  launch_simt(product, comm);
}

// out = A B of a matrix A whose columns lie in shards A_local (M, K / W) on all ranks; B (K, N) and out (M, N) are this
// rank's own.
inline void gather_and_multiply(const tvm::ffi::TensorView& A_local, const tvm::ffi::TensorView& B,
                                const tvm::ffi::TensorView& out, const Comm& comm) {
  const int64_t rows = A_local.size(0), depth = A_local.size(1), cols = B.size(1);
  if (rows != out.size(0) || B.size(0) != comm.world_size * depth || cols != out.size(1)) {
    TVM_FFI_THROW(ValueError) << "shapes of A_local " << A_local.shape() << ", B " << B.shape() << " and out "
                              << out.shape() << " do not fit";
  }
  with_type<__nv_bfloat16, __half, float, double>(A_local.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *shard = static_cast<const T*>(A_local.data_ptr()), *b = static_cast<const T*>(B.data_ptr());
    T* to = static_cast<T*>(out.data_ptr());
    if constexpr (sizeof(T) == 2) {
      const auto same = [](const auto& hooks) { return hooks; };
      if (fits(depth, cols, comm.world_size)) {
        if (is_large(rows, cols)) multiply_gathered<T, Deep>(shard, rows, depth, 0, b, cols, to, comm, same);
        else multiply_gathered<T, Small>(shard, rows, depth, 0, b, cols, to, comm, same);
        return;
      }
    }
    multiply_gathered_simt(shard, rows, depth, 0, b, cols, to, comm);
  });
}

}  // namespace gemm
}  // namespace pkb
