// Every rank filters the rows of all tokens, whose logits it reads in place, and keeps its part of the gradient: a block a
// token, without sorting. A logit stays if fewer than k are larger, and if those that stay up to it have more than the
// tail's mass.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
differentiate(const T* logits, const int64_t* target, const T* grad_output, float* out, int64_t part, int64_t k,
              bool has_p, float tail, pkb::Group members, pkb::Device comm) {
  const int64_t V = members.size * part, token = blockIdx.x, first = members.rank * part;
  const auto at = [&](int64_t j) {
    return float(comm.peer(logits, members.ranks[j / part])[token * part + j % part]);
  };
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto smaller = [](float a, float b) { return fminf(a, b); };
  const auto add = [](double a, double b) { return a + b; };

  float most = -INFINITY, least = INFINITY;
  for (int64_t j = threadIdx.x; j < V; j += kThreads) most = fmaxf(most, at(j));
  most = pkb::reduce_block<kThreads>(most, larger);
  for (int64_t j = threadIdx.x; j < V; j += kThreads) {  // the k-th largest, or the least of all
    int64_t above = 0;
    if (k > 0 && k < V) {
      for (int64_t i = 0; i < V; ++i) above += at(i) > at(j);
    }
    if (above < k || k <= 0 || k >= V) least = fminf(least, at(j));
  }
  least = pkb::reduce_block<kThreads>(least, smaller);

  double mass = 0, kept = 0;
  for (int64_t j = threadIdx.x; j < V; j += kThreads) mass += at(j) >= least ? exp(double(at(j) - most)) : 0;
  mass = pkb::reduce_block<kThreads>(mass, add);
  const auto stays = [&](int64_t j) {
    const float x = at(j);
    if (x < least || !has_p) return x >= least;
    double up_to = 0;  // of smaller ones, and of equal ones in the order of their ids
    bool is_last = true;
    for (int64_t i = 0; i < V; ++i) {
      const bool is_before = at(i) < x || (at(i) == x && i <= j);
      if (is_before && at(i) >= least) up_to += exp(double(at(i) - most));
      is_last = is_last && is_before;
    }
    return is_last || up_to > double(tail) * mass;
  };
  for (int64_t j = threadIdx.x; j < V; j += kThreads) kept += stays(j) ? exp(double(at(j) - most)) : 0;
  kept = pkb::reduce_block<kThreads>(kept, add);

  for (int64_t v = threadIdx.x; v < part; v += kThreads) {
    const int64_t j = first + v;
    const float wanted = j == target[token] ? 1 : 0;
    const float share = float(exp(double(at(j) - most)) / kept);
    out[token * part + v] = stays(j) ? (wanted - share) * float(grad_output[token]) : 0;
  }
}

void solution(
    TensorView vocab_parallel_logits, TensorView target, TensorView grad_output, int64_t tp_group,
    Optional<int64_t> top_k, Optional<double> top_p, int64_t chunk_size, TensorView grad_logits, pkb::Comm comm) {
  const int64_t tokens = target.numel(), part = vocab_parallel_logits.size(2);
  const double p = top_p.has_value() ? top_p.value() : 1;
  const int64_t k = top_k.has_value() ? top_k.value() : 0;
  comm.barrier(tp_group);  // every rank's call has begun: its logits may be read
  pkb::with_type<__nv_bfloat16, __half, float>(vocab_parallel_logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (tokens == 0) return;
    differentiate<<<unsigned(tokens), kThreads, 0, comm.cuda_stream()>>>(
        static_cast<const T*>(vocab_parallel_logits.data_ptr()), static_cast<const int64_t*>(target.data_ptr()),
        static_cast<const T*>(grad_output.data_ptr()), static_cast<float*>(grad_logits.data_ptr()), part, k, p < 1,
        float(T(float(1 - p))), comm.group(tp_group), comm.device());
    PKB_CUDA_LAUNCHED();
  });
  comm.barrier(tp_group);  // every rank has read: this call may end
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
