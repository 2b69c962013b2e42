// HyenaCP: one kernel, of two phases. First whole convolutions by FFTs on chip, each channel and stretch of time by one
// block, which sends the results to the ranks that hold their times; then, at home, the output gate and the
// transposition to (B, l, C).
//
// What moves: work is divided by channels (gated inputs of the owned channels come in over the link, y goes back to the
// ranks that hold its time) or, where sequences are much longer than filters, by time (only the positions before each
// own stretch come in). x1 and out never leave home. Where whole rows are dealt to blocks, each block multiplies x2 and
// v at home and pushes the products to the counterparts that convolve them, one row ahead of its own work; otherwise
// blocks read x2 and v from the ranks that hold them, twice the bytes. The bound is the link; the arithmetic of the
// FFTs comes next, so bfloat16 is transformed on tensor cores (pkb/fft_matrix_cuda.h: float16 operands, float32 sums,
// one piece of time a transform). Other types, longer filters and those that reach into the future take float32
// (pkb/fft_cuda.h: two pieces are the real and the imaginary part of one transform, and long filters are cut into
// parts).
//
// Ranks signal each other that their calls have begun, before peers' inputs are read and their scratch is written, and
// that they have convolved, before results are used and calls end.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <type_traits>

#include "pkb/fft_cuda.h"
#include "pkb/fft_matrix_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/sequence_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transpose_cuda.h"
#include "pkb/vectors_cuda.h"

namespace fft = pkb::fft;
using fft::kOuter;
using fft::kPoints;
using fft::kThreads;
using pkb::kPerVector;
using pkb::to_float;
using tvm::ffi::TensorView;

namespace {

constexpr int kFresh = kPoints / 2;      // positions of a piece, and taps of a part of a filter
constexpr int kFreshOuter = kOuter / 2;  // points of a thread that are fresh
constexpr int kBlocksPerSm = 2;
constexpr int kNever = INT_MIN / 2;      // a time before every sequence

// Signal slots: ranks have finished phase one.
constexpr int kConvolved = 0;
constexpr int kMostPhases = 60;  // rows that a block pushes, each of which it announces to its counterparts

// Scratch: the counter of blocks, then the results of convolutions, then memory of each block: in float32, where
// filters have several parts, spectra of as many windows, then of the parts; on tensor cores the filter's spectrum and
// gated inputs. The second half begins with gated inputs that peers have pushed.
constexpr int64_t kCounterBytes = 256;

struct Shared {
  float2 exchange[fft::kExchange];
  union {
    float2 spectrum[fft::kSpectrum];  // of the filter, where it has one part
    float other_carry[kFresh];
  };
  float carry[kFresh];  // gated inputs of the newest piece: the next one begins with them
};

// How a call is carried out; equal on all ranks but for `begin`.
struct Plan {
  int W, place;              // ranks, and which of them this is
  int B, C, l, taps, group_dim;
  int length;                // of the whole sequence
  pkb::SequenceCut cut;
  bool by_time;
  bool wide;                 // rows can be read and written 16 bytes at a time
  int first_channel, channels;
  int segments, begin[2], segment_length;  // stretches of time that this rank convolves
  int pieces, pairs;                       // pieces of one segment; pairs of pieces of all segments
  int splits;                              // blocks that share the pairs of one channel
  int first_part, last_part;               // part p of a filter holds the taps that act p * kFresh and more later
  int workers;                             // blocks that convolve
  bool pushed;                             // gated inputs are sent to the ranks that convolve them, by whole rows

  __host__ __device__ int parts() const { return last_part - first_part + 1; }
};

template <typename T>
struct Globals {
  const T *x1, *x2, *v, *h, *bias;
  T *out, *y, *u;
  float2* spectra;
  unsigned* arrived;
  int64_t group;
  Plan plan;
};

// ------------------------------------------------------------------------------------------- phase one: convolutions

// The convolutions of one block: holds what it keeps from one to the next.
template <typename T>
class Convolver {
 public:
  __device__ Convolver(const Globals<T>& g, const pkb::Device& comm, Shared& shared)
      : g_(g), plan_(g.plan), comm_(comm), shared_(shared), cut_(plan_.cut), t_(int(threadIdx.x)), roots_(t_),
        parts_(plan_.parts()), filter_(in_scratch(g.spectra, parts_)) {}

