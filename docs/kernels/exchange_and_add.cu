// AllReduce of a small tensor: every element goes to all peers with the epoch beside it.
#include <cuda_bf16.h>

#include <algorithm>

#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 128;  // all of them fit on a GPU at once, since they wait for each other

// Two halves of scratch in turn, which hold tagged words alone. Each thread waits, in each call, for its counterparts'
// words: none of them can be two calls ahead.
__global__ void exchange_and_add(const bf16* x, bf16* out, int64_t n, pkb::Device comm) {
  const auto tag = uint32_t(comm.epoch);
  auto* inbox = comm.scratch<uint64_t>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int64_t first = blockIdx.x * int64_t(kThreads) + threadIdx.x, step = gridDim.x * int64_t(kThreads);
  for (int r = 0; r < comm.world_size; ++r) {
    uint64_t* theirs = comm.peer(inbox, r) + comm.rank * n;
    for (int64_t i = first; i < n; i += step) pkb::store_tagged(theirs + i, __bfloat162float(x[i]), tag);
  }
  comm.hold();  // before a kernel's first wait for tagged words
  for (int64_t i = first; i < n; i += step) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += pkb::wait_tagged(inbox + r * n + i, tag);
    out[i] = __float2bfloat16(sum);
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  if (tensor.dtype() != DLDataType{kDLBfloat, 16, 1}) TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << tensor.dtype();
  const int64_t n = tensor.numel();
  if (comm.world_size * n * sizeof(uint64_t) > comm.scratch_bytes / 2) {
    TVM_FFI_THROW(ValueError) << "half of scratch holds " << comm.scratch_bytes / 2 << " bytes";
  }
  const auto blocks = unsigned(std::clamp<int64_t>((n + kThreads - 1) / kThreads, 1, kMostBlocks));
  exchange_and_add<<<blocks, kThreads, 0, comm.cuda_stream()>>>(
      static_cast<const bf16*>(tensor.data_ptr()), static_cast<bf16*>(out.data_ptr()), n, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
