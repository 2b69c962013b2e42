// AllGatherGemm: spare warps of the matrix product push this rank's shard of A to the peers while the tensor cores work.
//
// A is gathered in scratch, shard by shard as it lies, by warps that would otherwise idle, in the order in which tiles
// need it; a flag for each piece says that it is there. Every tile begins with this rank's own shard, and rows are
// worked through a few tiles at a time, so that the first tiles need little of the others. W - 1 shards cross the link
// into each rank once. Flags are all the synchronisation: nobody touches a peer's arguments or output. Scratch is used
// in two halves by turns, and each rank needs all others' shards in every call, so that none can be two calls ahead.
// Bound: arithmetic, 2 M N K operations a rank.
#include "pkb/gemm_peers.h"
#include "pkb/gemm_simt.h"
#include "pkb/symm.h"

using pkb::gemm::Product;
using pkb::gemm::Tile;
using tvm::ffi::TensorView;

namespace {

constexpr int kGroup = 4;  // rows of tiles: the sooner the first wave's rows are gathered, the less it waits
constexpr int kWordsInFlight = 8;                             // of 16 bytes, a thread
constexpr int64_t kSmallPiece = kWordsInFlight * 16 * 32;     // what a warp moves at once: least latency
constexpr int64_t kLargePiece = 4 * kSmallPiece;              // fewer flags to look at
constexpr uint64_t kFlagBytes = 1 << 20;                      // scratch: flags, then shards of even and of odd calls

// Rows of a shard that a tile needs are contiguous: a run of pieces. Segment 0 is this rank's, segment s of rank + s.
struct Gather : pkb::gemm::Plain {
  pkb::Device comm;
  const char* shard;
  uint64_t gathered;  // in scratch: the others' shards, by segment
  int64_t shard_bytes, run_bytes, piece_bytes;
  int pieces;  // in a run

  __device__ __forceinline__ uint64_t* flags(int row_tile, int segment) const {
    return comm.scratch<uint64_t>() + (row_tile * (comm.world_size - 1) + segment - 1) * pieces;
  }

  // The loading warp looks at all flags of the run at once.
  template <class Shape>
  __device__ __forceinline__ void await(const Tile& tile, int segment, const pkb::gemm::Block& block) const {
    if (segment == 0) return;
    const uint64_t* flag = flags(tile.row / Shape::kTileRows, segment);
    bool ready;
    do {
      ready = true;
      for (int i = threadIdx.x % 32; i < pieces; i += 32) ready = ready && pkb::load_acquire(flag + i) >= comm.epoch;
    } while (!__all_sync(~0u, ready));
    if (tile.index < block.stride) comm.hold();
    pkb::gemm::fence_async_global();  // what peers have stored, tensor maps will read
  }

  template <class Shape>
  __device__ __forceinline__ void assist(const Product& product, const pkb::gemm::Block&, int warp) const {
    const int others = comm.world_size - 1, in_group = product.group * pieces;
    const int total = groups(product) * others * in_group, stride = gridDim.x * pkb::gemm::kAssistants;
    for (int i = warp * gridDim.x + blockIdx.x; i < total; i += stride) {
      const int group = i / (others * in_group), in_segment = i % in_group;
      const int row_tile = group * product.group + in_segment / pieces, piece = in_segment % pieces;
      const int segment = i / in_group % others + 1;
      if (row_tile < product.row_tiles) push(row_tile, segment, piece);
    }
  }

 private:
  __device__ __forceinline__ static int groups(const Product& product) {
    return (product.row_tiles + product.group - 1) / product.group;
  }

