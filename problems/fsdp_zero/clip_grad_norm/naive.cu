// Every rank adds up the powers of its gradients tensor by tensor, reads the sums of its group, and scales its gradients.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

constexpr int kThreads = 256;

// One block, so that the sum needs no atomic operations.
template <class T>
__global__ void add_powers(const T* x, int64_t n, float p, float* total) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += powf(fabsf(float(x[i])), p);
  sum = pkb::reduce_block<kThreads>(sum, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) *total += sum;
}

__global__ void form_norm(const float* total, float p, float* norm, pkb::Group members, pkb::Device comm) {
  float sum = 0;
  for (int place = 0; place < members.size; ++place) sum += *comm.peer(total, members.ranks[place]);
  *norm = powf(sum, 1 / p);
}

template <class T>
__global__ void scale(T* x, int64_t n, float max_norm, const float* norm) {
  if (!(*norm > max_norm)) return;
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) x[i] = T(float(x[i]) * (max_norm / *norm));
}

// None skips a sum over ranks.
pkb::Group members_of(int64_t group, const pkb::Comm& comm) {
  return group < 0 ? pkb::Group{1, 0, {comm.rank}} : comm.group(group);
}

void solution(
    tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Tensor>> grad_tensors, double max_norm, double norm_type,
    int64_t fsdp_group, tvm::ffi::TensorView total_norm, pkb::Comm comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const float p = float(norm_type), most = float(max_norm);
  auto* total = comm.scratch<float>();
  auto* norm = static_cast<float*>(total_norm.data_ptr());
  const auto for_each = [&](auto launch) {
    for (const auto& gradient : grad_tensors) {
      if (!gradient.has_value() || gradient.value().numel() == 0) continue;
      const tvm::ffi::Tensor tensor = gradient.value();
      pkb::with_type<__nv_bfloat16, __half, float>(tensor.dtype(), [&](auto zero) {
        launch(static_cast<decltype(zero)*>(tensor.data_ptr()), tensor.numel());
      });
      PKB_CUDA_LAUNCHED();
    }
  };
  PKB_CUDA(cudaMemsetAsync(total, 0, sizeof(float), stream));
  for_each([&](auto* x, int64_t n) { add_powers<<<1, kThreads, 0, stream>>>(x, n, p, total); });
  comm.barrier();  // every rank's sum is there
  form_norm<<<1, 1, 0, stream>>>(total, p, norm, members_of(fsdp_group, comm), comm.device());
  PKB_CUDA_LAUNCHED();
  for_each([&](auto* x, int64_t n) {
    scale<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(x, n, most, norm);
  });
  comm.barrier();  // every rank has read the sums: the next call may overwrite them
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
