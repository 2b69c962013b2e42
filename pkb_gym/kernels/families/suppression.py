"""SAM3IoUSuppression in C++, for bfloat16: every rank reads all masks, decides, and blanks."""

from __future__ import annotations

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import DONE, cpp_meet
from pkb_gym.kernels.pieces import cpp_bfloat16

TEXT = """
using pkb::bf16;
using tvm::ffi::TensorView;

struct Objects {
  int64_t masks, scores;  // where they lie in the rank's segment: a rank without objects has no address of them
};

$kind

void solution(TensorView low_res_masks_local, TensorView obj_scores_local, tvm::ffi::Array<int64_t> num_obj_per_gpu,
              TensorView last_occluded, double iou_threshold, bool reverse, int64_t group, TensorView masks,
              TensorView scores, TensorView suppressed, pkb::Comm comm) {
  $check
  const int W = comm.world_size;
  const int64_t N = last_occluded.numel();
  const int64_t pixels = low_res_masks_local.size(1) * low_res_masks_local.size(2);
  const int64_t* last = static_cast<const int64_t*>(last_occluded.data_ptr());
  float* all = static_cast<float*>(masks.data_ptr());
  float* found = static_cast<float*>(scores.data_ptr());
  bool* is_suppressed = static_cast<bool*>(suppressed.data_ptr());
  char* segment = comm.segments[comm.rank];
  Objects* objects = comm.scratch<Objects>();
  *objects = {static_cast<char*>(low_res_masks_local.data_ptr()) - segment,
              static_cast<char*>(obj_scores_local.data_ptr()) - segment};
  $begin
  Marks marks(N, pixels);
  int64_t at = 0;
  for (int r = 0; r < W; ++r) {
    const Objects* theirs = comm.peer(objects, r);
    const bf16* from = reinterpret_cast<const bf16*>(comm.segments[r] + theirs->masks);
    const bf16* score = reinterpret_cast<const bf16*>(comm.segments[r] + theirs->scores);
    for (int64_t i = 0; i < num_obj_per_gpu[r]; ++i, ++at) {
      for (int64_t p = 0; p < pixels; ++p) all[at * pixels + p] = float(from[i * pixels + p]);
      found[at] = float(score[i]);
      marks.set(at, all + at * pixels);
    }
  }
  $end
  $areas
  for (int64_t i = 0; i < N; ++i) {
    is_suppressed[i] = false;
    for (int64_t j = 0; j < N$stop; ++j) {
      $skip
      $bound
      const float inter = float(marks.common(i, j));
      const float both = $both - inter;
      const bool overlap = inter / std::max(both, 1.0f) >= float(iou_threshold);
      $late
    }
  }
  for (int64_t i = 0; i < N; ++i) {
    if (is_suppressed[i]) std::fill_n(all + i * pixels, pixels, -10.0f);
  }
}
"""

MARKS = """
// Which pixels of each object are foreground.
struct Marks {
  int64_t words, pixels;
  std::vector<$word> bits;

  Marks(int64_t N, int64_t pixels) : words($words), pixels(pixels), bits(N * words) {}

  void set(int64_t object, const float* mask) {
    $set
  }

  int64_t common(int64_t i, int64_t j) const {
    const $word *a = &bits[i * words], *b = &bits[j * words];
    $sum_type count = 0;
    for (int64_t k = 0; k < words; ++k) count += $term;
    return int64_t(count);
  }
};
"""

PACKED = "for (int64_t p = 0; p < pixels; ++p) bits[object * words + p / {0}] |= {1}(mask[p] > 0) << (p % {0});"
PLAIN = "for (int64_t p = 0; p < pixels; ++p) bits[object * words + p] = mask[p] > 0;"

KINDS: dict[Knob, tuple[str, str, str, str, str]] = {
    "floats": ("float", "pixels", PLAIN, "float", "a[k] * b[k]"),
    "bytes": ("uint8_t", "pixels", PLAIN, "int64_t", "a[k] & b[k]"),
    "words of 32": (
        "uint32_t",
        "(pixels + 31) / 32",
        PACKED.format(32, "uint32_t"),
        "int64_t",
        "__builtin_popcount(a[k] & b[k])",
    ),
    "words of 64": (
        "uint64_t",
        "(pixels + 63) / 64",
        PACKED.format(64, "uint64_t"),
        "int64_t",
        "__builtin_popcountll(a[k] & b[k])",
    ),
}
"""Type of a word, words of a mask, how they are set, type of the count, and what a word adds to it."""

LOSES = "last[j] > -1 && (reverse ? last[i] < last[j] : last[i] > last[j])"

AREAS = "std::vector<int64_t> area(N);\nfor (int64_t i = 0; i < N; ++i) area[i] = marks.common(i, i);"
BOUND = """
const int64_t smaller = std::min(area[i], area[j]), larger = std::max(area[i], area[j]);
if (float(smaller) / std::max(float(larger), 1.0f) < float(iou_threshold)) continue;
"""

CHOICES: Choices = {
    "marks": tuple(KINDS),
    "areas": {"each time": "", "once": AREAS},
    "order": ("overlap first", "occlusion first"),
    "bound": {"no": "", "areas": BOUND},
    "stop": {"at the end": "", "at the first": " && !is_suppressed[i]"},
    "signalling": ("barrier", "signals"),
}


def makes_sense(knobs: Knobs) -> bool:
    """A bound by areas needs them."""
    return knobs["bound"] == "no" or knobs["areas"] == "once"


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    word, words, how, sum_type, term = KINDS[knobs["marks"]]
    once, first = knobs["areas"] == "once", knobs["order"] == "occlusion first"
    skip = f"if (i == j || !({LOSES})) continue;" if first else "if (i == j) continue;"
    return {
        "check": cpp_bfloat16("low_res_masks_local"),
        "kind": MARKS,
        "word": word,
        "words": words,
        "set": how,
        "sum_type": sum_type,
        "term": term,
        "begin": cpp_meet(knobs["signalling"], "peers' arguments are there, and where they lie"),
        "end": cpp_meet(knobs["signalling"], DONE["read"], 1),
        "skip": skip,
        "both": "float(area[i] + area[j])" if once else "float(marks.common(i, i) + marks.common(j, j))",
        "late": "is_suppressed[i] |= overlap;" if first else f"is_suppressed[i] |= overlap && {LOSES};",
    }


IDEA = "every rank reads all masks in place and decides on all objects; bfloat16 only"

FAMILIES = (Family("SAM3IoUSuppression", "cpp", CHOICES, TEXT, pieces, makes_sense, idea=IDEA),)
