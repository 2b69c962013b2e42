// GemmReduceScatter: each rank pushes its partial products, tile by tile, to their owner, which adds them to its own.
//
// Tiles of the other ranks' rows come first; this rank's rows come last, when the others' parts have long arrived, and
// add them in registers. So no pass over partial products is left at the end, and this rank's own is never rounded.
// pkb/gemm_reduce.h does so for small products. In large ones, where a block has many tiles, neither sums that leave
// nor parts that come in keep the tensor cores waiting: rounded sums stay in registers until the next tile has begun,
// and leave by bulk copies beside it; parts are loaded into the same registers before the tile that they belong to is
// complete. So there are consumers of its own here, around the loading warp and the ring of pkb/gemm_sm90.h.
//
// A flag for each part, set to the epoch, is all the synchronisation: nobody touches a peer's arguments or outputs.
// Scratch is used in turns of two by the parity of the epoch: a rank ends call e + 1 only after all others have begun
// it, and so have ended call e, which read what call e + 2 overwrites. (W - 1) m N elements leave each rank. Bound:
// arithmetic, 2 M k N operations a rank.
#include "pkb/gemm_reduce.h"
#include "pkb/gemm_simt.h"
#include "pkb/symm.h"

using pkb::gemm::Product;
using tvm::ffi::TensorView;

namespace {

using pkb::gemm::Block;
using pkb::gemm::kConsumers;
using pkb::gemm::Reduce;
using pkb::gemm::Small;
using pkb::gemm::Tile;

constexpr int kGroup = 8;  // rows of tiles that are worked through together: waves of tiles are about square
using Large = pkb::gemm::Shape<256, 2, 4, 128>;  // the longest ring, and room for half of a tile's sums

// ---- Large products ----

// Which tile comes when, and where what the ranks send each other lies in scratch: flags, then parts of even and of odd
// calls. A part is what a consumer's registers hold of a tile.
template <class Shape>
struct Deferred : pkb::gemm::Plain {
  static_assert(Shape::kBlockN == 2 * Shape::kStagedCols && Shape::kBuffers == 1, "sums leave in two halves");
  static constexpr int64_t kPartBytes = 2 * Shape::kBufferBytes;
  static constexpr uint64_t kFlagBytes = 1 << 20;

  pkb::Device comm;
  int total;       // tiles of all owners, of which each has as many
  int owner_rows;  // rows of A of an owner
  uint64_t parts_offset;

  static bool suits(const pkb::Comm& comm, int64_t total) {
    const uint64_t received =
        uint64_t(comm.world_size - 1) * (total / comm.world_size) * Shape::kCluster * kConsumers;
    return total > 0 && received * sizeof(uint64_t) <= kFlagBytes && received * kPartBytes <= half_of_scratch(comm);
  }

  Deferred(const pkb::Comm& comm, const Product& product, int owner_rows)
      : comm(comm.device()), total(product.tiles), owner_rows(owner_rows),
        parts_offset(kFlagBytes + comm.epoch % 2 * half_of_scratch(comm)) {}

  // The owners after this rank, one by one, then this rank.
  template <class>
  __device__ __forceinline__ Tile tile(const Product& product, int index) const {
    const int each = total / comm.world_size, place = index / each;
    int owner = comm.rank + 1 + place;
    if (owner >= comm.world_size) owner -= comm.world_size;
    index -= place * each;
    Tile tile = pkb::gemm::tile_at<Shape>(index, product.row_tiles / comm.world_size, product.col_tiles, product.group);
    tile.row += owner * owner_rows;
    tile.owner = owner;
    tile.index = index;
    return tile;
  }

  __device__ __forceinline__ int part_of(const Tile& tile, const Block& block, int consumer) const {
    return (tile.index * Shape::kCluster + block.in_cluster) * kConsumers + consumer;
  }
  // Of the sender that comes `sender` + 1 places after the owner.
  __device__ __forceinline__ uint64_t* flag_at(int sender, int part) const {
    return comm.scratch<uint64_t>() + part * (comm.world_size - 1) + sender;
  }
  __device__ __forceinline__ char* part_at(int sender, int part) const {
    const int64_t capacity = int64_t(total / comm.world_size) * Shape::kCluster * kConsumers;
    return comm.scratch<char>(parts_offset) + (sender * capacity + part) * kPartBytes;
  }
  // This rank, as the sender of an owner.
  __device__ __forceinline__ int sender_to(int owner) const {
    return (comm.rank - owner + comm.world_size) % comm.world_size - 1;
  }

  static uint64_t half_of_scratch(const pkb::Comm& comm) { return (comm.scratch_bytes - kFlagBytes) / 512 * 256; }