  // Work items (b, channel, split) are dealt to blocks in rows.
  __device__ void run() {
    const int items = plan_.B * plan_.channels * plan_.splits;
    const int begin = int(int64_t(items) * blockIdx.x / plan_.workers);
    const int end = int(int64_t(items) * (blockIdx.x + 1) / plan_.workers);
    for (int item = begin; item < end; ++item) {
      const int split = item % plan_.splits, row = item / plan_.splits;
      batch_ = row / plan_.channels;
      channel_ = plan_.first_channel + row % plan_.channels;
      convolve(split * plan_.pairs / plan_.splits, (split + 1) * plan_.pairs / plan_.splits);
    }
  }

 private:
  static constexpr int kPack = kPerVector<T>;
  static constexpr int kRounds = kFresh / (kThreads * kPack);  // in which the block goes over a piece

  // This block's part of scratch.
  __device__ static fft::PartitionedFilter in_scratch(float2* spectra, int parts) {
    float2* windows = spectra + int64_t(blockIdx.x) * parts * (kPoints + fft::kSpectrum);
    return {parts, windows, windows + int64_t(parts) * kPoints};
  }

  // Times begin .. begin + kFresh - 1, of which `count` are wanted.
  struct Piece {
    int begin, count;
  };
  struct Fetched {
    uint4 x2[kRounds], v[kRounds];
  };

  // May be asked for pieces before the first and after the last.
  __device__ Piece piece(int index) const {
    const int segment = plan_.segments == 2 && index >= plan_.pieces ? 1 : 0;
    const int offset = (index - segment * plan_.pieces) * kFresh;
    return {plan_.begin[segment] + offset, index < 0 ? 0 : max(0, min(kFresh, plan_.segment_length - offset))};
  }

  // The pieces that go through one transform: neighbours, so that they share a window, or where parts of a filter meet
  // windows of several pairs, pieces at the same distance in all pairs.
  __device__ Piece first_of(int pair) const { return piece(parts_ == 1 ? 2 * pair : pair); }
  __device__ Piece second_of(int pair) const { return piece(parts_ == 1 ? 2 * pair + 1 : pair + plan_.pairs); }

  __device__ int64_t row() const { return (int64_t(batch_) * plan_.C + channel_) * plan_.l; }

  // Convolves pairs first .. last - 1. Part p of a filter meets the windows of p pairs before: step by step, one more
  // pair's is transformed, from the earliest that is needed on. Before, at negative steps, the filter's parts are.
  __device__ __forceinline__ void convolve(int first, int last) {
    const int filter = channel_ / plan_.group_dim, earliest = first - plan_.last_part;
    carry_begin_ = other_carry_begin_ = kNever;
    float2 z[kOuter];
#pragma unroll 1
    for (int step = filter == kept_ ? 0 : -parts_; step < last - first + parts_ - 1; ++step) {
      if (step < 0) {
        load_taps(z, filter, plan_.last_part + 1 + step);
      } else {
        wait_begun();
        load_windows(z, first_of(earliest + step), second_of(earliest + step));
      }
      fft::transform_block(z, shared_.exchange, roots_, t_);
      if (step < 0) {
        float2* spectrum = parts_ == 1 ? shared_.spectrum : filter_.spectrum(step + parts_);
        fft::keep_spectrum(z, 1.0f / kPoints, spectrum, t_);  // scaled for the inverse transform
        __syncthreads();
        continue;
      }
      const int pair = first + step - (parts_ - 1);
      if (parts_ == 1) {
        fft::multiply(z, shared_.spectrum, skip(0), t_);
      } else {
        filter_.keep_window(z, step, t_);
        if (pair >= first) filter_.multiply(z, step, t_, [&](int j) { return skip(plan_.first_part + j); });
      }
      if (pair >= first) {
        fft::transform_block_back(z, shared_.exchange, roots_, t_);
        __syncthreads();
        store(z, first_of(pair), second_of(pair));
      }
      __syncthreads();
    }
    kept_ = filter;
  }

  // Before peers are touched: what they did in the call before has ended, in scratch too.
  __device__ __forceinline__ void wait_begun() {
    if (!begun_) comm_.wait_all_begun(0, g_.group);
    begun_ = true;
  }

  // A filter's tap that acts `lag` positions later. Row k of taps acts k positions later or 2 * length - k earlier.
  __device__ float tap(const T* taps, int lag) const {
    const int k = lag < 0 ? 2 * plan_.length + lag : lag;
    const bool acts = lag < plan_.length && lag > -plan_.length && k < plan_.taps;
    return acts ? to_float(taps[k]) : 0.0f;
  }

  // Points of a filter's part: kFresh taps, then zeros.
  __device__ __forceinline__ void load_taps(float2 (&z)[kOuter], int filter, int part) const {
    const T* taps = g_.h + int64_t(filter) * plan_.taps;
#pragma unroll
    for (int i = 0; i < kOuter; ++i) {
      z[i] = make_float2(i < kFreshOuter ? tap(taps, part * kFresh + i * kThreads + t_) : 0.0f, 0.0f);
    }
  }

