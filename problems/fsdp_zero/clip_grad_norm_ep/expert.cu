// ClipGradNormEP: one kernel reads dense and expert gradients, forms their common norm, and scales them in reverse.
//
// What moves: every gradient once from device memory, and a number or two from each rank to each other of its groups, as
// words that carry the number of the call (pkb/tagged_cuda.h). Bound: memory; expert gradients are always written, dense
// ones where they are clipped. Division by the expert-parallel size and clipping are one multiplication, and powers are
// summed as if divided already, so that nothing is written twice. A gradient is read before the norm is known, and again
// where the L2 cache, of 50 MB, has lost it by then; tiles are scaled from the last one on, those first that it holds.
// Powers of expert gradients cross the link twice, over one group and then the other; dense ones travel meanwhile.
//
// Left on the table: the second read at size large, a third of all traffic. Where both expert groups together are known
// to be the whole world, one crossing would do.
#include "pkb/clip_norm_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

void solution(Array<Optional<Tensor>> non_ep_grad_tensors, Array<Optional<Tensor>> ep_grad_tensors, double max_norm,
              double norm_type, int64_t ep_size, int64_t fsdp_group, int64_t ep_fsdp_group, int64_t ep_group,
              TensorView total_norm, pkb::Comm comm) {
  pkb::Clip clip{float(max_norm), float(norm_type)};
  clip.dense_group = fsdp_group;
  clip.expert_factor = ep_size > 1 ? 1.0f / float(ep_size) : 1.0f;
  clip.expert_groups[0] = ep_fsdp_group;
  clip.expert_groups[1] = ep_group;
  clip.has_experts = true;
  clip.total_norm = static_cast<float*>(total_norm.data_ptr());
  pkb::launch_clip(non_ep_grad_tensors, ep_grad_tensors, clip, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
