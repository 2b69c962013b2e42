// UlyssesQKVGatherSeqScatterHeads: every rank pushes its positions of each rank's columns of Q, K and V to their
// place.
//
// W - 1 of W parts of a tensor cross the link into and out of each rank, each once: a thread loads 16 bytes, or what
// the layout allows, from where they lie and stores them to where they belong, so that nothing is packed before the
// exchange or unpacked after it, which in the baseline are two more reads and writes of everything. Small pieces go as
// tagged words by way of scratch; larger ones straight into the outputs of peers whose call has begun
// (pkb/reshard_cuda.h).
//
// The columns of Q, K and V are three matrices beside each other, so that the exchange is that of a tensor (..., T, 3,
// E) whose last dimension is cut. Where the sequence was padded, a rank pushes no more than the positions that stay.
//
// Bound: link, W - 1 of W parts of the tensor in and out; on one rank memory, a read and a write.
//
// Left on the table: stores to peers are 16 bytes a thread; bulk copies from shared memory would take fewer
// instructions.
#include <array>

#include "pkb/reshard_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView qkv_tensor, int64_t seq_dim, int64_t group, tvm::ffi::Optional<int64_t> unpadded_dim_size,
              bool restore_shape, TensorView out, pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  (void)restore_shape;  // the same bytes either way
  const int64_t dims = qkv_tensor.ndim(), columns = qkv_tensor.size(int(dims - 1)) / 3;
  const int64_t positions = qkv_tensor.size(int(seq_dim)), samples = seq_dim == 0 ? 1 : qkv_tensor.size(0);
  const std::array<int64_t, 4> shape{samples, positions, 3, columns};
  auto reshard = pkb::Reshard::of(shape, 3, 1, qkv_tensor.dtype().bits / 8, comm.world_size);
  const int64_t unpadded = unpadded_dim_size.value_or(0);
  if (unpadded % comm.world_size != 0) reshard.keep(unpadded);
  reshard.launch(qkv_tensor.data_ptr(), out.data_ptr(), comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