  // The skip weight is one more weight of tap 0: its spectrum is constant.
  __device__ float skip(int part) const { return part == 0 ? to_float(g_.bias[channel_]) / kPoints : 0.0f; }

  // Position within a piece of this thread's pack of a round.
  __device__ int place_of(int round) const { return (round * kThreads + t_) * kPack; }

  // What a tensor (B, C, l) has of the batch and channel at a time, on the rank that holds it.
  template <typename X>
  __device__ X* at(X* x, int time) const {
    const auto spot = cut_.spot_of(time);
    return comm_.peer(x, comm_.group_member(g_.group, spot.place)) + row() + spot.position;
  }

  // Reads x2 and v at times begin .. begin + kFresh - 1; those outside of [earliest, end) are zero.
  __device__ __forceinline__ Fetched fetch(int begin, int earliest, int end) const {
    Fetched fetched;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int time = begin + place_of(round);
      fetched.x2[round] = fetched.v[round] = make_uint4(0, 0, 0, 0);
      if (time + kPack <= max(earliest, 0) || time >= end) continue;
      fetched.x2[round] = pkb::load_vector(at(g_.x2, time));
      fetched.v[round] = pkb::load_vector(at(g_.v, time));
    }
    return fetched;
  }

  // Writes the products of what was fetched.
  __device__ __forceinline__ void gate(const Fetched& fetched, float* place) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const pkb::Pack<T> u = pkb::product(pkb::as_pack<T>(fetched.x2[round]), pkb::as_pack<T>(fetched.v[round]));
      pkb::store_as_floats(place + place_of(round), u);
    }
  }

  // Copies what this thread wrote by gate().
  __device__ void copy(const float* from, float* to) const {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int e = 0; e < kPack; e += 4) {
        const int i = place_of(round) + e;
        *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
      }
    }
  }

  // The same for rows that cannot be read 16 bytes at a time.
  __device__ void gate_singly(int begin, float* place) const {
#pragma unroll 1
    for (int i = t_; i < kFresh; i += kThreads) {
      const int time = begin + i;
      const bool is_inside = time >= 0 && time < plan_.length;
      place[i] = is_inside ? to_float(pkb::product(*at(g_.x2, time), *at(g_.v, time))) : 0.0f;
    }
  }

  // Loads the windows of pieces a (real) and b (imaginary): gated inputs from kFresh positions before to the end.
  __device__ __forceinline__ void load_windows(float2 (&z)[kOuter], Piece a, Piece b) {
    float* past_a = reinterpret_cast<float*>(shared_.exchange);
    float *own_a = past_a + kFresh, *past_b = own_a + kFresh, *own_b = past_b + kFresh;
    if (plan_.wide) {
      // With a single part, positions that no tap or no result needs are left out.
      const bool single = parts_ == 1;
      const int end = plan_.length, need = single ? plan_.taps : end;
      const bool carried_a = a.begin == carry_begin_ + kFresh, carried_b = b.begin == other_carry_begin_ + kFresh;
      const bool adjacent = b.begin == a.begin + kFresh && (a.count == kFresh || !single);
      const Fetched of_a = fetch(a.begin, 0, single ? min(end, a.begin + a.count) : end);
      const Fetched of_b = fetch(b.begin, 0, single ? min(end, b.begin + b.count) : end);
      const Fetched before_a = fetch(a.begin - kFresh, a.begin - need, carried_a ? 0 : end);
      const Fetched before_b = fetch(b.begin - kFresh, b.begin - need, adjacent || carried_b ? 0 : end);
      gate(of_a, own_a);
      gate(of_b, own_b);
      if (carried_a) {
        copy(shared_.carry, past_a);
      } else {
        gate(before_a, past_a);
      }
      if (adjacent) {
        copy(own_a, past_b);
      } else if (carried_b) {
        copy(shared_.other_carry, past_b);
      } else {
        gate(before_b, past_b);
      }
      if (single) {
        copy(own_b, shared_.carry);
        carry_begin_ = b.count == kFresh ? b.begin : kNever;
      } else {
        copy(own_a, shared_.carry);
        copy(own_b, shared_.other_carry);
        carry_begin_ = a.begin;
        other_carry_begin_ = b.begin;
      }
    } else {
      gate_singly(a.begin - kFresh, past_a);
      gate_singly(a.begin, own_a);
      gate_singly(b.begin - kFresh, past_b);
      gate_singly(b.begin, own_b);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOuter; ++i) z[i] = make_float2(past_a[i * kThreads + t_], past_b[i * kThreads + t_]);
    __syncthreads();
  }

  // Sends the results to the ranks that hold their times: z's points from kFresh on, a's real, b's imaginary.
  __device__ __forceinline__ void store(const float2 (&z)[kOuter], Piece a, Piece b) {
    T* staged = reinterpret_cast<T*>(shared_.exchange);
#pragma unroll
    for (int i = 0; i < kFreshOuter; ++i) {
      const float2 y = z[kFreshOuter + i];
      pkb::round_to(staged[i * kThreads + t_], staged[kFresh + i * kThreads + t_], y.x, y.y);
    }
    __syncthreads();
    send(staged, a);
    send(staged + kFresh, b);
  }

  __device__ void send(const T* staged, Piece piece) const {
    if (plan_.wide) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int i = place_of(round);
        if (i < piece.count) pkb::store_vector(at(g_.y, piece.begin + i), pkb::load_vector(staged + i));
      }
    } else {
#pragma unroll 1
      for (int i = t_; i < piece.count; i += kThreads) *at(g_.y, piece.begin + i) = staged[i];
    }
  }

  const Globals<T>& g_;
  const Plan& plan_;
  const pkb::Device& comm_;
  Shared& shared_;
  const pkb::SequenceCut cut_;
  const int t_;
  const fft::Roots roots_;
  const int parts_;
  const fft::PartitionedFilter filter_;  // where it has several parts
  int batch_ = 0, channel_ = 0;
  int kept_ = -1;  // filter whose spectrum is kept
  bool begun_ = false;
  int carry_begin_ = kNever, other_carry_begin_ = kNever;
};

