// SampleSort: every rank sorts its own values into scratch and says so; when all have, each finds, exactly, which run
// of every sorted shard falls into its piece of the whole, and merges those W runs into its output.
//
// What moves: a rank reads from its peers what its output holds, once, plus a few probes of binary search. Samples and
// rebalancing are not needed, since any rank can look into any sorted shard. Arguments and outputs are touched by their
// own rank alone, so a call neither begins nor ends with a meeting: before it sorts into its scratch again, a rank
// waits until its peers have merged in the call before. The bound is one read and one write of the values, and one
// signal from each peer; at a few hundred values the signals are nearly all of it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

// The values of a floating dtype as unsigned keys of the same order; NaN comes last.
template <typename Word, Word kInfinity>
struct Order {
  using Key = Word;
  static constexpr int kBits = 8 * sizeof(Word);
  static constexpr Word kSign = Word(Word(1) << (kBits - 1));

  static Word to_key(Word bits) {
    const Word key = bits & kSign ? Word(~bits) : Word(bits | kSign);
    return Word(bits & Word(~kSign)) > kInfinity ? Word(~Word(0)) : key;
  }
  static Word from_key(Word key) { return key & kSign ? Word(key & Word(~kSign)) : Word(~key); }
};
using BFloat16 = Order<uint16_t, 0x7f80>;
using Float16 = Order<uint16_t, 0x7c00>;
using Float32 = Order<uint32_t, 0x7f800000u>;
using Float64 = Order<uint64_t, 0x7ff0000000000000u>;

// Scratch of a rank: the length of its shard, then its sorted keys.
constexpr uint64_t kHeaderBytes = 64;

// Words of the signal pad, one for each peer: its keys are sorted; it has merged, and looks into scratch no more.
constexpr int kSorted = 0, kMerged = pkb::kMaxRanks;

// Private memory that grows and is kept between calls; each `Use` is a buffer of its own.
template <typename Key, int Use>
Key* buffer(int64_t n) {
  static std::unique_ptr<Key[]> keys;
  static int64_t room = 0;
  if (n > room) {
    keys.reset(new Key[n]);
    room = n;
  }
  return keys.get();
}

// Sorts the n values `from` into `to` as keys, by bytes from the lowest; `spare` has the room of `to`.
template <typename O, typename Key = typename O::Key>
void radix_sort(const Key* from, Key* to, Key* spare, int64_t n) {
  constexpr int kPasses = sizeof(Key);
  std::array<std::array<int64_t, 256>, kPasses> counts{};
  for (int64_t i = 0; i < n; ++i) {
    const Key key = O::to_key(from[i]);
    spare[i] = key;
    for (int pass = 0; pass < kPasses; ++pass) ++counts[pass][uint8_t(key >> (8 * pass))];
  }
  Key *source = spare, *target = to;
  for (int pass = 0; pass < kPasses; ++pass) {
    auto& places = counts[pass];
    if (n == 0 || places[uint8_t(source[0] >> (8 * pass))] == n) continue;  // all have this byte in common
    int64_t place = 0;
    for (int64_t& count : places) {
      const int64_t next = place + count;
      count = place;
      place = next;
    }
    for (int64_t i = 0; i < n; ++i) target[places[uint8_t(source[i] >> (8 * pass))]++] = source[i];
    std::swap(source, target);
  }
  if (source != to) std::copy(source, source + n, to);
}

// A part of one rank's sorted keys.
template <typename Key>
struct Run {
  const Key* begin;
  const Key* end;
  int64_t size() const { return end - begin; }
};

// Where the first `count` of all keys end in each sorted shard; of equal keys those of lower ranks come first.
template <typename Key>
std::vector<const Key*> split(const std::vector<Run<Key>>& shards, int64_t count) {
  const size_t W = shards.size();
  // The wanted key lies in low .. high; in each shard, what is below low ends at below[w], what is above high begins
  // at above[w].
  std::vector<const Key*> below(W), above(W), middle(W);
  for (size_t w = 0; w < W; ++w) {
    below[w] = shards[w].begin;
    above[w] = shards[w].end;
  }
  Key low = 0, high = Key(~Key(0));
  while (low < high) {
    const Key probe = Key(low + (high - low) / 2);
    int64_t up_to_probe = 0;
    for (size_t w = 0; w < W; ++w) {
      middle[w] = std::upper_bound(below[w], above[w], probe);
      up_to_probe += middle[w] - shards[w].begin;
    }
    if (up_to_probe >= count) {
      high = probe;
      above = middle;
    } else {
      low = Key(probe + 1);
      below = middle;
    }
  }
  int64_t missing = count;
  for (size_t w = 0; w < W; ++w) missing -= below[w] - shards[w].begin;
  for (size_t w = 0; w < W; ++w) {
    const int64_t taken = std::min<int64_t>(missing, above[w] - below[w]);
    below[w] += taken;
    missing -= taken;
  }
  return below;
}

