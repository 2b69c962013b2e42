// MoEBalanced: the layer of FusedMoE with an expert a rank; the MLPs move, not the tokens.
//
// What moves: a rank routes its tokens, sorts them by the ranks that host their experts, and evaluates each rank's MLP for
// them itself, with weights that spare warps pull meanwhile (pkb/moe_layer_cuda.h). Nothing depends on how evenly other
// ranks' tokens are spread. The baseline exchanges counts, waits for them on the host, and sends tokens there and back.
//
// Bound: arithmetic at size large, 6 H I operations for each of a token's two experts, and beside it the link, W - 1 MLPs
// into each rank; at size published the launches of six kernels.
//
// Left on the table: no row is saved, since no rank has two experts of a token. On one rank all tokens go to one MLP, and
// need no sorting. On many ranks at size large tokens would be less to move than MLPs.
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
