// RingAttentionTP: a product, an exchange of positions for heads, flash attention, a product, and a sum over the
// tp_group: five kernels.
//
// What moves: the products take weights as they lie, transposed (pkb/gemm_sm90.h). Between them heads go to the ranks
// of the cp_group that own them, and results come back from registers of flash attention
// (pkb/sequence_attention_cuda.h): 4 (C - 1) / C of this rank's heads cross the link, and all ranks have the same work
// under a causal mask. The last product leaves its part of the sum in scratch. Of it each rank of the tp_group adds up
// a share and stores the sums to all: 2 (Tn - 1) / Tn of the result in and out.
//
// Bound: arithmetic, 2 tokens width (3 D + D_out) operations of the products and 4 width for each pair of a query and
// a key it sees; at small sizes five launches and four crossings of the link.
//
// Left on the table: the sum begins when the last product has ended; float32 transposes weights first.
#include <cmath>

#include "pkb/gemm_linear.h"
#include "pkb/launch_cuda.h"
#include "pkb/sequence_attention_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

// Sums of the parts of all ranks of the tp_group, each rank's share to all of them.
template <class T>
__global__ void __launch_bounds__(pkb::kTransferThreads, pkb::kBlocksPerSm)
    add_parts(const T* parts, T* out, uint64_t count, int64_t group, const __grid_constant__ pkb::Device comm) {
  const int ranks = comm.group_size(group), own = comm.group_rank(group);
  constexpr uint64_t kLine = 128 / sizeof(T);
  const uint64_t lines = (count + kLine - 1) / kLine;
  const uint64_t begin = lines * own / ranks * kLine, end = min(lines * (own + 1) / ranks * kLine, count);
  comm.barrier_blocks(2, group);  // all parts are there, and all calls have begun
  pkb::add_up<T>(
      end > begin ? end - begin : 0, ranks,
      [&](int place) { return comm.peer(parts + begin, comm.group_member(group, place)); }, ranks,
      [&](int place) { return comm.peer(out + begin, comm.group_member(group, place)); }, blockIdx.x, gridDim.x);
  comm.barrier_blocks(3);  // all ranks meet, as the groups of the next call may be others
}

template <class T>
void run(const TensorView& hidden_states, const TensorView& w_qkv, const TensorView& w_o, pkb::SequenceAttention<T> work,
         int64_t tp_group, const TensorView& out, const pkb::Comm& comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const int64_t tokens = int64_t(work.samples) * work.positions, D = hidden_states.size(2), D_out = out.size(2);
  const int64_t width = int64_t(work.heads) * work.head;
  const bool sums = comm.group(tp_group).size > 1;
  uint64_t offset = 0;
  const auto take = [&offset](uint64_t bytes) {
    const uint64_t begin = offset;
    offset += (bytes + 255) / 256 * 256;
    return begin;
  };
  T* context = comm.scratch<T>(take(tokens * width * sizeof(T)));
  T* parts = sums ? comm.scratch<T>(take(tokens * D_out * sizeof(T))) : static_cast<T*>(out.data_ptr());
  work.scratch_offset = take(3 * work.gathered_bytes(comm.group(work.group).size));
  if (offset > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold " << offset;
  }
  T* qkv = pkb::kept_memory<T>(tokens * 3 * width);

  pkb::gemm::linear<T>(static_cast<const T*>(hidden_states.data_ptr()), static_cast<const T*>(w_qkv.data_ptr()), qkv,
                       tokens, 3 * width, D, stream);
  work.q = qkv;
  work.k = qkv + width;
  work.v = qkv + 2 * width;
  work.stride = 3 * width;
  work.out = context;
  work.launch(comm);
  pkb::gemm::linear<T>(context, static_cast<const T*>(w_o.data_ptr()), parts, tokens, D_out, width, stream);
  if (sums) {
    const uint64_t count = uint64_t(tokens * D_out);
    const unsigned blocks = pkb::blocks_for(count * sizeof(T), pkb::kSumTile);
    add_parts<T><<<blocks, pkb::kTransferThreads, 0, stream>>>(parts, static_cast<T*>(out.data_ptr()), count, tp_group,
                                                               comm.device());
    PKB_CUDA_LAUNCHED();
  } else if (comm.world_size > 1) {
    comm.barrier();  // nobody stores heads of the next call to scratch that the last product still reads
  }
}

}  // namespace

void solution(TensorView hidden_states, TensorView w_qkv, TensorView w_o, int64_t num_heads,
              tvm::ffi::Optional<double> softmax_scale, bool causal, int64_t tp_group, int64_t cp_group, TensorView out,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (hidden_states.numel() == 0 || out.numel() == 0) return;
    pkb::SequenceAttention<T> work{};
    work.samples = int(hidden_states.size(0));
    work.positions = int(hidden_states.size(1));
    work.heads = int(num_heads) / comm.group(tp_group).size;
    work.head = int(w_qkv.size(0)) / 3 / work.heads;
    work.scale = float(softmax_scale.value_or(1.0 / std::sqrt(double(work.head))));
    work.is_causal = causal;
    work.group = cp_group;
    run<T>(hidden_states, w_qkv, w_o, work, tp_group, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