// The same on tensor cores (pkb/fft_matrix_cuda.h), for bfloat16 and filters that fit into one piece.
template <int R>
class MatrixConvolver {
 public:
  using T = __nv_bfloat16;
  using Convolution = pkb::fft_matrix::Convolution<R>;
  using S = pkb::fft_matrix::Shared<R>;
  static constexpr int kFresh = Convolution::kPoints;
  static constexpr int kPack = 4;  // positions that a thread moves at once: a round of the block has 1024
  static constexpr int kRounds = kFresh / (kThreads * kPack), kBatch = kRounds < 8 ? kRounds : 8;
  static constexpr int64_t kSpectrumBytes = Convolution::kSpectrumBytes, kCarryBytes = int64_t(kFresh) * sizeof(T);

  __device__ MatrixConvolver(const Globals<T>& g, const pkb::Device& comm, S& shared)
      : g_(g), plan_(g.plan), comm_(comm), shared_(shared), cut_(plan_.cut), t_(int(threadIdx.x)),
        convolution_(shared, in_scratch(g)), carry_(reinterpret_cast<uint2*>(in_scratch(g) + kSpectrumBytes)) {}

  // Work items (b, channel, piece) are dealt to blocks in rows; whole rows where gated inputs are pushed.
  __device__ void run() {
    const int pieces = plan_.segments * plan_.pieces, rows = plan_.B * plan_.channels;
    const int items = plan_.pushed ? rows : rows * pieces, unit = plan_.pushed ? pieces : 1;
    const int begin = int(int64_t(items) * blockIdx.x / plan_.workers) * unit;
    const int end = int(int64_t(items) * (blockIdx.x + 1) / plan_.workers) * unit;
    if (begin == end) return;
    const int first_row = begin / pieces, row_end = end / pieces;
    if (plan_.pushed) push(first_row, 0);
    pkb::fft_matrix::fill(shared_);
    int kept = -1, last_row = -1, last_end = 0;  // last_end: time where the carried positions end
#pragma unroll 1
    for (int item = begin; item < end; ++item) {
      const int row = item / pieces, index = item % pieces;
      if (plan_.pushed && index == 0 && row + 1 < row_end) push(row + 1, row + 1 - first_row);
      batch_ = row / plan_.channels;
      channel_ = plan_.first_channel + row % plan_.channels;
      const int filter = channel_ / plan_.group_dim;
      if (filter != kept) {
        convolution_.take_filter(load_taps(filter));
        kept = filter;
      }
      if (item == begin) comm_.wait_all_begun(0, g_.group);  // what peers did in the call before has ended
      if (plan_.pushed && index == 0) comm_.wait_blocks(row - first_row, g_.group);
      const int segment = index / plan_.pieces, offset = index % plan_.pieces * kFresh;
      const int time = plan_.begin[segment] + offset, count = min(kFresh, plan_.segment_length - offset);
      const uint32_t most = load_piece(time, count, row == last_row && time == last_end);
      last_row = row;
      last_end = count == kFresh ? time + kFresh : kNever;
      convolution_.convolve(most, to_float(g_.bias[channel_]));
      send(time, count);
    }
  }

