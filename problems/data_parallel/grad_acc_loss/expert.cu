// GradAccLoss: one warp, and one crossing of the link.
//
// What moves: lane r sends the weighted loss of this rank to rank r, as a word that carries the number of the call
// (pkb/tagged_cuda.h), and waits for that of rank r; every rank adds up the words in the order of the ranks. The
// gradient needs nobody else and is formed meanwhile. Nobody touches a peer's arguments or outputs. Words lie in two
// halves by turns: each rank needs those of all others in every call, so that none can be two calls ahead.
//
// Bound: latency, of a launch and a crossing of the link. The baseline launches ten kernels and an all-reduce.
// Arithmetic is float32 and rounded once.
//
// Left on the table: nothing but the launch itself, which a caller that captures a graph, or fuses the loss into the
// kernel that forms it, saves.
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

template <class T>
struct Globals {
  const T *loss, *grad_normalized_loss, *grad_loss_sum;  // the last may be null
  const int64_t *local_valid_tokens, *global_valid_tokens;
  T *normalized_loss, *loss_sum, *grad_loss;
};

template <class T>
__global__ void __launch_bounds__(32)
    accumulate(const __grid_constant__ Globals<T> g, const __grid_constant__ pkb::Device comm) {
  const int lane = pkb::lane_id();
  const uint32_t tag = uint32_t(comm.epoch);
  const int64_t n = *g.local_valid_tokens;
  const float own = n == 0 ? 0.0f : pkb::to_float(*g.loss) * float(n);  // whatever the loss of no tokens is
  uint64_t* words = comm.scratch<uint64_t>() + comm.epoch % 2 * pkb::kMaxRanks;
  const bool has_peer = lane < comm.world_size && lane != comm.rank;
  if (has_peer) pkb::store_tagged(comm.peer(words + comm.rank, lane), own, tag);

  const float G = float(*g.global_valid_tokens);
  if (lane == 0) {
    float gradient = pkb::to_float(*g.grad_normalized_loss) * float(n) / G;
    if (g.grad_loss_sum) gradient += pkb::to_float(*g.grad_loss_sum) * float(n);
    *g.grad_loss = T(gradient);
  }
  comm.hold();
  const float of_rank = has_peer ? pkb::wait_tagged(words + lane, tag) : own;
  float sum = 0.0f;
  for (int r = 0; r < comm.world_size; ++r) sum += __shfl_sync(pkb::kAllLanes, of_rank, r);
  if (lane == 0) {
    *g.loss_sum = T(sum);
    *g.normalized_loss = T(sum / G);
  }
}

}  // namespace

void solution(TensorView loss, TensorView local_valid_tokens, TensorView global_valid_tokens,
              TensorView grad_normalized_loss, Optional<TensorView> grad_loss_sum, TensorView normalized_loss,
              TensorView loss_sum, TensorView grad_loss, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, float>(loss.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& tensor) { return static_cast<T*>(tensor.data_ptr()); };
    const auto count_of = [](const TensorView& tensor) { return static_cast<const int64_t*>(tensor.data_ptr()); };
    const Globals<T> g{of(loss),
                       of(grad_normalized_loss),
                       grad_loss_sum.has_value() ? of(grad_loss_sum.value()) : nullptr,
                       count_of(local_valid_tokens),
                       count_of(global_valid_tokens),
                       of(normalized_loss),
                       of(loss_sum),
                       of(grad_loss)};
    accumulate<T><<<1, 32, 0, comm.cuda_stream()>>>(g, comm.device());
    PKB_CUDA_LAUNCHED();
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
