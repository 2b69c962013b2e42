// UlyssesGatherSeqScatterHeads: every rank pushes its positions of each rank's heads to their place in the whole
// sequence.
//
// W - 1 of W parts of a tensor cross the link into and out of each rank, each once: a thread loads 16 bytes, or what
// the layout allows, from where they lie and stores them to where they belong, so that nothing is packed before the
// exchange or unpacked after it, which in the baseline are two more reads and writes of everything. Small pieces go as
// tagged words by way of scratch; larger ones straight into the outputs of peers whose call has begun
// (pkb/reshard_cuda.h).
//
// Where the sequence was padded, a rank pushes no more than the positions that stay.
//
// Bound: link, W - 1 of W parts of the tensor in and out; on one rank memory, a read and a write.
//
// Left on the table: stores to peers are 16 bytes a thread; bulk copies from shared memory would take fewer
// instructions.
#include "pkb/reshard_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView x, int64_t seq_dim, int64_t head_dim, int64_t group, int64_t unpadded_dim_size, TensorView out,
              pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  auto reshard = pkb::Reshard::of(x.shape(), head_dim, seq_dim, x.dtype().bits / 8, comm.world_size);
  if (unpadded_dim_size % comm.world_size != 0) reshard.keep(unpadded_dim_size);
  reshard.launch(x.data_ptr(), out.data_ptr(), comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