 private:
  // This block's part of scratch: the spectrum of a filter, then the gated inputs of the newest piece.
  __device__ static unsigned char* in_scratch(const Globals<T>& g) {
    return reinterpret_cast<unsigned char*>(g.spectra) + int64_t(blockIdx.x) * (kSpectrumBytes + kCarryBytes);
  }

  // Where this thread's positions of a round begin.
  __device__ __forceinline__ int position(int round) const { return (round * kThreads + t_) * kPack; }

  template <typename X>
  __device__ __forceinline__ X* at(X* x, int time) const {
    const auto spot = cut_.spot_of(time);
    return comm_.peer(x, comm_.group_member(g_.group, spot.place)) +
           (int64_t(batch_) * plan_.C + channel_) * plan_.l + spot.position;
  }

  // Sends the gated inputs of this rank's times of a row of each other rank, and signals its counterparts there.
  // What lay there has been read: this rank ended the call before when all ranks had convolved.
  __device__ void push(int row, int phase) const {
    constexpr int kVector = 8, kTogether = 4;
    for (int k = 1; k < plan_.W; ++k) {
      const int place = (plan_.place + k) % plan_.W;
      const int channel = place * plan_.channels + row % plan_.channels;
      const int64_t from = (int64_t(row / plan_.channels) * plan_.C + channel) * plan_.l;
      T* to = comm_.peer(g_.u, comm_.group_member(g_.group, place)) + int64_t(row) * plan_.length;
#pragma unroll 1
      for (int first = t_ * kVector; first < plan_.l; first += kTogether * kThreads * kVector) {
        uint4 x2[kTogether], v[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int position = first + i * kThreads * kVector;
          if (position >= plan_.l) continue;
          x2[i] = pkb::load_vector(g_.x2 + from + position);
          v[i] = pkb::load_vector(g_.v + from + position);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int position = first + i * kThreads * kVector;
          if (position >= plan_.l) continue;
          const int chunk = position >= cut_.chunk ? 1 : 0;
          pkb::store_vector(to + cut_.begin(plan_.place, chunk) + position - chunk * cut_.chunk,
                            make_uint4(product(x2[i].x, v[i].x), product(x2[i].y, v[i].y), product(x2[i].z, v[i].z),
                                       product(x2[i].w, v[i].w)));
        }
      }
    }
    comm_.arrive_blocks(phase, g_.group);
  }

  __device__ static __forceinline__ uint32_t product(uint32_t a, uint32_t b) {
    const __nv_bfloat162 c =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const uint32_t&>(c);
  }

