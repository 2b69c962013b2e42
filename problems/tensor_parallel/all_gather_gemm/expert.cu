// AllGatherGemm: spare warps of the matrix product push this rank's shard of A to the peers while the tensor cores work.
//
// Every tile begins with this rank's own shard, and the others arrive in the order in which tiles need them
// (pkb/gemm_gather.h): W - 1 shards cross the link into each rank once, beside the product. Flags are all the
// synchronisation: nobody touches a peer's arguments or output. Products of float32 and float64, and of rows that are no
// multiples of 16 bytes, read the shards from where they lie, on CUDA cores.
//
// Bound: arithmetic, 2 M N K operations a rank.
//
// Left on the table: the first wave of tiles waits for the first rows of the others; tensor cores run below their peak at
// the power that a product of this kind draws.
#include "pkb/gemm_gather.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView A_local, TensorView B, TensorView out, pkb::Comm comm) {
  pkb::gemm::gather_and_multiply(A_local, B, out, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