  // One warp for each consumer signals arrivals to their owners.
  template <class>
  __device__ __forceinline__ void assist(const Product& product, const Block& block, int warp) const {
    if (warp >= kConsumers || threadIdx.x % 32 != 0) return;
    uint32_t count = 0;
    for (int index = block.first; index < product.tiles; index += block.stride) {
      const Tile at = tile<Shape>(product, index);
      ++count;
      if (at.owner == comm.rank) return;  // and so are all that follow
      while (pkb::gemm::load_acquire_shared(block.completed + warp * 4) < count) __nanosleep(100);
      pkb::store_release(comm.peer(flag_at(sender_to(at.owner), part_of(at, block, warp)), at.owner), comm.epoch);
    }
  }
};

// A tile's sums, packed, leave while the tensor cores work on the next tile: half of them when it has begun, the other
// half a quarter later, when slow links have taken the first. Once they have left, their registers take in what another
// rank has sent for the tile, to be added when its sums are complete.
template <class T, class Shape>
struct Outgoing {
  static constexpr int kWords = Shape::kSums / 8;  // of 16 bytes
  uint32_t packed[kWords * 4];

  __device__ __forceinline__ void fill(const float (&sums)[Shape::kSums]) {
#pragma unroll
    for (int i = 0; i < kWords * 4; ++i) packed[i] = pkb::gemm::pack<T>(sums[2 * i], sums[2 * i + 1]);
  }

  template <int kHalf>
  __device__ __forceinline__ void leave(const Product& product, const Deferred<Shape>& hooks, const Block& block,
                                        int index, int consumer, uint32_t staging) const {
    const int thread = threadIdx.x % 128;
    const Tile tile = hooks.template tile<Shape>(product, index);
    pkb::gemm::claim_staging(consumer);
    if (tile.owner != hooks.comm.rank) {
#pragma unroll
      for (int word = 0; word < kWords / 2; ++word) {
        const uint32_t* four = packed + (kHalf * (kWords / 2) + word) * 4;
        pkb::gemm::store_shared(staging + (word * 128 + thread) * 16, make_uint4(four[0], four[1], four[2], four[3]));
      }
      pkb::gemm::publish_staging(consumer);
      if (thread == 0) {
        char* to = hooks.part_at(hooks.sender_to(tile.owner), hooks.part_of(tile, block, consumer));
        pkb::store_bulk(hooks.comm.peer(to, tile.owner) + kHalf * Shape::kBufferBytes, staging, Shape::kBufferBytes);
        pkb::bulk_commit();
      }
      return;
    }

    const int lane = thread % 32, box_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int word = 0; word < kWords / 2; ++word) {
      const uint32_t* four = packed + (kHalf * (kWords / 2) + word) * 4;
      const int unit = word * 2 % 8 + lane / 16;  // of 16 bytes, within a box's row; swizzled as tensor maps do
      pkb::gemm::store_matrices(
          staging + word / 4 * pkb::gemm::kBoxBytes + box_row * 128 + ((unit ^ (box_row % 8)) * 16), four[0], four[1],
          four[2], four[3]);
    }
    pkb::gemm::publish_staging(consumer);
    if (thread == 0) {
      const int row = tile.out_row + block.in_cluster * pkb::gemm::kBlockM + consumer * pkb::gemm::kStoreRows;
#pragma unroll
      for (int box = 0; box < Shape::kStagedCols / pkb::gemm::kBoxCols; ++box) {
        pkb::gemm::store_box(&product.out[0], staging + box * pkb::gemm::kBoxBytes,
                             tile.col + kHalf * Shape::kStagedCols + box * pkb::gemm::kBoxCols, row);
      }
      pkb::bulk_commit();
    }
  }

  // Begins to load what a sender has for the tile, once it is there.
  __device__ __forceinline__ void take_in(const Deferred<Shape>& hooks, int sender, int part) {
    const char* from = hooks.part_at(sender, part) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(packed[word * 4]), "=r"(packed[word * 4 + 1]), "=r"(packed[word * 4 + 2]),
                     "=r"(packed[word * 4 + 3])
                   : "l"(from + word * 2048)
                   : "memory");
    }
  }

  __device__ __forceinline__ void add_to(float (&sums)[Shape::kSums]) const {
#pragma unroll
    for (int i = 0; i < kWords * 4; ++i) {
      const float2 pair = pkb::gemm::unpack<T>(packed[i]);
      sums[2 * i] += pair.x;
      sums[2 * i + 1] += pair.y;
    }
  }
};