  // Gated inputs of a batch of rounds, at times from `begin` on; those outside of [earliest, end) are zero.
  __device__ __forceinline__ void gated(uint2 (&u)[kBatch], int first_round, int begin, int earliest, int end) const {
    uint2 a[kBatch], b[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int time = begin + position(first_round + i);
      a[i] = b[i] = make_uint2(0, 0);
      if (time + kPack <= earliest || time >= end) continue;
      if (plan_.pushed && cut_.spot_of(time).place != plan_.place) {
        const int64_t row = int64_t(batch_) * plan_.channels + channel_ - plan_.first_channel;
        a[i] = __ldcg(reinterpret_cast<const uint2*>(g_.u + row * plan_.length + time));
        b[i] = make_uint2(0x3f803f80, 0x3f803f80);  // ones
      } else {
        a[i] = *reinterpret_cast<const uint2*>(at(g_.x2, time));
        b[i] = *reinterpret_cast<const uint2*>(at(g_.v, time));
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) u[i] = make_uint2(product(a[i].x, b[i].x), product(a[i].y, b[i].y));
  }

  // Puts gated inputs, of a piece and of as many positions before. Returns the largest of them.
  __device__ __forceinline__ uint32_t load_piece(int time, int count, bool carried) {
    uint32_t most = 0;
#pragma unroll 1
    for (int first = 0; first < kRounds; first += kBatch) {
      uint2 own[kBatch], past[kBatch];
      gated(own, first, time, 0, time + count);
      if (carried) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) past[i] = carry_[(first + i) * kThreads + t_];
      } else {
        gated(past, first, time - kFresh, max(0, time - plan_.taps), plan_.length);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        carry_[(first + i) * kThreads + t_] = own[i];
        convolution_.put(position(first + i), past[i], own[i]);
        for (const uint32_t word : {own[i].x, own[i].y, past[i].x, past[i].y}) {
          most = Convolution::larger_magnitude(most, word);
        }
      }
    }
    return most;
  }

  // Puts a filter's taps; those that the length of the sequence makes idle are zero. Returns the largest of them and of
  // the skip weights of the filter's channels.
  __device__ uint32_t load_taps(int filter) {
    const T* taps = g_.h + int64_t(filter) * plan_.taps;
    const int count = min(plan_.taps, plan_.length);
    uint32_t most = 0;
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      const int first = position(round);
      uint32_t tap[kPack];
#pragma unroll
      for (int e = 0; e < kPack; ++e) tap[e] = first + e < count ? __bfloat16_as_ushort(taps[first + e]) : 0;
      convolution_.put(first, make_uint2(tap[0] | tap[1] << 16, tap[2] | tap[3] << 16), make_uint2(0, 0));
#pragma unroll
      for (int e = 0; e < kPack; ++e) most = Convolution::larger_magnitude(most, tap[e]);
    }
    for (int i = t_; i < plan_.group_dim; i += kThreads) {
      most = Convolution::larger_magnitude(most, __bfloat16_as_ushort(g_.bias[filter * plan_.group_dim + i]));
    }
    return most;
  }

  // Sends the results to the ranks that hold their times.
  __device__ __forceinline__ void send(int time, int count) const {
#pragma unroll 4
    for (int round = 0; round < kRounds; ++round) {
      const int i = position(round);
      if (i < count) *reinterpret_cast<uint2*>(at(g_.y, time + i)) = convolution_.results(i);
    }
    __syncthreads();
  }

  const Globals<T>& g_;
  const Plan& plan_;
  const pkb::Device& comm_;
  S& shared_;
  const pkb::SequenceCut cut_;
  const int t_;
  Convolution convolution_;
  uint2* carry_;
  int batch_ = 0, channel_ = 0;
};

// ------------------------------------------------------------------------------------------------- between the phases

// All blocks of this rank have convolved: they read peers' inputs no more, and peers have their results.
__device__ void tell_convolved(const pkb::Device& comm, int64_t group, const Plan& plan, unsigned* arrived) {
  const int t = int(threadIdx.x);
  if (pkb::arrives_last(arrived) && t < plan.W) comm.signal(kConvolved + plan.place, comm.group_member(group, t));
}

__device__ void wait_convolved(const pkb::Device& comm, int first, int count) {
  const int t = int(threadIdx.x);
  if (t < count) comm.wait(kConvolved + first + t);
  __syncthreads();
}

// --------------------------------------------------------------------------------------- phase two: gates, transposed

// The products of x1 and y, (C, l) each, from a channel and a position on.
template <typename T>
struct Gated {
  const T *x1, *y;
  int64_t l;

  struct Fetched {
    uint4 x1, y;
  };
  __device__ Fetched fetch(int channel, int position) const {
    const int64_t at = channel * l + position;
    return {pkb::load_vector(x1 + at), pkb::load_written_vector(y + at)};
  }
  __device__ pkb::Pack<T> make(const Fetched& fetched) const {
    return pkb::product(pkb::as_pack<T>(fetched.x1), pkb::as_pack<T>(fetched.y));
  }
  __device__ T make_one(int channel, int position) const {
    const int64_t at = channel * l + position;
    return pkb::product(x1[at], __ldcg(y + at));
  }
};

// Writes (B, l, C), in tiles that are dealt to the blocks.
template <typename T>
__device__ void gate_outputs(const Globals<T>& g, T* tile) {
  constexpr int kTile = pkb::kTransposeTile;
  const int C = g.plan.C, l = g.plan.l, wide_tiles = (C + kTile - 1) / kTile, long_tiles = (l + kTile - 1) / kTile;
  for (int i = int(blockIdx.x); i < g.plan.B * wide_tiles * long_tiles; i += int(gridDim.x)) {
    const int b = i / (wide_tiles * long_tiles), rest = i % (wide_tiles * long_tiles);
    const int position = rest / wide_tiles * kTile, channel = rest % wide_tiles * kTile;
    const int64_t from = (int64_t(b) * C + channel) * l + position;
    T* out = g.out + (int64_t(b) * l + position) * C + channel;
    pkb::transpose_tile<kThreads>(tile, min(kTile, C - channel), min(kTile, l - position),
                                  Gated<T>{g.x1 + from, g.y + from, l}, l % kPerVector<T> == 0, out, C,
                                  C % kPerVector<T> == 0);
  }
}

