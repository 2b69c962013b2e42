// One kernel for each building block that needs no other rank; tests/engine/emulated/test_building_blocks.py calls them.
#include <cuda_bf16.h>

#include "pkb/adam_cuda.h"
#include "pkb/online_softmax_cuda.h"
#include "pkb/rms_norm_cuda.h"
#include "pkb/token_filter_cuda.h"

using T = __nv_bfloat16;

__global__ void adam(const float* values, float* out, int n, pkb::Adam step) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float moment = values[2 * n + i], square = values[3 * n + i];
  out[i] = step.update(values[i], values[n + i], moment, square);
  out[n + i] = moment;
  out[2 * n + i] = square;
}

template <class Team>
__global__ void rms_norm(const float* x, float* out, int columns, float eps) {
  constexpr int kLanes = 2, kHeld = 2;
  pkb::rms_norm<kLanes, kHeld>(
      Team(), (columns + kLanes - 1) / kLanes, columns, eps,
      [&](int piece, float(&lanes)[kLanes]) {
        for (int i = 0; i < kLanes; ++i) lanes[i] = piece * kLanes + i < columns ? x[piece * kLanes + i] : 0.0f;
      },
      [&](int piece, const float(&lanes)[kLanes], float inverse) {
        for (int i = 0; i < kLanes; ++i) {
          if (piece * kLanes + i < columns) out[piece * kLanes + i] = lanes[i] * inverse;
        }
      });
}

template <class Team>
__global__ void log_sum_exp(const float* x, float* out, int n) {
  pkb::SoftmaxSum part;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float two[2] = {x[i], -pkb::kInfinity};
    part.add(two);
  }
  part = pkb::join_parts(Team(), part);
  if (threadIdx.x == blockDim.x - 1) *out = part.log();
}

template <class Team>
__global__ void filter(const float* x, float* out, int n, pkb::TokenFilter filter) {
  const pkb::FilterCut cut = pkb::cut_of<T>(Team(), pkb::List{x, n}, filter);
  if (threadIdx.x == 0) {
    out[0] = pkb::value_of<T>(cut.border);
    out[1] = cut.log_normaliser();
    out[2] = cut.stay;
    out[3] = pkb::log_prob<T>(cut, x[0]);
  }
}

extern "C" {

void run_adam(const float* values, float* out, int n, const double* c, long step, cudaStream_t stream) {
  adam<<<(n + 63) / 64, 64, 0, stream>>>(values, out, n, pkb::Adam::of(c[0], c[1], c[2], c[3], step, c[4]));
}

void run_rms_norm(const float* x, float* out, int columns, float eps, int threads, cudaStream_t stream) {
  if (threads == 32) rms_norm<pkb::Warp><<<1, threads, 0, stream>>>(x, out, columns, eps);
  else rms_norm<pkb::Block><<<1, threads, 0, stream>>>(x, out, columns, eps);
}

void run_log_sum_exp(const float* x, float* out, int n, int threads, cudaStream_t stream) {
  if (threads == 32) log_sum_exp<pkb::Warp><<<1, threads, 0, stream>>>(x, out, n);
  else log_sum_exp<pkb::Block><<<1, threads, 0, stream>>>(x, out, n);
}

void run_filter(const float* x, float* out, int n, int k, float tail, int has_p, int threads, cudaStream_t stream) {
  const pkb::TokenFilter what{k, tail, has_p != 0};
  if (threads == 32) filter<pkb::Warp><<<1, threads, 0, stream>>>(x, out, n, what);
  else filter<pkb::Block><<<1, threads, 0, stream>>>(x, out, n, what);
}
}
