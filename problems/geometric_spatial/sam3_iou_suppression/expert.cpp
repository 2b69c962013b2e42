// SAM3IoUSuppression: each rank reads all masks once, from where they lie, widens them into its own output and notes
// the foreground, one bit a pixel; then it decides from the bits and blanks what is suppressed. The ranks of the group
// meet before, and when all is read.
//
// What moves: a rank reads N masks in the dtype of the inputs, those of its peers over the link, and writes N masks in
// float32. Deciding takes N (N - 1) / 2 popcounts of the bits at most, far less than writing. The bound is memory:
// 4 N Hm Wm bytes written. A rank without objects has no address of the masks either: ranks with objects write what it
// should return.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr float kBlank = -10.0f;

// Pixels are taken in blocks of kRows rows of kLanes; bit i of word j of a block belongs to pixel i * kLanes + j, so
// that bits are collected lane by lane. Which pixel has which bit does not matter, as long as all masks agree.
constexpr int kLanes = 16, kRows = 32, kBlock = kLanes * kRows;

// Widens one block and collects its foreground bits.
template <typename T>
void widen_block(const T* __restrict from, float* __restrict to, uint32_t* __restrict bits) {
  uint32_t collected[kLanes] = {};
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kLanes; ++j) {
      const float value = float(from[i * kLanes + j]);
      to[i * kLanes + j] = value;
      collected[j] |= uint32_t(value > 0) << i;
    }
  }
  std::copy(collected, collected + kLanes, bits);
}

// The last block, of fewer pixels; those that are missing are background.
template <typename T>
void widen_rest(const T* from, float* to, uint32_t* bits, int64_t pixels) {
  std::fill(bits, bits + kLanes, 0u);
  for (int64_t i = 0; i < pixels; ++i) {
    to[i] = float(from[i]);
    bits[i % kLanes] |= uint32_t(to[i] > 0) << (i / kLanes);
  }
}

int64_t words_of(int64_t pixels) { return (pixels + kBlock - 1) / kBlock * kLanes; }

template <typename T>
void widen(const T* from, float* to, uint32_t* bits, int64_t pixels) {
  const int64_t whole = pixels / kBlock * kBlock;
  for (int64_t i = 0; i < whole; i += kBlock) widen_block(from + i, to + i, bits + i / kRows);
  if (whole < pixels) widen_rest(from + whole, to + whole, bits + whole / kRows, pixels - whole);
}

int64_t count_common(const uint32_t* a, const uint32_t* b, int64_t words) {
  int64_t count = 0;
  for (int64_t i = 0; i < words; ++i) count += __builtin_popcount(a[i] & b[i]);
  return count;
}

struct Foreground {
  std::vector<uint32_t> bits;  // (N, words)
  std::vector<int64_t> areas;
  int64_t words;
  float threshold;

  const uint32_t* of(int64_t object) const { return bits.data() + object * words; }

  // Quotients are rounded as in the definition; a bound that is rounded the same way may be tried first.
  bool overlap(int64_t i, int64_t j) const {
    const int64_t smaller = std::min(areas[i], areas[j]), larger = std::max(areas[i], areas[j]);
    if (float(smaller) / std::max(float(larger), 1.0f) < threshold) return false;
    const int64_t common = count_common(of(i), of(j), words);
    return float(common) / std::max(float(smaller + larger - common), 1.0f) >= threshold;
  }
};

// Whether an object loses against another one that overlaps it.
bool yields(int64_t own_last, int64_t other_last, bool reverse) {
  return other_last > -1 && (reverse ? own_last < other_last : own_last > other_last);
}

bool is_suppressed(int64_t i, const Foreground& foreground, const int64_t* last, bool reverse) {
  const int64_t N = foreground.areas.size();
  for (int64_t j = 0; j < N; ++j) {
    if (i != j && yields(last[i], last[j], reverse) && foreground.overlap(i, j)) return true;
  }
  return false;
}

struct Outputs {
  float* masks;
  float* scores;
  bool* suppressed;
};

struct Globals {
  TensorView masks, scores;  // of this rank
  const std::vector<int64_t>& counts;
  const int64_t* last;
  int64_t pixels, objects;
  float threshold;
  bool reverse;
};

