// RingAttention: ranks trade positions for heads, and each computes flash attention of its heads over the whole
// sequence.
//
// What moves: a kernel stores queries, keys and values of each head to the scratch of the rank that owns the head, and
// attention stores results from registers to the outputs of the ranks that own the positions: 4 (W - 1) / W of a
// tensor cross the link, where a ring moves 2 (W - 1) tensors. All ranks have the same work under a causal mask too,
// where the last one of a ring has nearly twice the mean. Scores never leave registers
// (pkb/sequence_attention_cuda.h).
//
// Bound: arithmetic at long sequences, 4 d operations for each pair of a query and a key it sees, and head; at short
// ones two launches and two crossings of the link. Other heads than of 64 or 128 elements and float32 run on CUDA
// cores.
//
// Left on the table: attention begins when all heads have arrived; heads that arrive first could begin first.
#include <cmath>

#include "pkb/launch_cuda.h"
#include "pkb/sequence_attention_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView q, TensorView k, TensorView v, tvm::ffi::Optional<double> softmax_scale, bool causal,
              int64_t group, TensorView out, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (q.numel() == 0) return;
    pkb::SequenceAttention<T> work{};
    work.q = static_cast<const T*>(q.data_ptr());
    work.k = static_cast<const T*>(k.data_ptr());
    work.v = static_cast<const T*>(v.data_ptr());
    work.out = static_cast<T*>(out.data_ptr());
    work.samples = int(q.size(0));
    work.positions = int(q.size(1));
    work.heads = int(q.size(2));
    work.head = int(q.size(3));
    work.stride = q.size(2) * q.size(3);
    work.scale = float(softmax_scale.value_or(1.0 / std::sqrt(double(work.head))));
    work.is_causal = causal;
    work.group = group;
    work.launch(comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
