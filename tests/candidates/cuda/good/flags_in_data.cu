// expect: passed
// until: time
// Each 8 bytes carry 4 bytes of data and the number of the call: no signal, no barrier.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

__device__ __forceinline__ float sum_at(bf16* tensor, int64_t i, const pkb::Device& comm) {
  float total = 0;
  for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(comm.peer(tensor, r)[i]);
  return total;
}

__global__ void exchange(const bf16* x, bf16* y, int64_t n, int64_t room, pkb::Device comm) {
  const unsigned flag = unsigned(comm.epoch);
  auto* half = comm.scratch<volatile uint2>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int64_t threads = int64_t(gridDim.x) * blockDim.x, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const auto* words = reinterpret_cast<const unsigned*>(x);
  for (int64_t w = first; w < n / 2; w += threads) {
    for (int r = 0; r < comm.world_size; ++r) {
      auto* to = const_cast<uint2*>(comm.peer(half, r)) + comm.rank * room + w;
      asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words[w]), "r"(flag) : "memory");
    }
  }
  for (int64_t w = first; w < n / 2; w += threads) {
    float2 total{0, 0};
    for (int r = 0; r < comm.world_size; ++r) {
      auto* from = const_cast<uint2*>(half) + r * room + w;
      uint2 got;
      do {
        asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(got.x), "=r"(got.y) : "l"(from) : "memory");
      } while (got.y != flag);
      const float2 part = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&got.x));
      total.x += part.x;
      total.y += part.y;
    }
    reinterpret_cast<__nv_bfloat162*>(y)[w] = __float22bfloat162_rn(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  const int64_t room = comm.scratch_bytes / 2 / 8 / comm.world_size;
  if (n % 2 != 0 || n / 2 > room) throw std::runtime_error("more data than scratch");
  exchange<<<16, 256, 0, comm.cuda_stream()>>>(x, y, n, room, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