// The whole result for one rank, written where that rank wants it.
template <typename T>
void suppress(const Globals& g, const pkb::Group& group, const pkb::Comm& comm, const Outputs& out) {
  static Foreground foreground;  // keeps its memory
  foreground.words = words_of(g.pixels);
  foreground.threshold = g.threshold;
  foreground.bits.resize(g.objects * foreground.words);
  foreground.areas.resize(g.objects);

  int64_t object = 0;
  for (int w = 0; w < group.size; ++w) {
    const T* masks = comm.peer<T>(g.masks, group.ranks[w]);
    const T* scores = comm.peer<T>(g.scores, group.ranks[w]);
    for (int64_t i = 0; i < g.counts[w]; ++i, ++object) {
      uint32_t* bits = foreground.bits.data() + object * foreground.words;
      widen(masks + i * g.pixels, out.masks + object * g.pixels, bits, g.pixels);
      foreground.areas[object] = count_common(bits, bits, foreground.words);
      out.scores[object] = float(scores[i]);
    }
  }
  for (int64_t i = 0; i < g.objects; ++i) {
    out.suppressed[i] = is_suppressed(i, foreground, g.last, g.reverse);
    if (out.suppressed[i]) std::fill_n(out.masks + i * g.pixels, g.pixels, kBlank);
  }
}

// Writes this rank's outputs, and those of the ranks without objects that fall to it.
template <typename T>
void suppress_for_all(const Globals& g, const pkb::Group& group, const pkb::Comm& comm, const Outputs& own) {
  std::vector<int> writers;
  for (int w = 0; w < group.size; ++w) {
    if (g.counts[w] > 0) writers.push_back(w);
  }
  if (g.counts[group.rank] == 0) return;
  int next = 0;
  for (int w = 0; w < group.size; ++w) {
    const int writer = g.counts[w] > 0 ? w : writers[next++ % writers.size()];
    if (writer != group.rank) continue;
    const int rank = group.ranks[w];
    const Outputs theirs{comm.peer(own.masks, rank), comm.peer(own.scores, rank), comm.peer(own.suppressed, rank)};
    suppress<T>(g, group, comm, theirs);
  }
}

}  // namespace

void solution(TensorView low_res_masks_local, TensorView obj_scores_local, tvm::ffi::Array<int64_t> num_obj_per_gpu,
              TensorView last_occluded, double iou_threshold, bool reverse, int64_t group, TensorView masks,
              TensorView scores, TensorView suppressed, pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  const std::vector<int64_t> counts(num_obj_per_gpu.begin(), num_obj_per_gpu.end());
  if (int(counts.size()) != members.size) {
    TVM_FFI_THROW(ValueError) << "expected " << members.size << " counts of objects, got " << counts.size();
  }
  const int64_t n = counts[members.rank], N = last_occluded.numel();
  if (low_res_masks_local.shape()[0] != n || obj_scores_local.numel() != n) {
    TVM_FFI_THROW(ValueError) << "expected " << n << " objects, got " << low_res_masks_local.shape()[0] << " masks and "
                              << obj_scores_local.numel() << " scores";
  }
  if (std::accumulate(counts.begin(), counts.end(), int64_t(0)) != N) {
    TVM_FFI_THROW(ValueError) << "num_obj_per_gpu does not add up to the " << N << " objects of last_occluded";
  }
  const int64_t pixels = low_res_masks_local.shape()[1] * low_res_masks_local.shape()[2];
  const Globals g{low_res_masks_local, obj_scores_local, counts, static_cast<const int64_t*>(last_occluded.data_ptr()),
                  pixels, N, float(iou_threshold), reverse};
  const Outputs out{static_cast<float*>(masks.data_ptr()), static_cast<float*>(scores.data_ptr()),
                    static_cast<bool*>(suppressed.data_ptr())};
  const DLDataType dtype = low_res_masks_local.dtype();
  const bool is_half = dtype.code == kDLFloat && dtype.bits == 16;
  const bool is_single = dtype.code == kDLFloat && dtype.bits == 32;
  if (dtype.code != kDLBfloat && !is_half && !is_single) {
    TVM_FFI_THROW(TypeError) << "masks must be bfloat16, float16 or float32, got code " << int(dtype.code) << " of "
                             << int(dtype.bits) << " bits";
  }
  comm.barrier(group);
  if (dtype.code == kDLBfloat) suppress_for_all<pkb::bf16>(g, members, comm, out);
  if (is_half) suppress_for_all<_Float16>(g, members, comm, out);
  if (is_single) suppress_for_all<float>(g, members, comm, out);
  comm.barrier(group);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