// A consumer: 64 rows of a block.
template <class T, class Shape>
__device__ __forceinline__ void consume(const Product& product, const Deferred<Shape>& hooks,
                                        const pkb::gemm::Ring<Shape>& ring, const Block& block, int consumer,
                                        uint32_t staging) {
  constexpr uint64_t kLayoutA = pkb::gemm::matrix_layout(16, 1024);
  constexpr uint64_t kLayoutB = pkb::gemm::matrix_layout(pkb::gemm::kBoxBytes, 1024);
  const int lane = threadIdx.x % 32, steps = product.steps, senders = hooks.comm.world_size - 1;
  const auto release = [&](int stage) {
    if (lane < Shape::kCluster) pkb::gemm::arrive_in_cluster(ring.is_empty(stage), lane);
  };
  // What this thread's consumer has stored of the first `tiles` tiles has arrived.
  const auto complete = [&](uint32_t tiles) {
    if (threadIdx.x % 128 == 0) {
      pkb::bulk_wait_complete();
      pkb::gemm::store_release_shared(block.completed + consumer * 4, tiles);
    }
  };
  float sums[Shape::kSums];
  Outgoing<T, Shape> outgoing;
  pkb::gemm::Cursor<Shape> at;
  uint32_t done = 0;
  int before = -1;  // the tile whose sums are outgoing
  for (int index = block.first; index < product.tiles; index += block.stride) {
    int previous = 0;
    for (int step = 0; step < steps; ++step, at.advance()) {
      pkb::wait_phase(ring.is_full(at.stage), at.phase);
      const uint64_t a = kLayoutA | pkb::gemm::matrix_start(ring.a(at.stage) + consumer * pkb::gemm::kStoreRows * 128);
      const uint64_t b = kLayoutB | pkb::gemm::matrix_start(ring.b(at.stage));
      pkb::gemm::wgmma_fence();
#pragma unroll
      for (int k = 0; k < pkb::gemm::kBlockK; k += 16) {
        pkb::gemm::Wgmma<T, Shape::kBlockN>::multiply(sums, a + k * 2 / 16, b + k * 128 / 16, step + k > 0);
      }
      pkb::gemm::wgmma_commit();
      if (before >= 0) {
        if (step == 0) outgoing.template leave<0>(product, hooks, block, before, consumer, staging);
        if (step == steps / 4) outgoing.template leave<1>(product, hooks, block, before, consumer, staging);
      }
      if (step == steps * 3 / 4) {
        complete(done);
        const Tile tile = hooks.template tile<Shape>(product, index);
        if (tile.owner == hooks.comm.rank && senders > 0) {
          const int part = hooks.part_of(tile, block, consumer);
          if (lane < senders) {
            const uint64_t* flag = hooks.flag_at(lane, part);
            while (pkb::load_acquire(flag) < hooks.comm.epoch) {
            }
          }
          if (tile.index < block.stride) hooks.comm.hold();
          __syncwarp();
          outgoing.take_in(hooks, 0, part);
        }
      }
      pkb::gemm::wgmma_wait<1>();
      if (step > 0) release(previous);
      previous = at.stage;
    }
    pkb::gemm::wgmma_wait<0>();
    release(previous);

    const Tile tile = hooks.template tile<Shape>(product, index);
    if (tile.owner == hooks.comm.rank && senders > 0) {
      outgoing.add_to(sums);
      for (int sender = 1; sender < senders; ++sender) {
        outgoing.take_in(hooks, sender, hooks.part_of(tile, block, consumer));
        outgoing.add_to(sums);
      }
    }
    outgoing.fill(sums);
    before = index;
    ++done;
  }
  if (before >= 0) {
    outgoing.template leave<0>(product, hooks, block, before, consumer, staging);
    outgoing.template leave<1>(product, hooks, block, before, consumer, staging);
  }
  complete(done);
}

// As pkb::gemm::multiply, but for the consumers.
template <class T, class Shape>
__global__ void __launch_bounds__(pkb::gemm::kThreads, 1)
    multiply_and_push(const __grid_constant__ Product product, const __grid_constant__ Deferred<Shape> hooks) {
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[Shape::kStages], empty[Shape::kStages];
  __shared__ uint32_t completed[kConsumers];

  const uint32_t base = (pkb::shared_address(dynamic) + 1023) / 1024 * 1024;  // equal in all blocks of a cluster
  const pkb::gemm::Ring<Shape> ring{base, pkb::shared_address(full), pkb::shared_address(empty)};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const Block block{int(blockIdx.x) / Shape::kCluster, int(gridDim.x) / Shape::kCluster,
                    int(blockIdx.x) % Shape::kCluster, pkb::shared_address(completed), 0};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      pkb::init_barrier(ring.is_full(stage), 1);
      pkb::init_barrier(ring.is_empty(stage), Shape::kCluster * kConsumers * 4);
    }
    for (int i = 0; i < kConsumers; ++i) completed[i] = 0;
    pkb::fence_barrier_init();
  }
  if (warp == 1) pkb::gemm::prefetch_maps(product);
  pkb::gemm::cluster_sync<Shape::kCluster>();

  // Registers move from the first warpgroup to the consumers: 40 + 2 x 232 is what three warpgroups of 168 have.
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0) {
      pkb::gemm::load_operands<Shape>(product, hooks, ring, block);
    } else {
      hooks.template assist<Shape>(product, block, warp - 1);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int consumer = warp / 4 - 1;
    consume<T, Shape>(product, hooks, ring, block, consumer,
                      base + Shape::kStages * Shape::kStageBytes + consumer * Shape::kStagedBytes);
  }
  pkb::gemm::cluster_sync<Shape::kCluster>();  // a block that has ended takes no arrival of an empty stage
}

