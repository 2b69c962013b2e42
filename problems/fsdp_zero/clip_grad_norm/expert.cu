// ClipGradNorm: one kernel reads all gradients, forms the norm of the group, and scales what it has read in reverse.
//
// What moves: every gradient once from device memory, and one number from each rank to each other of its group, as a
// word that carries the number of the call (pkb/tagged_cuda.h). Bound: memory; a clipped gradient is read and written,
// but it is read before the norm is known, and again where the L2 cache, of 50 MB, has lost it by then. So tiles are
// scaled from the last one on, which gains a tenth of the second read at size large and all of it at size published.
// The baseline launches three kernels a tensor; here blocks take tiles of all tensors in turn, and the words of the
// norm are also the barrier between reading and scaling. Gradients within the norm are not written at all.
//
// Left on the table: the second read at size large, a third of all traffic.
#include "pkb/clip_norm_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

void solution(Array<Optional<Tensor>> grad_tensors, double max_norm, double norm_type, int64_t fsdp_group,
              TensorView total_norm, pkb::Comm comm) {
  pkb::Clip clip{float(max_norm), float(norm_type)};
  clip.dense_group = fsdp_group;
  clip.total_norm = static_cast<float*>(total_norm.data_ptr());
  pkb::launch_clip(grad_tensors, {}, clip, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
