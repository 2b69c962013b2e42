// expect: passed
// without entry: race|output_mismatch
// without exit: race
// Copy engines fetch the peers' tensors between two barriers of the streams; a kernel adds up.
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
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* inbox = comm.scratch<bf16>();
  comm.barrier();  // sync: entry
  for (int r = 0; r < comm.world_size; ++r) {
    cudaMemcpyAsync(inbox + r * n, comm.peer(x, r), n * sizeof(bf16), cudaMemcpyDefault, comm.cuda_stream());
  }
  add_up<<<2, 64, 0, comm.cuda_stream()>>>(inbox, (bf16*)out.data_ptr(), n, comm.world_size);
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // sync: exit
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