// ---- Host ----

template <class T>
void enqueue(const Product& product, const Reduce<Small>& hooks, cudaStream_t stream) {
  pkb::gemm::launch<T, Small>(product, hooks, stream);
}

template <class T>
void enqueue(Product product, const Deferred<Large>& hooks, cudaStream_t stream) {
  product.group = kGroup;
  pkb::gemm::launch_clusters<multiply_and_push<T, Large>, Large>(product, hooks, stream);
}

template <class T, class Shape, class Exchange>
void on_tensor_cores(const TensorView& A_local, const TensorView& B_local, const TensorView& C_local,
                     const pkb::Comm& comm) {
  const int64_t M = A_local.size(0), k = A_local.size(1), N = B_local.size(1), m = C_local.size(0);
  const int W = comm.world_size;
  Product product = pkb::gemm::tiles<Shape>(m, N, k);
  product.out[0] = pkb::gemm::operand_map<T>(static_cast<T*>(C_local.data_ptr()), m, N, N, pkb::gemm::kStoreRows);

  if (Exchange::suits(comm, int64_t(W) * product.tiles)) {
    product.a[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(A_local.data_ptr()), M, k, k, pkb::gemm::kBlockM);
    product.b[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(B_local.data_ptr()), k, N, N, pkb::gemm::kBlockK);
    product.row_tiles *= W;
    product.tiles *= W;
    return enqueue<T>(product, Exchange(comm, product, int(m)), comm.cuda_stream());
  }
  // No room for partial products: this rank's rows of all ranks' A, times all ranks' B, from where they lie.
  product.segments = W;
  for (int segment = 0; segment < W; ++segment) {
    const int r = (comm.rank + segment) % W;
    const T* a = comm.peer<const T>(A_local, r) + comm.rank * m * k;
    product.a[segment] = pkb::gemm::operand_map<T>(a, m, k, k, pkb::gemm::kBlockM);
    product.b[segment] = pkb::gemm::operand_map<T>(comm.peer<const T>(B_local, r), k, N, N, pkb::gemm::kBlockK);
  }
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Peers(comm), comm.cuda_stream());
}

template <class T>
void on_cuda_cores(const TensorView& A_local, const TensorView& B_local, const TensorView& C_local,
                   const pkb::Comm& comm) {
  pkb::gemm::SimtProduct<T> product;
  product.rows = C_local.size(0);
  product.depth = product.a_stride = A_local.size(1);
  product.cols = product.b_stride = product.out_stride = B_local.size(1);
  product.segments = comm.world_size;
  for (int r = 0; r < comm.world_size; ++r) {
    product.a[r] = comm.peer<const T>(A_local, r) + comm.rank * product.rows * product.depth;
    product.b[r] = comm.peer<const T>(B_local, r);
  }
  product.out[0] = static_cast<T*>(C_local.data_ptr());
  pkb::gemm::launch_simt(product, comm);
}

template <class T>
void half_width(const TensorView& A_local, const TensorView& B_local, const TensorView& C_local,
                const pkb::Comm& comm) {
  if (!pkb::gemm::fits(A_local.size(1), B_local.size(1), comm.world_size)) {
    return on_cuda_cores<T>(A_local, B_local, C_local, comm);
  }
  if (pkb::gemm::is_large(A_local.size(0), B_local.size(1))) {
    return on_tensor_cores<T, Large, Deferred<Large>>(A_local, B_local, C_local, comm);
  }
  on_tensor_cores<T, Small, Reduce<Small>>(A_local, B_local, C_local, comm);
}

}  // namespace

void solution(TensorView A_local, TensorView B_local, TensorView C_local, pkb::Comm comm) {
  const DLDataType dtype = A_local.dtype();
  if (A_local.size(0) != comm.world_size * C_local.size(0) || A_local.size(1) != B_local.size(0) ||
      B_local.size(1) != C_local.size(1)) {
    TVM_FFI_THROW(ValueError) << "shapes of A_local " << A_local.shape() << ", B_local " << B_local.shape()
                              << " and C_local " << C_local.shape() << " do not fit";
  }
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return half_width<__nv_bfloat16>(A_local, B_local, C_local, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return half_width<__half>(A_local, B_local, C_local, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return on_cuda_cores<float>(A_local, B_local, C_local, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16 or float32, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
