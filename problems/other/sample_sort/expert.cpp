// SampleSort: every rank sorts its own values and publishes them; after one meeting of all ranks each finds, exactly,
// which run of every sorted shard falls into its piece of the whole, and merges those W runs into its output.
//
// What moves: a rank reads from its peers what its output holds, once, plus a few probes of binary search. Samples and
// rebalancing are not needed, since any rank can look into any sorted shard. The bound is one read and one write of the
// values and one meeting; at a few hundred values the meeting is nearly all of it.
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

// Scratch of a rank: a header and a buffer of keys for calls of even number, the same for odd ones. A peer may be in
// the next call already, but not in the one after it, since it meets this rank in between.
constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kHeadersBytes = 2 * kHeaderBytes;

uint64_t room_per_call(const pkb::Comm& comm) { return (comm.scratch_bytes - kHeadersBytes) / 2 / 64 * 64; }

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

  auto* length = comm.scratch<int64_t>(comm.epoch % 2 * kHeaderBytes);
  const uint64_t room = room_per_call(comm);
  auto* keys = comm.scratch<Key>(kHeadersBytes + comm.epoch % 2 * room);
  auto fits = [&](int64_t count) { return uint64_t(count) * sizeof(Key) <= room; };
  *length = n;
  if (fits(n)) radix_sort<O>(values, keys, buffer<Key, 0>(n), n);
  comm.barrier(group_index);

  std::vector<int64_t> lengths;
  for (int64_t w = 0; w < W; ++w) lengths.push_back(*comm.peer(length, group.ranks[w]));
  // A shard too long for half of the scratch takes all of it, which nobody reads any more: all are in this call.
  const bool all_fit = std::all_of(lengths.begin(), lengths.end(), fits);
  auto* long_keys = comm.scratch<Key>(kHeadersBytes);
  if (!all_fit) {
    if (uint64_t(n) * sizeof(Key) > comm.scratch_bytes - kHeadersBytes) {
      TVM_FFI_THROW(ValueError) << "a shard of " << n << " values does not fit " << comm.scratch_bytes
                                << " bytes of scratch";
    }
    if (!fits(n)) radix_sort<O>(values, long_keys, buffer<Key, 0>(n), n);
    comm.barrier(group_index);
  }

  std::vector<Run<Key>> shards;
  int64_t N = 0;
  for (int64_t w = 0; w < W; ++w) {
    const Key* begin = comm.peer(fits(lengths[w]) ? keys : long_keys, group.ranks[w]);
    shards.push_back({begin, begin + lengths[w]});
    N += lengths[w];
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
  if (!all_fit) comm.barrier(group_index);  // the next call may write anywhere
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
