"""HyenaCP in C++, for bfloat16: direct convolutions, with the positions or the channels shared out."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.meetings import cpp_meet
from pkb_gym.corpus.families.pieces import EXPORT

TEXT = """
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
    $convolve
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

$export
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

WIDEN = "for (int64_t k = 0; k < Lf; ++k) taps[k] = float(f[k]);"

CHOICES = {
    "share": ("positions", "channels"),
    "loop": ("by output", "by tap", "by tap, blocks of 64", "by tap, blocks of 256", "by tap, blocks of 1024"),
    "taps": ("as they are", "widened"),
    "memory": tuple(MEMORY),
    "signalling": ("barrier", "signals"),
}


def source(knobs: Knobs) -> str:
    """The text of one kernel."""
    channels, meet, loop = knobs["share"] == "channels", knobs["signalling"], str(knobs["loop"])
    widened = knobs["taps"] == "widened"
    tap = "taps[k]" if widened else "float(f[k])"
    by_output = loop == "by output"
    block = loop.rpartition(" ")[2]
    late = fill(LATE, tap=tap).strip()
    if by_output:
        sums = ""
    elif loop == "by tap":
        sums = fill(BY_TAP, tap=tap, late=late)
    else:
        sums = fill(BY_TAP_BLOCKS, tap=tap, block=block, late=late)
    access = "touched" if channels else "read"
    mine = "if (c % W != comm.rank) continue;  // another rank's channel" if channels else ""
    return (
        fill(
            TEXT,
            begin=cpp_meet(meet, f"peers' memory may be {access}: their calls have begun"),
            memory=MEMORY[knobs["memory"]],
            mine=mine,
            convolve=f"{WIDEN if widened else ''}\n{sums}".strip(),
            first="0" if channels else "comm.rank",
            last="W" if channels else "comm.rank + 1",
            value=fill(BY_OUTPUT, tap=tap) if by_output else "const float y = sums[t];",
            end=cpp_meet(meet, "by now peers are done with this rank's memory", 1),
            export=EXPORT,
        )
        + "\n"
    )


FAMILIES = (Family("HyenaCP", "cpp", CHOICES, source),)
