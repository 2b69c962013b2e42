// Every rank finds its scale and rounds its gradients into scratch; then each adds up its slice of all ranks'.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

using T = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr float kLargestCode = 448;

// One block: the largest absolute value, the history with it, and the scale.
__global__ void find_scale(const T* x, int64_t n, const T* history, T* new_history, int64_t L, float* scale) {
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  float most = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) most = fmaxf(most, fabsf(float(x[i])));
  most = pkb::reduce_block<kThreads>(most, larger);
  float largest = most;
  for (int64_t i = threadIdx.x; i < L; i += kThreads) {
    const float entry = i + 1 < L ? float(history[i + 1]) : most;
    new_history[i] = T(entry);
    largest = fmaxf(largest, entry);
  }
  largest = pkb::reduce_block<kThreads>(largest, larger);
  if (threadIdx.x == 0) *scale = fmaxf(largest, float(T(1e-12f))) / kLargestCode;
}

__device__ T rounded(T x, float scale) { return T(float(__nv_fp8_e4m3(float(x) / scale)) * scale); }

__global__ void round_all(const T* x, int64_t n, const float* scale, T* staged) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) staged[i] = rounded(x[i], *scale);
}

__global__ void average(const T* staged, int64_t part, T* out, pkb::Device comm) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= part) return;
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += float(comm.peer(staged, r)[comm.rank * part + i]);
  out[i] = T(sum / comm.world_size);
}

void solution(
    tvm::ffi::TensorView flat_grads, tvm::ffi::TensorView amax_history, tvm::ffi::TensorView out_shard,
    tvm::ffi::TensorView updated_history, pkb::Comm comm) {
  const int64_t n = flat_grads.numel(), part = out_shard.numel();
  const auto* x = static_cast<const T*>(flat_grads.data_ptr());
  const auto blocks = [](int64_t elements) { return unsigned((elements + kThreads - 1) / kThreads); };
  float* scale = pkb::kept_memory<float>(1);
  T* staged = comm.scratch<T>();
  find_scale<<<1, kThreads, 0, comm.cuda_stream()>>>(
      x, n, static_cast<const T*>(amax_history.data_ptr()), static_cast<T*>(updated_history.data_ptr()),
      amax_history.numel(), scale);
  PKB_CUDA_LAUNCHED();
  round_all<<<blocks(n), kThreads, 0, comm.cuda_stream()>>>(x, n, scale, staged);
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // every rank has rounded: its scratch may be read
  average<<<blocks(part), kThreads, 0, comm.cuda_stream()>>>(
      staged, part, static_cast<T*>(out_shard.data_ptr()), comm.device());
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // every rank has read: the next call may overwrite scratch
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