// Merges two sorted runs; written so that the comparison, which is a coin toss, need not be a branch.
template <typename Key>
void merge(Run<Key> a, Run<Key> b, Key* out) {
  while (a.begin < a.end && b.begin < b.end) {
    const bool second = *b.begin < *a.begin;
    *out++ = second ? *b.begin : *a.begin;
    b.begin += second;
    a.begin += !second;
  }
  out = std::copy(a.begin, a.end, out);
  std::copy(b.begin, b.end, out);
}

// Merges all runs pairwise, in rounds; returns the one that remains.
template <typename Key>
Run<Key> merge_all(std::vector<Run<Key>> runs, int64_t total) {
  Key *target = buffer<Key, 0>(total), *other = buffer<Key, 1>(total);
  while (runs.size() > 1) {
    std::vector<Run<Key>> merged;
    Key* out = target;
    for (size_t i = 0; i < runs.size(); i += 2) {
      const Run<Key> partner = i + 1 < runs.size() ? runs[i + 1] : Run<Key>{nullptr, nullptr};
      merge(runs[i], partner, out);
      merged.push_back({out, out + runs[i].size() + partner.size()});
      out += merged.back().size();
    }
    runs.swap(merged);
    std::swap(target, other);
  }
  return runs.front();
}

template <typename O>
void sort_shards(const TensorView& local, int64_t group_index, const TensorView& piece, const pkb::Comm& comm) {
  using Key = typename O::Key;
  const pkb::Group group = comm.group(group_index);
  const int64_t n = local.numel(), W = group.size;
  const auto* values = static_cast<const Key*>(local.data_ptr());

  auto* length = comm.scratch<int64_t>();
  auto* keys = comm.scratch<Key>(kHeaderBytes);
  if (uint64_t(n) * sizeof(Key) > comm.scratch_bytes - kHeaderBytes) {
    TVM_FFI_THROW(ValueError) << "a shard of " << n << " values does not fit " << comm.scratch_bytes
                              << " bytes of scratch";
  }
  auto for_peers = [&](auto visit) {
    for (int w = 0; w < W; ++w) {
      if (w != group.rank) visit(group.ranks[w]);
    }
  };
  for_peers([&](int r) { comm.wait(kMerged + r, comm.epoch - 1); });
  *length = n;
  radix_sort<O>(values, keys, buffer<Key, 0>(n), n);
  for_peers([&](int r) { comm.signal(kSorted + comm.rank, r); });
  for_peers([&](int r) { comm.wait(kSorted + r); });

  std::vector<Run<Key>> shards;
  int64_t N = 0;
  for (int64_t w = 0; w < W; ++w) {
    const Key* begin = comm.peer(keys, group.ranks[w]);
    shards.push_back({begin, begin + *comm.peer(length, group.ranks[w])});
    N += shards.back().size();
  }
  const int64_t r = group.rank, first = r * (N / W) + std::min<int64_t>(r, N % W), count = N / W + (r < N % W);
  if (piece.numel() != count) {
    TVM_FFI_THROW(ValueError) << "sorted_shard must hold " << count << " of " << N << " values, got " << piece.numel();
  }
  if (count > 0) {
    const std::vector<const Key*> begins = split(shards, first), ends = split(shards, first + count);
    std::vector<Run<Key>> runs;
    for (int64_t w = 0; w < W; ++w) {
      if (begins[w] < ends[w]) runs.push_back({begins[w], ends[w]});
    }
    const Key* merged = merge_all(std::move(runs), count).begin;
    auto* out = static_cast<Key*>(piece.data_ptr());
    for (int64_t i = 0; i < count; ++i) out[i] = O::from_key(merged[i]);
  }
  for_peers([&](int r) { comm.signal(kMerged + comm.rank, r); });
}

}  // namespace

void solution(TensorView local_shard, int64_t group, TensorView sorted_shard, pkb::Comm comm) {
  const DLDataType dtype = local_shard.dtype();
  if (dtype.code == kDLBfloat) return sort_shards<BFloat16>(local_shard, group, sorted_shard, comm);
  if (dtype.code == kDLFloat && dtype.bits == 16) return sort_shards<Float16>(local_shard, group, sorted_shard, comm);
  if (dtype.code == kDLFloat && dtype.bits == 32) return sort_shards<Float32>(local_shard, group, sorted_shard, comm);
  if (dtype.code == kDLFloat && dtype.bits == 64) return sort_shards<Float64>(local_shard, group, sorted_shard, comm);
  TVM_FFI_THROW(TypeError) << "local_shard must be bfloat16, float16, float32 or float64, got code " << int(dtype.code)
                           << " of " << int(dtype.bits) << " bits";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
