// FusedMoE: the MLPs move, not the tokens: no counts are exchanged, and nothing waits for the host.
//
// What moves: a rank routes its tokens, sorts them by the ranks that host their experts, and evaluates each rank's MLP for
// them itself. Spare warps of the first product pull the other ranks' weights while the tensor cores work on the groups
// before (pkb/moe_layer_cuda.h). Experts of a rank share one MLP, so that a token with two experts on a rank is evaluated
// there once; the baseline does so twice, and sends the token twice, there and back, with all counts by way of the host.
//
// Bound: arithmetic at size large, 6 H I operations for each token and rank that it chose, and beside it the link, W - 1
// MLPs into each rank; at size published the launches of six kernels.
//
// Left on the table: all groups' weights are copied, this rank's too, before a tile may use any of them. At size large on
// many ranks tokens would be less to move than MLPs, and weights of groups without rows are pulled all the same.
#include "pkb/moe_layer_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

void solution(TensorView hidden_states, TensorView gate_weight, Optional<TensorView> gate_bias,
              TensorView gate_proj_weight, TensorView gate_proj_bias, TensorView up_proj_weight, TensorView up_proj_bias,
              TensorView down_proj_weight, TensorView down_proj_bias, int64_t num_experts, int64_t top_k, int64_t group,
              TensorView out, pkb::Comm comm) {
  namespace moe = pkb::moe;
  moe::launch(moe::layer_of(hidden_states, gate_weight, gate_bias, moe::linear_of(gate_proj_weight, gate_proj_bias),
                            moe::linear_of(up_proj_weight, up_proj_bias),
                            moe::linear_of(down_proj_weight, down_proj_bias), gate_proj_weight.size(0), top_k,
                            comm.group(group), out),
              comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
