// FusedMoELoRA: the MLPs and their branches move, not the tokens; a branch is more columns of the product it belongs to.
//
// What moves: a rank routes its tokens, sorts them by the ranks that host their experts, and evaluates each rank's MLP for
// them itself, with weights that spare warps pull meanwhile (pkb/moe_layer_cuda.h). x W^T + (x A^T) B^T is the product of
// [x, x A^T] and [W, B]: weights are pulled with B behind each row, and a thin product puts x A^T behind each token. The
// baseline evaluates and sends tokens once for each expert, makes nine products and as many passes over their results.
//
// Bound: arithmetic at size large, 6 H I operations for each token and rank that it chose, and beside it the link, W - 1
// MLPs into each rank; at size published the launches of eight kernels.
//
// Left on the table: columns of the other branch, zeros, are multiplied too, and depths are padded to 64. Thin products
// are kernels of their own, which read their rows once more. On many ranks tokens would be less to move than MLPs.
#include "pkb/moe_layer_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

void solution(TensorView hidden_states, TensorView gate_weight, Optional<TensorView> gate_bias,
              TensorView gate_proj_weight, TensorView gate_proj_bias, TensorView up_proj_weight, TensorView up_proj_bias,
              TensorView down_proj_weight, TensorView down_proj_bias, TensorView lora_gate_A, TensorView lora_gate_B,
              TensorView lora_up_A, TensorView lora_up_B, TensorView lora_down_A, TensorView lora_down_B,
              int64_t num_experts, int64_t top_k, int64_t group, TensorView out, pkb::Comm comm) {
  namespace moe = pkb::moe;
  const auto linear = [](const TensorView& weight, const TensorView& bias, const TensorView& a, const TensorView& b) {
    return moe::Linear{moe::data_of(weight), moe::data_of(bias), moe::data_of(a), moe::data_of(b)};
  };
  moe::Layer layer = moe::layer_of(hidden_states, gate_weight, gate_bias,
                                   linear(gate_proj_weight, gate_proj_bias, lora_gate_A, lora_gate_B),
                                   linear(up_proj_weight, up_proj_bias, lora_up_A, lora_up_B),
                                   linear(down_proj_weight, down_proj_bias, lora_down_A, lora_down_B),
                                   gate_proj_weight.size(0), top_k, comm.group(group), out);
  layer.lora_rank = lora_gate_A.size(0);
  moe::launch(layer, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
