"""HyenaCP in C++, for bfloat16: direct convolutions, with the positions or the channels shared out."""

from __future__ import annotations

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import BEGUN, DONE, cpp_meet
from pkb_gym.kernels.pieces import cpp_bfloat16

TEXT = """
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
  $check
  const int W = comm.world_size;
  const int64_t B = x1_seq.size(0), C = x1_seq.size(1), l = x1_seq.size(2), Lf = h.size(1), T = W * l;
  const bf16* filters = static_cast<const bf16*>(h.data_ptr());
  const bf16* bias = static_cast<const bf16*>(conv_bias.data_ptr());
  bf16* result = static_cast<bf16*>(out.data_ptr());
  std::vector<int64_t> when(T);  // position of a rank -> time
  for (int64_t t = 0; t < T; ++t) when[t] = time_of(t % l, t / l, W, l, with_zigzag_splitting);
  $begin
  $memory
  for (int64_t row = 0; row < B * C; ++row) {
    const int64_t b = row / C, c = row % C;
    $mine
    for (int r = 0; r < W; ++r) {
      const bf16* x2 = comm.peer<bf16>(x2_seq, r) + row * l;
      const bf16* v = comm.peer<bf16>(v_seq, r) + row * l;
      for (int64_t i = 0; i < l; ++i) u[when[r * l + i]] = float(bf16(x2[i] * v[i]));
    }
    const bf16* f = filters + c / group_dim * Lf;
    $taps
    $sums
    for (int r = $first; r < $last; ++r) {
      const bf16* x1 = comm.peer<bf16>(x1_seq, r) + row * l;
      bf16* target = comm.peer(result, r);
      for (int64_t i = 0; i < l; ++i) {
        const int64_t t = when[r * l + i];
        $value
        target[(b * l + i) * C + c] = bf16(x1[i] * bf16(y));
      }
    }
  }
  $end
}
"""

# Taps above T act on the future, since the convolution is one of 2T points.
BY_OUTPUT = """
float y = u[t] * float(bias[c]);
for (int64_t k = 0; k <= std::min(t, Lf - 1); ++k) y += $tap * u[t - k];
for (int64_t k = T + t + 1; k < std::min(2 * T, Lf); ++k) y += $tap * u[t + 2 * T - k];
"""

BY_TAP = """
for (int64_t t = 0; t < T; ++t) sums[t] = u[t] * float(bias[c]);
for (int64_t k = 0; k < std::min(T, Lf); ++k) {
  const float tap = $tap;
  for (int64_t t = k; t < T; ++t) sums[t] += tap * u[t - k];
}
$late
"""

BY_TAP_BLOCKS = """
for (int64_t t = 0; t < T; ++t) sums[t] = u[t] * float(bias[c]);
for (int64_t from = 0; from < T; from += $block) {
  const int64_t to = std::min<int64_t>(T, from + $block);
  for (int64_t k = 0; k < std::min(to, Lf); ++k) {
    const float tap = $tap;
    for (int64_t t = std::max(k, from); t < to; ++t) sums[t] += tap * u[t - k];
  }
}
$late
"""

LATE = """
for (int64_t k = T + 1; k < std::min(2 * T, Lf); ++k) {
  const float tap = $tap;
  for (int64_t t = 0; t < k - T; ++t) sums[t] += tap * u[t + 2 * T - k];
}
"""

MEMORY: dict[Knob, str] = {
    "fresh": "std::vector<float> u(T), sums(T), taps(Lf);",
    "kept": "static std::vector<float> u, sums, taps;\nu.resize(T), sums.resize(T), taps.resize(Lf);",
}

CHOICES: Choices = {
    "share": ("positions", "channels"),
    "loop": ("by output", "by tap", "by tap, blocks of 64", "by tap, blocks of 256", "by tap, blocks of 1024"),
    "taps": {"as they are": "", "widened": "for (int64_t k = 0; k < Lf; ++k) taps[k] = float(f[k]);"},
    "memory": MEMORY,
    "signalling": ("barrier", "signals"),
}


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    channels, meet, loop = knobs["share"] == "channels", knobs["signalling"], str(knobs["loop"])
    by_output = loop == "by output"
    return {
        "check": cpp_bfloat16("x1_seq"),
        "begin": cpp_meet(meet, BEGUN["touch" if channels else "read"]),
        "mine": "if (c % W != comm.rank) continue;  // another rank's channel" if channels else "",
        "sums": {"by output": "", "by tap": BY_TAP}.get(loop, BY_TAP_BLOCKS),
        "block": loop.rpartition(" ")[2],
        "tap": "taps[k]" if knobs["taps"] == "widened" else "float(f[k])",
        "late": LATE,
        "first": "0" if channels else "comm.rank",
        "last": "W" if channels else "comm.rank + 1",
        "value": BY_OUTPUT if by_output else "const float y = sums[t];",
        "end": cpp_meet(meet, DONE["touch" if channels else "read"], 1),
    }


IDEA = (
    "every rank reads the whole sequence of every channel in place and convolves its own positions directly, without "
    "an FFT; bfloat16 only"
)

FAMILIES = (Family("HyenaCP", "cpp", CHOICES, TEXT, pieces, idea=IDEA),)
