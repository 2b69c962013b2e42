// MoENarrow: the layer of FusedMoE within subgroups of consecutive ranks; the MLPs move, not the tokens.
//
// What moves: a rank routes its tokens, sorts them by the ranks of its subgroup, and evaluates each rank's MLP for them
// itself, with weights that spare warps pull meanwhile (pkb/moe_layer_cuda.h). Ranks of other subgroups are told that a
// call has begun, and waited for by nobody. The baseline makes subgroups of its communicator, exchanges counts in them,
// waits for these on the host, and sends tokens there and back.
//
// Bound: arithmetic at size large, 6 H I operations for each of a token's experts, and beside it the link, the subgroup's
// other MLPs into each rank; at size published the launches of six kernels.
//
// Left on the table: a subgroup of one, or as many choices as experts, needs no sorting, and half of the packing. Every
// subgroup pulls the same amount, though ranks of different ones could share what they pull if their MLPs were equal.
#include "pkb/moe_layer_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

void solution(TensorView hidden_states, TensorView gate_weight, Optional<TensorView> gate_bias,
              TensorView gate_proj_weight, TensorView gate_proj_bias, TensorView up_proj_weight, TensorView up_proj_bias,
              TensorView down_proj_weight, TensorView down_proj_bias, int64_t num_experts, int64_t top_k, int64_t group,
              TensorView out, pkb::Comm comm) {
  // Fewer experts than ranks: this rank's subgroup of so many consecutive ranks, where no group is given.
  pkb::Group members = comm.group(group);
  if (group < 0 && num_experts < comm.world_size) {
    members.size = int(num_experts);
    members.rank = comm.rank % members.size;
    for (int place = 0; place < members.size; ++place) members.ranks[place] = comm.rank - members.rank + place;
  }
  namespace moe = pkb::moe;
  moe::launch(moe::layer_of(hidden_states, gate_weight, gate_bias, moe::linear_of(gate_proj_weight, gate_proj_bias),
                            moe::linear_of(up_proj_weight, up_proj_bias),
                            moe::linear_of(down_proj_weight, down_proj_bias), gate_proj_weight.size(0), top_k,
                            members, out),
              comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
