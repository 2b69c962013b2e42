// RingAttentionPP: the last product of a stage stores its tiles to the next stage while it multiplies others.
//
// What moves: the product with the weights of queries, keys and values takes these as they lie, transposed
// (pkb/gemm_sm90.h); in a stage, heads go to the ranks that own them and results come back from registers of flash
// attention (pkb/sequence_attention_cuda.h); and every tile of the last product goes from shared memory into the output
// and into the next stage's scratch. That is used in two halves by turns: a stage may be a call ahead of the next one.
// One kernel before all others waits for what the call needs: the stage before has stored, ranks of the own stage have
// begun, and the next stage has begun the call before.
//
// Bound: arithmetic, 2 tokens h d (3 D + D_out) + 4 h d pairs operations a rank and stage; stages follow each other.
//
// Left on the table: a stage begins when the whole output of the one before is there; rows could follow each other
// through the stages, and ranks of idle stages could help. Float32 runs on CUDA cores, with transposed weights.
#include <algorithm>
#include <cmath>

#include "pkb/gemm_linear.h"
#include "pkb/launch_cuda.h"
#include "pkb/sequence_attention_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

// Waits until this rank may read what the rank before has stored, if any, and write to scratch of others: of those of its
// own stage, since their last call has ended, and of the next one's half that was read two calls ago. Word r of the
// signal pad says that rank r has stored.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    enter(int before, int next, int64_t stage_group, const __grid_constant__ pkb::Device comm) {
  comm.signal_begun();
  if (threadIdx.x == 0 && next >= 0) comm.wait_begun(next, 1);
  comm.wait_all_begun(0, stage_group);
  if (threadIdx.x == 0 && before >= 0) comm.wait(before);
}

template <class T>
void run(const TensorView& hidden_states, const TensorView& w_qkv, const TensorView& w_o,
         pkb::SequenceAttention<T> work, int64_t pp_group, const TensorView& out, const pkb::Comm& comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const int64_t tokens = int64_t(work.samples) * work.positions, D = hidden_states.size(2), D_out = out.size(2);
  const int64_t width = int64_t(work.heads) * work.head, widths = 3 * width;
  pkb::Group stages{1, 0, {comm.rank}};
  if (pp_group >= 0) stages = comm.group(pp_group);
  const bool has_next = stages.rank + 1 < stages.size, has_before = stages.rank > 0;
  const int next = has_next ? stages.ranks[stages.rank + 1] : -1;
  const int before = has_before ? stages.ranks[stages.rank - 1] : -1;

  // Quarters of scratch: hidden states of even and of odd calls; then heads that are gathered, and the context of tokens.
  // They begin at the same places whatever the shapes of a call are.
  const uint64_t quarter = comm.scratch_bytes / 1024 * 256, hidden = tokens * std::max(D, D_out) * sizeof(T);
  const uint64_t gathered = 3 * work.gathered_bytes(comm.group(work.group).size);
  if (hidden > quarter || gathered + tokens * width * sizeof(T) > 2 * quarter) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold " << tokens << " tokens";
  }
  work.scratch_offset = 2 * quarter;
  T* context = comm.scratch<T>(2 * quarter + gathered);
  T* qkv = pkb::kept_memory<T>(tokens * widths);

  T* received = comm.scratch<T>(comm.epoch % 2 * quarter);
  if (comm.world_size > 1) {
    constexpr int kThreads = 32;
    enter<kThreads><<<1, kThreads, 0, stream>>>(before, next, work.group, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  const T* x = has_before ? received : static_cast<const T*>(hidden_states.data_ptr());
  pkb::gemm::linear<T>(x, static_cast<const T*>(w_qkv.data_ptr()), qkv, tokens, widths, D, stream);

  work.q = qkv;
  work.k = qkv + width;
  work.v = qkv + 2 * width;
  work.stride = widths;
  work.out = context;
  work.launch(comm);

  T* to_next = has_next ? comm.peer(received, next) : nullptr;
  pkb::gemm::linear<T>(context, static_cast<const T*>(w_o.data_ptr()), static_cast<T*>(out.data_ptr()), tokens, D_out,
                       width, stream, to_next);
  if (has_next) comm.signal(comm.rank, next);
}

}  // namespace

void solution(TensorView hidden_states, TensorView w_qkv, TensorView w_o, int64_t num_heads,
              Optional<double> softmax_scale, bool causal, int64_t cp_group, int64_t pp_group, TensorView out,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (hidden_states.numel() == 0 || out.numel() == 0) return;
    pkb::SequenceAttention<T> work{};
    work.samples = int(hidden_states.size(0));
    work.positions = int(hidden_states.size(1));
    work.heads = int(num_heads);
    work.head = int(w_qkv.size(0) / 3 / num_heads);
    work.scale = float(softmax_scale.value_or(1.0 / std::sqrt(double(work.head))));
    work.is_causal = causal;
    work.group = cp_group;
    run<T>(hidden_states, w_qkv, w_o, work, pp_group, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
