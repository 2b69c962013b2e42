// expect: passed
// without parity: deadlock|output_mismatch
// without flag: output_mismatch
// Words of two elements and the number of the call, in one of two halves.
#include "common.cuh"

__device__ uint2 look(const uint64_t* word) {
  uint2 got;
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(got.x), "=r"(got.y) : "l"(word) : "memory");
  return got;
}

__global__ void exchange(const bf16* x, bf16* y, int64_t words, pkb::Device comm) {
  const auto flag = uint32_t(comm.epoch);
  const auto* own = reinterpret_cast<const uint32_t*>(x);
  auto* inbox = comm.scratch<uint64_t>();
  inbox += comm.epoch % 2 * words * comm.world_size;  // sync: parity
  for (int r = 0; r < comm.world_size; ++r) {
    for (int64_t w = first(); w < words; w += step()) {
      auto* to = comm.peer(inbox, r) + comm.rank * words + w;
      asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(own[w]), "r"(flag) : "memory");
    }
  }
  for (int64_t w = first(); w < words; w += step()) {
    float2 total{0, 0};
    for (int r = 0; r < comm.world_size; ++r) {
      uint2 got = look(inbox + r * words + w);
      while (got.y != flag) got = look(inbox + r * words + w);  // sync: flag
      const float2 part = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&got.x));
      total.x += part.x, total.y += part.y;
    }
    reinterpret_cast<__nv_bfloat162*>(y)[w] = __float22bfloat162_rn(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  exchange<<<2, 64, 0, comm.cuda_stream()>>>((bf16*)tensor.data_ptr(), (bf16*)out.data_ptr(), tensor.numel() / 2, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
