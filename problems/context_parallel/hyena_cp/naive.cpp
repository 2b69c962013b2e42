// HyenaCP, naive: every rank reads the whole sequence of every channel from its peers, in place, and convolves its own
// positions directly. bfloat16 only.
//
// Each rank gathers u = x2 * v of all T = W*l positions, though few of them reach its own through a short filter, and
// spends l * Lf products on each channel where an FFT would need l * log T. All ranks meet before they read from their
// peers, and when all have read.
#include <algorithm>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using pkb::bf16;
using tvm::ffi::TensorView;

// Where position i of rank r's part lies in time.
static int64_t time_of(int64_t i, int r, int W, int64_t l, bool zigzag) {
  if (!zigzag) return r * l + i;
  const int64_t half = l / 2;  // chunk r, then chunk 2W-1-r, of 2W chunks
  return i < half ? r * half + i : (2 * W - 1 - r) * half + (i - half);
}

void solution(TensorView x1_seq, TensorView x2_seq, TensorView v_seq, TensorView h, TensorView conv_bias,
              int64_t num_groups, int64_t group_dim, int64_t group, bool with_zigzag_splitting, TensorView out,
              pkb::Comm comm) {
  if (x1_seq.dtype() != DLDataType{kDLBfloat, 16, 1}) {
    TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << x1_seq.dtype();
  }
  const int W = comm.world_size, me = comm.rank;
  const int64_t B = x1_seq.size(0), C = x1_seq.size(1), l = x1_seq.size(2), Lf = h.size(1), T = W * l;
  const auto* x1 = static_cast<const bf16*>(x1_seq.data_ptr());
  const auto* filters = static_cast<const bf16*>(h.data_ptr());
  const auto* bias = static_cast<const bf16*>(conv_bias.data_ptr());
  auto* result = static_cast<bf16*>(out.data_ptr());

  comm.barrier(group);
  std::vector<float> u(T);  // one channel, in the order of time
  for (int64_t row = 0; row < B * C; ++row) {
    const int64_t b = row / C, c = row % C;
    for (int r = 0; r < W; ++r) {
      const bf16* x2 = comm.peer<bf16>(x2_seq, r) + row * l;
      const bf16* v = comm.peer<bf16>(v_seq, r) + row * l;
      for (int64_t i = 0; i < l; ++i) u[time_of(i, r, W, l, with_zigzag_splitting)] = bf16(x2[i] * v[i]);
    }
    const bf16* f = filters + c / group_dim * Lf;
    for (int64_t i = 0; i < l; ++i) {
      const int64_t t = time_of(i, me, W, l, with_zigzag_splitting);
      float y = u[t] * bias[c];
      for (int64_t k = 0; k <= std::min(t, Lf - 1); ++k) y += f[k] * u[t - k];
      // Taps above T act on the future, since the convolution is one of 2T points.
      for (int64_t k = T + t + 1; k < std::min(2 * T, Lf); ++k) y += f[k] * u[t + 2 * T - k];
      result[(b * l + i) * C + c] = bf16(x1[row * l + i] * bf16(y));
    }
  }
  comm.barrier(group);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