// How pieces are convolved: by transforms of float32 numbers, or on tensor cores.
template <typename Number>
struct InFloat {
  static constexpr bool kMayPush = false;
  using T = Number;
  using Memory = Shared;
  static constexpr int kFresh = ::kFresh, kPiecesOfTransform = 2;
  static constexpr double kTransformsPerNs = 0.05;

  static int64_t block_bytes(const Plan& plan) {
    return plan.parts() > 1 ? plan.parts() * int64_t((kPoints + fft::kSpectrum) * sizeof(float2)) : 0;
  }
  __device__ static void convolve(const Globals<T>& g, const pkb::Device& comm, Memory& shared) {
    Convolver<T>(g, comm, shared).run();
  }
};

template <int R>
struct OnTensorCores {
  static constexpr bool kMayPush = true;
  using T = __nv_bfloat16;
  using Memory = pkb::fft_matrix::Shared<R>;
  static constexpr int kFresh = MatrixConvolver<R>::kFresh, kPiecesOfTransform = 1;
  static constexpr double kTransformsPerNs = R == 16 ? 0.02 : 0.08;

  static int64_t block_bytes(const Plan&) {
    return MatrixConvolver<R>::kSpectrumBytes + MatrixConvolver<R>::kCarryBytes;
  }
  __device__ static void convolve(const Globals<T>& g, const pkb::Device& comm, Memory& shared) {
    MatrixConvolver<R>(g, comm, shared).run();
  }
};

template <typename Way>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) hyena(const __grid_constant__ Globals<typename Way::T> g,
                                                                const __grid_constant__ pkb::Device comm) {
  using T = typename Way::T;
  extern __shared__ __align__(16) unsigned char memory[];
  const Plan& plan = g.plan;
  comm.signal_begun(g.group);
  if (int(blockIdx.x) < plan.workers) Way::convolve(g, comm, *reinterpret_cast<typename Way::Memory*>(memory));
  __syncthreads();
  tell_convolved(comm, g.group, plan, g.arrived);
  if (plan.by_time) {  // results are this rank's own
    wait_convolved(comm, plan.place, 1);
  } else {
    wait_convolved(comm, 0, plan.W);
  }
  gate_outputs(g, reinterpret_cast<T*>(memory));
  if (plan.by_time) wait_convolved(comm, 0, plan.W);
}

// -------------------------------------------------------------------------------------------------------------- host

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Divides the work by channels or by time, whichever is estimated to take less.
template <typename Way>
void divide(Plan& plan, int64_t item_bytes) {
  constexpr double kLinkBytesPerNs = 350;
  constexpr int kFresh = Way::kFresh;
  const int own_chunks = plan.cut.chunks, chunk = plan.cut.chunk;
  auto transforms = [](int64_t segments, int64_t length) {
    return ceil_div(segments * ceil_div(length, kFresh), Way::kPiecesOfTransform);
  };
  const double rows = double(plan.B) * plan.C;
  const double link_by_channel = 3.0 * (plan.W - 1) / plan.W * rows * plan.l;
  const double link_by_time = 2.0 * own_chunks * std::min(plan.taps - 1, kFresh) * rows;
  const double transforms_by_channel = rows / plan.W * double(1 + 2 * transforms(1, plan.length));
  const double transforms_by_time = rows * double(1 + 2 * transforms(own_chunks, chunk));
  auto cost = [&](double link, double all) {
    return std::max(link * double(item_bytes) / kLinkBytesPerNs, all / Way::kTransformsPerNs);
  };
  plan.by_time = plan.W > 1 && plan.parts() == 1 &&
                 cost(link_by_time, transforms_by_time) < cost(link_by_channel, transforms_by_channel);
  plan.channels = plan.by_time ? plan.C : plan.C / plan.W;
  plan.first_channel = plan.by_time ? 0 : plan.place * plan.channels;
  plan.segments = plan.by_time ? own_chunks : 1;
  plan.segment_length = plan.by_time ? chunk : plan.length;
  for (int i = 0; i < plan.segments; ++i) plan.begin[i] = plan.by_time ? plan.cut.begin(plan.place, i) : 0;
  plan.pieces = int(ceil_div(plan.segment_length, kFresh));
  plan.pairs = int(ceil_div(int64_t(plan.segments) * plan.pieces, 2));
}

