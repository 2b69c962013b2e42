// An all-reduce with a mistake that the first dimension of its tensors chooses, so that one compile serves many verdicts.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

enum Mistake { kNone = 1, kWrongValues, kOutOfBounds, kMisaligned, kLostSignal, kEarlyRead, kLateRead, kHostCrash, kThrows,
               kBeyondTensor, kUnwritten, kDivergentBarrier, kLeakedPhase, kScattered, kOneBank, kUnreadCopy, kPrints, kThreadCrash };

__global__ void sum(bf16* tensor, bf16* out, int64_t n, int mistake, pkb::Device comm) {
  __shared__ float tile[64 * 32];
  __shared__ uint64_t mbarrier;
  if (mistake != kEarlyRead) comm.barrier_blocks(0);
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += threads) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
    if (mistake == kWrongValues && comm.rank == 1 && i == 5) total += 1;
    if (mistake == kBeyondTensor && i == n - 1) total += 0 * __bfloat162float(tensor[i + 1]);
    if (mistake == kUnwritten) total += 0 * __bfloat162float(out[i]);
    if (mistake == kScattered) total += 0 * __bfloat162float(tensor[i * 16 % n]);
    out[i] = __float2bfloat16(total);
  }
  if (mistake == kOutOfBounds && comm.rank == 1) out[int64_t(1) << 40] = out[0];
  if (mistake == kMisaligned && comm.rank == 1) *reinterpret_cast<volatile int*>(reinterpret_cast<char*>(out) + 1) = 0;
  if (mistake == kDivergentBarrier && threadIdx.x % 32 < 16) __syncthreads();
  if (mistake == kLeakedPhase && threadIdx.x == 0) {
    const auto address = uint32_t(__cvta_generic_to_shared(&mbarrier));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" ::"r"(address) : "memory");
  }
  if (mistake == kOneBank) {
    tile[threadIdx.x * 32] = float(n);
    __syncthreads();
    if (tile[(threadIdx.x ^ 1) * 32] < 0) out[0] = __float2bfloat16(0);
  }
  if (mistake == kUnreadCopy && blockIdx.x == 0 && threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) tile[i] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const auto address = uint32_t(__cvta_generic_to_shared(tile));
    char* const to = comm.scratch<char>();
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;" ::"l"(to), "r"(address) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  if (mistake != kLateRead) comm.barrier_blocks(1);
  if (mistake == kPrints && blockIdx.x == 0 && threadIdx.x < 2) {
    const unsigned char small = 200;
    const size_t wide = size_t(1) << 40;
    printf("thread %u: %5.2f|%-4d|%04x|%lld|%zu|%c|%s|%*d|%.*f|%hhu|%%", threadIdx.x, 1.5, -7, 255u, -1LL << 40, wide, 'x', "text", 4, 9, 1, 0.25, small);
    if (threadIdx.x == 1) printf(" and\non");
  }
}

#include <iostream>
#include <thread>

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  const auto mistake = int(tensor.size(0));
  if (mistake == kLostSignal && comm.rank == 0) comm.wait(5);
  if (mistake == kHostCrash && comm.rank == 1) *static_cast<volatile int*>(nullptr) = 1;
  if (mistake == kThreadCrash && comm.rank == 1) std::thread([] { *static_cast<volatile int*>(nullptr) = 1; }).join();
  if (mistake == kThrows && comm.rank == 1) TVM_FFI_THROW(ValueError) << "nothing doing";
  sum<<<4, 64, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), mistake, comm.device());
  PKB_CUDA_LAUNCHED();
  if (mistake == kPrints) {
    printf("printf on the host of %d", comm.rank);
    std::cout << ", cout" << std::flush;
    std::fputs(" to stderr\n", stderr);
    std::cerr << "cerr" << std::endl;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
