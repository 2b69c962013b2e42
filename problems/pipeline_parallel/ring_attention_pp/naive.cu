// Stages follow each other between barriers of all ranks; a rank reads its stage's keys and values, and the output of the
// stage before, from where they lie.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

constexpr int kThreads = 256;

// out = x weight^T, an element a thread.
template <class T>
__global__ void multiply(const T* x, const T* weight, T* out, int64_t count, int64_t columns, int64_t depth) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= count) return;
  const T *row = x + i / columns * depth, *column = weight + i % columns * depth;
  float sum = 0;
  for (int64_t k = 0; k < depth; ++k) sum += float(row[k]) * float(column[k]);
  out[i] = T(sum);
}

// Of queries, keys and values of `width` each in the rows of every rank.
template <class T>
__global__ void attend(const T* qkv, T* out, int64_t count, int64_t S, int64_t width, int64_t d, float scale,
                       bool causal, pkb::Group members, pkb::Device comm) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= count) return;
  const int64_t column = i % width, token = i / width, head = column / d * d;
  const int64_t keys = causal ? members.rank * S + token % S + 1 : members.size * S;
  const T* query = qkv + token * 3 * width + head;
  float most = -INFINITY, sum = 0, value = 0;
  for (int64_t t = 0; t < keys; ++t) {
    const T* key = comm.peer(qkv, members.ranks[t / S]) + (token / S * S + t % S) * 3 * width + width + head;
    float score = 0;
    for (int64_t c = 0; c < d; ++c) score += float(query[c]) * float(key[c]);
    score *= scale;
    if (score > most) {  // sums so far are relative to the largest score so far
      const float shrink = expf(most - score);
      sum *= shrink;
      value *= shrink;
      most = score;
    }
    sum += expf(score - most);
    value += expf(score - most) * float(key[width + column - head]);
  }
  out[i] = T(value / sum);
}

void solution(
    TensorView hidden_states, TensorView w_qkv, TensorView w_o, int64_t num_heads, Optional<double> softmax_scale,
    bool causal, int64_t cp_group, int64_t pp_group, TensorView out, pkb::Comm comm) {
  const pkb::Group members = comm.group(cp_group);
  const pkb::Group stages = pp_group < 0 ? pkb::Group{1, 0, {comm.rank}} : comm.group(pp_group);
  const int64_t S = hidden_states.size(1), tokens = hidden_states.size(0) * S, D = hidden_states.size(2);
  const int64_t D_out = out.size(2), width = w_o.size(1), d = width / num_heads;
  const float scale = float(softmax_scale.has_value() ? softmax_scale.value() : 1 / std::sqrt(double(d)));
  const auto blocks = [](int64_t count) { return unsigned((count + kThreads - 1) / kThreads); };
  const cudaStream_t stream = comm.cuda_stream();
  pkb::with_type<__nv_bfloat16, __half, float>(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const uint64_t bytes = 3 * tokens * width * sizeof(T);
    if (bytes > comm.scratch_bytes) TVM_FFI_THROW(ValueError) << "scratch does not hold " << bytes << " bytes";
    auto* result = static_cast<T*>(out.data_ptr());
    T *qkv = comm.scratch<T>(), *attended = pkb::kept_memory<T>(tokens * width);
    for (int stage = 0; stage < stages.size; ++stage) {
      const bool is_own = stage == stages.rank && tokens > 0;
      if (is_own) {
        const auto* x = stage > 0 ? comm.peer<const T>(result, stages.ranks[stage - 1])
                                  : static_cast<const T*>(hidden_states.data_ptr());
        multiply<<<blocks(3 * tokens * width), kThreads, 0, stream>>>(
            x, static_cast<const T*>(w_qkv.data_ptr()), qkv, 3 * tokens * width, 3 * width, D);
        PKB_CUDA_LAUNCHED();
      }
      comm.barrier();  // keys and values of this stage are there
      if (is_own) {
        attend<<<blocks(tokens * width), kThreads, 0, stream>>>(
            qkv, attended, tokens * width, S, width, d, scale, causal, members, comm.device());
        PKB_CUDA_LAUNCHED();
        multiply<<<blocks(tokens * D_out), kThreads, 0, stream>>>(
            attended, static_cast<const T*>(w_o.data_ptr()), result, tokens * D_out, D_out, width);
        PKB_CUDA_LAUNCHED();
      }
      comm.barrier();  // this stage's output is there, and its keys and values have been read
    }
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
