// Every rank finds its scale, rounds its slice, and stores it to all ranks' outputs.
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

__global__ void round_and_store(const T* x, int64_t n, const float* scale, T* full, pkb::Device comm) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= n) return;
  const T value = rounded(x[i], *scale);
  for (int r = 0; r < comm.world_size; ++r) comm.peer(full, r)[comm.rank * n + i] = value;
}

void solution(
    tvm::ffi::TensorView flat_param_shard, tvm::ffi::TensorView amax_history, tvm::ffi::TensorView full,
    tvm::ffi::TensorView updated_history, pkb::Comm comm) {
  const int64_t n = flat_param_shard.numel();
  const auto* x = static_cast<const T*>(flat_param_shard.data_ptr());
  float* scale = pkb::kept_memory<float>(1);
  find_scale<<<1, kThreads, 0, comm.cuda_stream()>>>(
      x, n, static_cast<const T*>(amax_history.data_ptr()), static_cast<T*>(updated_history.data_ptr()),
      amax_history.numel(), scale);
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // every rank's call has begun: its output may be written
  round_and_store<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, comm.cuda_stream()>>>(
      x, n, scale, static_cast<T*>(full.data_ptr()), comm.device());
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // every rank has written
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