Plan make_plan(const pkb::Group& members, const TensorView& x, const TensorView& h, int64_t group_dim, bool zigzag,
               int64_t item_bytes) {
  Plan plan{};
  plan.W = members.size;
  plan.place = members.rank;
  plan.B = int(x.shape()[0]);
  plan.C = int(x.shape()[1]);
  plan.l = int(x.shape()[2]);
  plan.taps = int(std::min<int64_t>(h.shape()[1], INT_MAX));
  plan.group_dim = int(group_dim);
  plan.cut = pkb::SequenceCut::of(plan.W, plan.l, zigzag);
  plan.length = plan.cut.length();
  plan.wide = plan.cut.chunk % (16 / item_bytes) == 0;
  return plan;
}

template <typename Way>
void launch(Globals<typename Way::T> g, Plan plan, const pkb::Comm& comm) {
  using T = typename Way::T;
  const int64_t item_bytes = sizeof(T);
  plan.last_part = (std::min(plan.length, plan.taps) - 1) / Way::kFresh;
  // Taps beyond the length act on the future.
  plan.first_part = plan.taps > plan.length + 1 ? -int(ceil_div(plan.length - 1, Way::kFresh)) : 0;
  divide<Way>(plan, item_bytes);
  constexpr int kSharedBytes = int(sizeof(typename Way::Memory));
  const int blocks = pkb::resident_blocks<hyena<Way>, kThreads, kSharedBytes>();
  const int64_t y_bytes = ceil_div(int64_t(plan.B) * plan.C * plan.l * item_bytes, 256) * 256;
  const int64_t spectra_offset = kCounterBytes + y_bytes, block_bytes = Way::block_bytes(plan);
  plan.splits = std::clamp(blocks / std::max(1, plan.B * plan.channels), 1, plan.pairs);
  plan.workers = blocks;
  if (block_bytes) {
    plan.workers = int(std::min<int64_t>(blocks, (int64_t(comm.scratch_bytes) - spectra_offset) / block_bytes));
  }
  if (int64_t(comm.scratch_bytes) < spectra_offset || plan.workers < 1) {
    TVM_FFI_THROW(RuntimeError) << "expected more scratch than " << comm.scratch_bytes << " bytes";
  }
  // Gated inputs lie in the second half, in every call: a peer may send while this rank ends the call before.
  const int64_t half = int64_t(comm.scratch_bytes) / 512 * 256;
  const int64_t rows = int64_t(plan.B) * plan.channels;
  plan.pushed = Way::kMayPush && plan.W > 1 && !plan.by_time && 2 * y_bytes <= int64_t(comm.scratch_bytes) &&
                half >= spectra_offset + block_bytes && (plan.pieces == 1 || 2 * rows >= blocks);
  if (plan.pushed) {
    const int workers = int(std::min<int64_t>(plan.workers, (half - spectra_offset) / block_bytes));
    plan.pushed = ceil_div(rows, workers) <= kMostPhases;
    if (plan.pushed) plan.workers = workers;
  }
  g.u = comm.scratch<T>(uint64_t(half));
  g.y = comm.scratch<T>(uint64_t(kCounterBytes));
  g.spectra = comm.scratch<float2>(uint64_t(spectra_offset));
  g.arrived = comm.scratch<unsigned>();
  g.plan = plan;
  hyena<Way><<<blocks, kThreads, kSharedBytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView x1_seq, TensorView x2_seq, TensorView v_seq, TensorView h, TensorView conv_bias,
              int64_t num_groups, int64_t group_dim, int64_t group, bool with_zigzag_splitting, TensorView out,
              pkb::Comm comm) {
  const int64_t C = x1_seq.shape()[1], l = x1_seq.shape()[2], W = comm.group(group).size;
  if (C != num_groups * group_dim || num_groups % W) {
    TVM_FFI_THROW(ValueError) << "expected num_groups * group_dim = C and num_groups a multiple of " << W << ", got "
                              << num_groups << " * " << group_dim << " and C = " << C;
  }
  if (with_zigzag_splitting && l % 2) TVM_FFI_THROW(ValueError) << "zigzag splitting needs an even length, got " << l;
  pkb::with_type<__nv_bfloat16, __half, float>(x1_seq.dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto data = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
    Globals<T> g{data(x1_seq), data(x2_seq), data(v_seq), data(h), data(conv_bias), data(out)};
    g.group = group;
    const Plan plan = make_plan(comm.group(group), x1_seq, h, group_dim, with_zigzag_splitting, sizeof(T));
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      // Filters of one part that act on the past alone.
      const bool simple = plan.wide && plan.taps <= plan.length + 1;
      if (simple && plan.taps <= OnTensorCores<8>::kFresh) return launch<OnTensorCores<8>>(g, plan, comm);
      if (simple && plan.taps <= OnTensorCores<16>::kFresh) return launch<OnTensorCores<16>>(g, plan, comm);
    }
    launch<InFloat<T>>(g, plan, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
