// Every rank adds up the powers of its dense and of its expert gradients tensor by tensor, reads the sums of its groups,
// and scales its gradients.
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

// What ranks tell each other: sums of dense and of expert gradients, and that of the experts of a group.
struct Sums {
  float dense, expert, expert_of_group;
};

__global__ void add_experts(Sums* own, pkb::Group members, pkb::Device comm) {
  float sum = 0;
  for (int place = 0; place < members.size; ++place) sum += comm.peer(own, members.ranks[place])->expert;
  own->expert_of_group = sum;
}

__global__ void form_norm(const Sums* own, float p, float* norm, pkb::Group dense, pkb::Group expert, pkb::Device comm) {
  float sum = 0;
  for (int place = 0; place < dense.size; ++place) sum += comm.peer(own, dense.ranks[place])->dense;
  for (int place = 0; place < expert.size; ++place) sum += comm.peer(own, expert.ranks[place])->expert_of_group;
  *norm = powf(sum, 1 / p);
}

template <class T>
__global__ void multiply(T* x, int64_t n, float factor) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) x[i] = T(float(x[i]) * factor);
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

template <class Launch>
void for_each(const tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Tensor>>& tensors, const Launch& launch) {
  for (const auto& gradient : tensors) {
    if (!gradient.has_value() || gradient.value().numel() == 0) continue;
    const tvm::ffi::Tensor tensor = gradient.value();
    pkb::with_type<__nv_bfloat16, __half, float>(tensor.dtype(), [&](auto zero) {
      launch(static_cast<decltype(zero)*>(tensor.data_ptr()), tensor.numel());
    });
    PKB_CUDA_LAUNCHED();
  }
}

unsigned blocks_of(int64_t n) { return unsigned((n + kThreads - 1) / kThreads); }

void solution(
    tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Tensor>> non_ep_grad_tensors,
    tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Tensor>> ep_grad_tensors, double max_norm, double norm_type, int64_t ep_size, int64_t fsdp_group, int64_t ep_fsdp_group, int64_t ep_group,
    tvm::ffi::TensorView total_norm, pkb::Comm comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const float p = float(norm_type), most = float(max_norm), part = 1 / float(ep_size);
  auto* sums = comm.scratch<Sums>();
  auto* norm = static_cast<float*>(total_norm.data_ptr());
  PKB_CUDA(cudaMemsetAsync(sums, 0, sizeof(Sums), stream));
  if (ep_size > 1) {
    for_each(ep_grad_tensors, [&](auto* x, int64_t n) { multiply<<<blocks_of(n), kThreads, 0, stream>>>(x, n, part); });
  }
  for_each(non_ep_grad_tensors, [&](auto* x, int64_t n) {
    add_powers<<<1, kThreads, 0, stream>>>(x, n, p, &sums->dense);
  });
  for_each(ep_grad_tensors, [&](auto* x, int64_t n) {
    add_powers<<<1, kThreads, 0, stream>>>(x, n, p, &sums->expert);
  });
  comm.barrier();  // every rank's sums are there
  add_experts<<<1, 1, 0, stream>>>(sums, members_of(ep_fsdp_group, comm), comm.device());
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // and those of groups
  form_norm<<<1, 1, 0, stream>>>(
      sums, p, norm, members_of(fsdp_group, comm), members_of(ep_group, comm), comm.device());
  PKB_CUDA_LAUNCHED();
  for (const auto* tensors : {&non_ep_grad_tensors, &ep_grad_tensors}) {
    for_each(*tensors, [&](auto* x, int64_t n) { scale<<<blocks_of(n), kThreads, 0, stream>>>(x, n, most, norm); });
  }
  comm.barrier();  // every rank has read the sums: the next call may overwrite them
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
