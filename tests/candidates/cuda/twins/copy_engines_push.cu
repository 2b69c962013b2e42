// expect: passed
// without middle: race|output_mismatch
// without exit: race|output_mismatch
// Copy engines put the tensor into the peers' scratch, of which there is one part for all calls.
#include "common.cuh"

__global__ void add_up(const bf16* inbox, bf16* y, int64_t n, int count) {
  for (int64_t i = first(); i < n; i += step()) {
    float total = 0;
    for (int r = 0; r < count; ++r) total += __bfloat162float(inbox[r * n + i]);
    y[i] = __float2bfloat16(total);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  const int64_t n = tensor.numel();
  auto* inbox = comm.scratch<bf16>();
  for (int r = 0; r < comm.world_size; ++r) comm.put(inbox + comm.rank * n, tensor.data_ptr(), n * sizeof(bf16), r);
  comm.barrier();  // sync: middle
  add_up<<<2, 64, 0, comm.cuda_stream()>>>(inbox, (bf16*)out.data_ptr(), n, comm.world_size);
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // sync: exit
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