  // To the rank whose segment of this number is this rank's shard.
  __device__ __forceinline__ void push(int row_tile, int segment, int piece) const {
    const int lane = threadIdx.x % 32, receiver = (comm.rank + comm.world_size - segment) % comm.world_size;
    const int64_t begin = row_tile * run_bytes + piece * piece_bytes;
    const int size = int(min(min(piece_bytes, (row_tile + 1) * run_bytes - begin), shard_bytes - begin));
    const char* from = shard + begin;
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
    pkb::gemm::fence_async_global();
    __syncwarp();
    if (lane == 0) pkb::store_release(comm.peer(flags(row_tile, segment) + piece, receiver), comm.epoch);
  }
};

template <class T, class Shape>
void on_tensor_cores(const TensorView& A_local, const TensorView& B, const TensorView& out, const pkb::Comm& comm) {
  const int64_t M = A_local.size(0), depth = A_local.size(1), N = B.size(1);
  const T* shard = static_cast<const T*>(A_local.data_ptr());
  Product product = pkb::gemm::tiles<Shape>(M, N, depth);
  product.segments = comm.world_size;
  product.group = kGroup;

  Gather gather;
  gather.comm = comm.device();
  gather.shard = reinterpret_cast<const char*>(shard);
  gather.shard_bytes = M * depth * sizeof(T);
  gather.run_bytes = Shape::kTileRows * depth * sizeof(T);
  gather.piece_bytes = std::is_same_v<Shape, pkb::gemm::Small> ? kSmallPiece : kLargePiece;
  gather.pieces = pkb::gemm::divide_up(gather.run_bytes, gather.piece_bytes);
  const uint64_t others = comm.world_size - 1, half = (comm.scratch_bytes - kFlagBytes) / 512 * 256;
  gather.gathered = kFlagBytes + comm.epoch % 2 * half;
  const bool gathers = others > 0 && others * gather.shard_bytes <= half &&
                       product.row_tiles * others * gather.pieces * sizeof(uint64_t) <= kFlagBytes;

  for (int segment = 0; segment < comm.world_size; ++segment) {
    const int r = (comm.rank + segment) % comm.world_size;
    const T* a = comm.peer(shard, r);
    if (gathers && segment > 0) a = comm.scratch<T>(gather.gathered) + (segment - 1) * M * depth;
    product.a[segment] = pkb::gemm::operand_map<T>(a, M, depth, depth, pkb::gemm::kBlockM);
    const T* b = static_cast<const T*>(B.data_ptr()) + r * depth * N;
    product.b[segment] = pkb::gemm::operand_map<T>(b, depth, N, N, pkb::gemm::kBlockK);
  }
  product.out[0] = pkb::gemm::operand_map<T>(static_cast<T*>(out.data_ptr()), M, N, N, pkb::gemm::kStoreRows);
  if (gathers) {
    pkb::gemm::launch<T, Shape>(product, gather, comm.cuda_stream());
  } else {  // scratch is too small only where N is: then the shards are read from where they lie
    pkb::gemm::launch<T, Shape>(product, pkb::gemm::Peers(comm), comm.cuda_stream());
  }
}

template <class T>
void on_cuda_cores(const TensorView& A_local, const TensorView& B, const TensorView& out, const pkb::Comm& comm) {
  pkb::gemm::SimtProduct<T> product;
  product.rows = A_local.size(0);
  product.cols = product.b_stride = product.out_stride = B.size(1);
  product.depth = product.a_stride = A_local.size(1);
  product.segments = comm.world_size;
  for (int r = 0; r < comm.world_size; ++r) {
    product.a[r] = comm.peer<const T>(A_local, r);
    product.b[r] = static_cast<const T*>(B.data_ptr()) + r * product.depth * product.cols;
  }
  product.out[0] = static_cast<T*>(out.data_ptr());
  pkb::gemm::launch_simt(product, comm);
}

template <class T>
void half_width(const TensorView& A_local, const TensorView& B, const TensorView& out, const pkb::Comm& comm) {
  if (!pkb::gemm::fits(A_local.size(1), B.size(1), comm.world_size)) return on_cuda_cores<T>(A_local, B, out, comm);
  if (pkb::gemm::is_large(A_local.size(0), B.size(1))) {
    return on_tensor_cores<T, pkb::gemm::Deep>(A_local, B, out, comm);
  }
  on_tensor_cores<T, pkb::gemm::Small>(A_local, B, out, comm);
}

}  // namespace

void solution(TensorView A_local, TensorView B, TensorView out, pkb::Comm comm) {
  const DLDataType dtype = A_local.dtype();
  if (A_local.size(0) != out.size(0) || B.size(0) != comm.world_size * A_local.size(1) || B.size(1) != out.size(1)) {
    TVM_FFI_THROW(ValueError) << "shapes of A_local " << A_local.shape() << ", B " << B.shape() << " and out "
                              << out.shape() << " do not fit";
  }
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return half_width<__nv_bfloat16>(A_local, B, out, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return half_width<__half>(A_local, B, out, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return on_cuda_cores<float>(A_local, B, out, comm);
  if (dtype == DLDataType{kDLFloat, 64, 1}) return on_cuda_cores<double>(A_local, B, out, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16, float32 or float64, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
