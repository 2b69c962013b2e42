// AllGather in the manner of ParallelKittens without multicast: one thread of each block brings tiles of the tensor into
// shared memory by bulk copies and stores them from there into all outputs.
#include "pkb/bulk_copy_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kBlocks = 64, kStages = 4;
constexpr uint32_t kTileBytes = 32 << 10, kSharedBytes = kStages * kTileBytes + 128;

__global__ void gather(const char* x, char* out, int64_t bytes, pkb::Device comm) {
  extern __shared__ char unaligned[];
  __shared__ alignas(8) uint64_t loaded[kStages];
  const uint32_t tiles = (pkb::shared_address(unaligned) + 127) / 128 * 128, barriers = pkb::shared_address(loaded);
  comm.barrier_blocks(0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) pkb::init_barrier(barriers + 8 * s, 1);
    pkb::fence_barrier_init();
    const int64_t count = (bytes + kTileBytes - 1) / kTileBytes;
    const int64_t mine = blockIdx.x < count ? (count - 1 - blockIdx.x) / gridDim.x + 1 : 0;
    auto begin_of = [&](int64_t number) { return (blockIdx.x + number * gridDim.x) * int64_t(kTileBytes); };
    auto bytes_at = [&](int64_t begin) { return uint32_t(bytes - begin < kTileBytes ? bytes - begin : kTileBytes); };
    auto load = [&](int64_t number) {
      const int stage = int(number % kStages);
      const int64_t begin = begin_of(number);
      pkb::expect_bytes(barriers + 8 * stage, bytes_at(begin));
      pkb::load_bulk(tiles + stage * kTileBytes, x + begin, bytes_at(begin), barriers + 8 * stage);
    };
    for (int64_t n = 0; n < mine && n < kStages - 1; ++n) load(n);
    for (int64_t n = 0; n < mine; ++n) {
      const int stage = int(n % kStages);
      const int64_t begin = begin_of(n);
      pkb::wait_phase(barriers + 8 * stage, uint32_t(n / kStages % 2));
      for (int step = 0; step < comm.world_size; ++step) {
        char* to = comm.peer(out, (comm.rank + step) % comm.world_size) + comm.rank * bytes + begin;
        pkb::store_bulk(to, tiles + stage * kTileBytes, bytes_at(begin));
      }
      pkb::bulk_commit();
      if (n + kStages - 1 < mine) {
        pkb::bulk_wait_read<1>();  // the stage that is filled next was stored from in the round before
        load(n + kStages - 1);
      }
    }
    pkb::bulk_wait_complete();
  }
  comm.barrier_blocks(1);
}

}  // namespace

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const int64_t bytes = tensor.numel() * tensor.dtype().bits / 8;
  if (bytes % 16) TVM_FFI_THROW(ValueError) << "expected a multiple of 16 bytes, got " << bytes;
  PKB_CUDA(cudaFuncSetAttribute(gather, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kSharedBytes)));
  gather<<<kBlocks, 32, kSharedBytes, comm.cuda_stream()>>>(static_cast<const char*>(tensor.data_ptr()),
                                                            static_cast<char*>(out.data_ptr()), bytes, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
