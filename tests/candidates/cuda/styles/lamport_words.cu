// expect: passed
// Data that carries its own flag: each thread reads all ranks' words again until none is the sentinel, and restores it.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr uint32_t kSentinel = 0x80000000u;  // minus zero, which no sum of this kernel's inputs is sent as
constexpr int kThreads = 64;

__device__ uint32_t look(const uint32_t* word) {
  uint32_t seen;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
  return seen;
}
__device__ void put(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__global__ void all_reduce(const bf16* x, bf16* y, int n, int room, pkb::Device c) {
  uint32_t* const own = c.scratch<uint32_t>(0);
  c.barrier_blocks(0);
  for (int i = int(threadIdx.x); i < n; i += kThreads) {
    for (int r = 0; r < c.world_size; ++r) put(own + r * room + i, kSentinel);
  }
  c.barrier_blocks(1);
  for (int i = int(threadIdx.x); i < n; i += kThreads) {
    const float value = __bfloat162float(x[i]) + 0.f;
    for (int r = 0; r < c.world_size; ++r) put(c.peer(own, r) + c.rank * room + i, __float_as_uint(value));
  }
  for (int i = int(threadIdx.x); i < n; i += kThreads) {
    float total;
    bool done = false;
    while (!done) {
      done = true;
      total = 0;
      for (int r = 0; r < c.world_size; ++r) {
        const uint32_t word = look(own + r * room + i);
        done &= word != kSentinel;
        total += __uint_as_float(word);
      }
    }
    y[i] = __float2bfloat16(total);
  }
  c.barrier_blocks(2);
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const int n = int(tensor.numel()), room = int(comm.scratch_bytes / 4 / comm.world_size);
  all_reduce<<<1, kThreads, 0, cudaStream_t(comm.cuda_stream())>>>((const bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), n, room, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
