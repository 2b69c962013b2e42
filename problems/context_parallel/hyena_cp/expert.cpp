// HyenaCP: each rank owns C / W channels: it reads them, over all of time, from every rank's inputs, convolves, gates,
// and writes the results into every rank's output.
//
// What moves: all three inputs of the owned channels once, and the outputs once, 1 - 1/W of each over the link. The
// ranks of the group meet before they touch each other's memory, and when all is read and written. The bound is the
// arithmetic of the FFTs. They run over vectors of kLanes channels, so that neither butterflies nor the product with
// the filters shuffle anything. Two vectors of channels, A and B, share one complex transform as its real and imaginary
// parts; the filters do likewise. Transforms leave their results in bit-reversed order, and inverse ones begin with it.
// Where filters are shorter than the sequence, it is cut into pieces (overlap-save).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kLanes = 16;
constexpr int kSet = 2 * kLanes;  // channels that are transformed together
constexpr int kRun = 128;         // positions of one channel that are read in a row

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Places = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

// One element of kLanes complex sequences.
struct Point {
  Lanes re, im;
};

// A's values, then B's.
float* values_of(Point& point) { return reinterpret_cast<float*>(&point); }
const float* values_of(const Point& point) { return reinterpret_cast<const float*>(&point); }

Point operator+(const Point& a, const Point& b) { return {a.re + b.re, a.im + b.im}; }
Point operator-(const Point& a, const Point& b) { return {a.re - b.re, a.im - b.im}; }
Point operator*(const Point& a, const Point& b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
Point conj(const Point& a) { return {a.re, -a.im}; }
Point times_i(const Point& a) { return {-a.im, a.re}; }

// exp(i phi) of the same angle for all lanes.
struct Twiddle {
  float c, s;
};
Point turn(const Point& a, Twiddle w) { return {a.re * w.c - a.im * w.s, a.re * w.s + a.im * w.c}; }
Point turn_back(const Point& a, Twiddle w) { return {a.re * w.c + a.im * w.s, a.im * w.c - a.re * w.s}; }

// A complex transform of N points, N a power of two from 4 on, in place. Depth first, so that the inner levels run in
// the nearest cache. The inverse is not scaled.
class Fft {
 public:
  explicit Fft(int64_t size) {
    for (int64_t n = size; n > 8; n /= 4) {
      for (int64_t j = 0; j < n / 4; ++j) {
        const double angle = -2 * M_PI * double(j) / double(n);
        auto power = [&](int k) { return Twiddle{float(std::cos(k * angle)), float(std::sin(k * angle))}; };
        twiddles_.push_back({power(1), power(2), power(3)});
      }
    }
    size_ = size;
  }

  int64_t size() const { return size_; }
  void forward(Point* x) const { forward(x, size_, twiddles_.data()); }
  void inverse(Point* x) const { inverse(x, size_, twiddles_.data()); }

 private:
  struct Twiddles {
    Twiddle one, two, three;
  };

  // Two levels of decimation in frequency: the quarters get the frequencies 0, 2, 1 and 3 modulo 4.
  static void forward(Point* x, int64_t n, const Twiddles* w) {
    if (n == 4) return forward4(x);
    if (n == 8) return forward8(x);
    const int64_t q = n / 4;
    for (int64_t j = 0; j < q; ++j) {
      const Point a = x[j], b = x[j + q], c = x[j + 2 * q], d = x[j + 3 * q];
      const Point even = a + c, odd = b + d, difference = a - c, quarter_turn = times_i(b - d);
      x[j] = even + odd;
      x[j + q] = turn(even - odd, w[j].two);
      x[j + 2 * q] = turn(difference - quarter_turn, w[j].one);
      x[j + 3 * q] = turn(difference + quarter_turn, w[j].three);
    }
    for (int i = 0; i < 4; ++i) forward(x + i * q, q, w + q);
  }

  static void forward4(Point* x) {
    const Point even = x[0] + x[2], odd = x[1] + x[3], difference = x[0] - x[2], quarter_turn = times_i(x[1] - x[3]);
    x[0] = even + odd;
    x[1] = even - odd;
    x[2] = difference - quarter_turn;
    x[3] = difference + quarter_turn;
  }

  static void forward8(Point* x) {
    for (int j = 0; j < 4; ++j) {
      const Point a = x[j], b = x[j + 4];
      x[j] = a + b;
      x[j + 4] = turn(a - b, kEighths[j]);
    }
    forward4(x);
    forward4(x + 4);
  }

  static void inverse(Point* x, int64_t n, const Twiddles* w) {
    if (n == 4) return inverse4(x);
    if (n == 8) return inverse8(x);
    const int64_t q = n / 4;
    for (int i = 0; i < 4; ++i) inverse(x + i * q, q, w + q);
    for (int64_t j = 0; j < q; ++j) {
      const Point a = x[j], b = turn_back(x[j + q], w[j].two);
      const Point c = turn_back(x[j + 2 * q], w[j].one), d = turn_back(x[j + 3 * q], w[j].three);
      const Point even = a + b, odd = a - b, sum = c + d, quarter_turn = times_i(c - d);
      x[j] = even + sum;
      x[j + q] = odd + quarter_turn;
      x[j + 2 * q] = even - sum;
      x[j + 3 * q] = odd - quarter_turn;
    }
  }

  static void inverse4(Point* x) {
    const Point even = x[0] + x[1], odd = x[0] - x[1], sum = x[2] + x[3], quarter_turn = times_i(x[2] - x[3]);
    x[0] = even + sum;
    x[1] = odd + quarter_turn;
    x[2] = even - sum;
    x[3] = odd - quarter_turn;
  }

  static void inverse8(Point* x) {
    inverse4(x);
    inverse4(x + 4);
    for (int j = 0; j < 4; ++j) {
      const Point a = x[j], b = turn_back(x[j + 4], kEighths[j]);
      x[j] = a + b;
      x[j + 4] = a - b;
    }
  }

  static constexpr float kHalfRoot = 0.70710678f;
  static constexpr Twiddle kEighths[4] = {{1, 0}, {kHalfRoot, -kHalfRoot}, {0, -1}, {-kHalfRoot, -kHalfRoot}};

  int64_t size_;
  std::vector<Twiddles> twiddles_;  // of the levels, the longest first
};

// Calls visit(p, q) for all places p < q in bit-reversed order that hold frequencies k and -k. Places 0 and 1, which
// hold 0 and N / 2, are their own partners.
template <typename Visit>
void for_opposites(int64_t n, Visit visit) {
  for (int64_t begin = 2; begin < n; begin *= 2) {
    for (int64_t p = begin, q = 2 * begin - 1; p < q; ++p, --q) visit(p, q);
  }
}

// From the transform G of filters A + iB makes half of A's transform, at p, and half of B's, at q; scaled by 1 / N.
void separate_filters(Point* g, int64_t n) {
  const float scale = 1.0f / float(n), quarter = scale / 4;
  for (int p = 0; p < 2; ++p) g[p] = {g[p].re * scale, g[p].im * scale};
  for_opposites(n, [&](int64_t p, int64_t q) {
    const Point sum = g[p] + conj(g[q]), difference = g[p] - conj(g[q]);
    g[p] = {sum.re * quarter, sum.im * quarter};
    g[q] = {difference.im * quarter, -difference.re * quarter};
  });
}

// Multiplies the transform of sequences A + iB by that of their filters.
void apply_filters(Point* z, const Point* g, int64_t n) {
  for (int p = 0; p < 2; ++p) z[p] = {z[p].re * g[p].re, z[p].im * g[p].im};
  for_opposites(n, [&](int64_t p, int64_t q) {
    const Point a = (z[p] + conj(z[q])) * g[p], b = (z[p] - conj(z[q])) * g[q];
    z[p] = a + b;
    z[q] = conj(a - b);
  });
}

// Transposes kLanes vectors: each round interleaves the first half of them with the second.
void transpose(Lanes* rows) {
  Places low, high;
  for (int i = 0; i < kLanes; ++i) {
    low[i] = i / 2 + (i % 2 ? kLanes : 0);
    high[i] = low[i] + kLanes / 2;
  }
  for (int round = 1; round < kLanes; round *= 2) {
    Lanes mixed[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
    std::copy(mixed, mixed + kLanes, rows);
  }
}

// Up to kRun positions of a set of channels, channel by channel; rows of other channels, if any, are zero.
struct Tile {
  // The padding keeps rows from falling into the same places of the cache.
  alignas(64) float rows[kSet][kRun + kLanes] = {};

  // Calls visit(i, a, b) for positions i = 0 .. m-1, with the values of the channels of A and of B there.
  template <typename Visit>
  void for_positions(int64_t m, Visit visit) const {
    for (int64_t begin = 0; begin < m; begin += kLanes) {
      Lanes a[kLanes], b[kLanes];
      for (int c = 0; c < kLanes; ++c) {
        std::memcpy(&a[c], &rows[c][begin], sizeof(Lanes));
        std::memcpy(&b[c], &rows[kLanes + c][begin], sizeof(Lanes));
      }
      transpose(a);
      transpose(b);
      const int64_t count = std::min<int64_t>(kLanes, m - begin);
      for (int64_t i = 0; i < count; ++i) visit(begin + i, a[i], b[i]);
    }
  }
};

template <typename T>
float rounded(float value) {
  return float(T(value));
}

// How the sequence is cut: each piece of `fresh` positions and what precedes it make one transform of `size` points.
struct Plan {
  int64_t size, fresh, pieces;
};

Plan make_plan(int64_t T, int64_t taps, int64_t batch) {
  Plan best{};
  double least = HUGE_VAL;
  int64_t size = 4;
  while (size < std::min(T, taps)) size *= 2;
  if (taps > T + 1) {  // late taps act on the future: the past of a piece is not enough
    while (size < 2 * T - 1) size *= 2;
    return {size, T, 1};
  }
  for (bool is_whole = false; !is_whole; size *= 2) {
    const int64_t room = size - std::min(T, taps) + 1, pieces = (T + room - 1) / room;
    const double effort = double(2 * pieces * batch + 1) * double(size) * std::log2(double(size));
    is_whole = pieces == 1;
    if (effort < least) {
      least = effort;
      best = {size, (T + pieces - 1) / pieces, pieces};
    }
  }
  return best;
}

// Private memory that is kept between calls.
struct Workspace {
  explicit Workspace(int64_t size) : fft(size), sequence(new Point[size]), filters(new Point[size]) {}
  Fft fft;
  std::unique_ptr<Point[]> sequence, filters;
};

struct Globals {
  TensorView x1, x2, v, h, bias, out;
  int64_t batch, C, l, taps, group_dim;
  bool zigzag;
};

template <typename T>
class Hyena {
 public:
  Hyena(const Globals& g, const pkb::Group& group, const pkb::Comm& comm)
      : g_(g), group_(group), comm_(comm), length_(group.size * g.l), plan_(make_plan(length_, g.taps, g.batch)) {
    static std::unique_ptr<Workspace> workspace;
    if (!workspace || workspace->fft.size() != plan_.size) workspace.reset(new Workspace(plan_.size));
    fft_ = &workspace->fft;
    z_ = workspace->sequence.get();
    filters_ = workspace->filters.get();
  }

  void run(int64_t group_index) {
    comm_.barrier(group_index);
    const int64_t Cr = g_.C / group_.size, first = group_.rank * Cr;
    for (int64_t c = 0; c < Cr; c += kSet) {
      channel_ = first + c;
      channels_ = std::min<int64_t>(kSet, Cr - c);
      load_filters();
      fft_->forward(filters_);
      separate_filters(filters_, plan_.size);
      for (int64_t b = 0; b < g_.batch; ++b) {
        for (int64_t begin = 0; begin < length_; begin += plan_.fresh) convolve(b, begin);
      }
    }
    comm_.barrier(group_index);
  }

 private:
  // Tap k of the filter acts k positions later, or 2T - k earlier. The skip weight is one more weight of tap 0.
  void load_filters() {
    const int64_t causal = std::min(length_, g_.taps);
    load_taps(0, causal, 0);
    std::fill(filters_ + causal, filters_ + plan_.size, Point{});
    const int64_t late = length_ + 1, end = std::min(2 * length_, g_.taps);
    if (late < end) load_taps(late, end, plan_.size + late - 2 * length_);
    const T* bias = static_cast<const T*>(g_.bias.data_ptr()) + channel_;
    for (int64_t c = 0; c < channels_; ++c) values_of(filters_[0])[c] += float(bias[c]);
  }

  void load_taps(int64_t begin, int64_t end, int64_t to) {
    for (int64_t k = begin; k < end; k += kRun) {
      const int64_t m = std::min<int64_t>(kRun, end - k);
      Tile tile;
      for (int64_t c = 0; c < channels_; ++c) {
        const T* row = static_cast<const T*>(g_.h.data_ptr()) + (channel_ + c) / g_.group_dim * g_.taps + k;
        for (int64_t i = 0; i < m; ++i) tile.rows[c][i] = float(row[i]);
      }
      tile.for_positions(m, [&](int64_t i, Lanes a, Lanes b) { filters_[to + k - begin + i] = {a, b}; });
    }
  }

  // Positions begin .. begin + fresh - 1 of one batch. Those before begin stand at the end of the transform, which
  // goes around.
  void convolve(int64_t b, int64_t begin) {
    const int64_t end = std::min(begin + plan_.fresh, length_), past = std::min(begin, plan_.size - plan_.fresh);
    load_values(b, begin, end, 0);
    std::fill(z_ + (end - begin), z_ + plan_.size - past, Point{});
    load_values(b, begin - past, begin, plan_.size - past);
    fft_->forward(z_);
    apply_filters(z_, filters_, plan_.size);
    fft_->inverse(z_);
    store_gated(b, begin, end);
  }

  // Cuts positions begin .. end-1 of the sequence into runs that lie together on one rank, and calls
  // visit(rank, its position, position, length of the run).
  template <typename Visit>
  void for_runs(int64_t begin, int64_t end, Visit visit) const {
    const int64_t chunk = g_.zigzag ? g_.l / 2 : g_.l, W = group_.size;
    for (int64_t t = begin; t < end;) {
      const int64_t index = t / chunk, m = std::min<int64_t>({kRun, end - t, (index + 1) * chunk - t});
      const bool is_second = g_.zigzag && index >= W;
      visit(group_.ranks[is_second ? 2 * W - 1 - index : index], t % chunk + (is_second ? chunk : 0), t, m);
      t += m;
    }
  }

  const T* row(const TensorView& x, int rank, int64_t b, int64_t c, int64_t position) const {
    return comm_.peer<T>(x, rank) + (b * g_.C + channel_ + c) * g_.l + position;
  }

  // Puts the gated inputs x2 * v of positions begin .. end-1 at z[to].
  void load_values(int64_t b, int64_t begin, int64_t end, int64_t to) {
    for_runs(begin, end, [&](int rank, int64_t position, int64_t t, int64_t m) {
      Tile tile;
      for (int64_t c = 0; c < channels_; ++c) {
        const T *x2 = row(g_.x2, rank, b, c, position), *v = row(g_.v, rank, b, c, position);
        for (int64_t i = 0; i < m; ++i) tile.rows[c][i] = rounded<T>(float(x2[i]) * float(v[i]));
      }
      Point* target = z_ + to + (t - begin);
      tile.for_positions(m, [&](int64_t i, Lanes of_a, Lanes of_b) { target[i] = {of_a, of_b}; });
    });
  }

  // Gates positions begin .. end-1, which stand at z[0], and writes them where they belong.
  void store_gated(int64_t b, int64_t begin, int64_t end) {
    for_runs(begin, end, [&](int rank, int64_t position, int64_t t, int64_t m) {
      Tile gates;
      for (int64_t c = 0; c < channels_; ++c) {
        const T* x1 = row(g_.x1, rank, b, c, position);
        for (int64_t i = 0; i < m; ++i) gates.rows[c][i] = float(x1[i]);
      }
      const Point* source = z_ + (t - begin);
      T* out = comm_.peer<T>(g_.out, rank) + (b * g_.l + position) * g_.C + channel_;
      gates.for_positions(m, [&](int64_t i, Lanes gate_a, Lanes gate_b) {
        const Point gate{gate_a, gate_b};
        const float *y = values_of(source[i]), *x1 = values_of(gate);
        T values[kSet];
        for (int c = 0; c < kSet; ++c) values[c] = T(x1[c] * rounded<T>(y[c]));
        std::copy(values, values + channels_, out + i * g_.C);
      });
    });
  }

  const Globals& g_;
  const pkb::Group& group_;
  const pkb::Comm& comm_;
  const int64_t length_;  // of the whole sequence
  const Plan plan_;
  const Fft* fft_;
  Point *z_, *filters_;
  int64_t channel_ = 0, channels_ = 0;  // the set at work: its first channel and how many there are
};

}  // namespace

void solution(TensorView x1_seq, TensorView x2_seq, TensorView v_seq, TensorView h, TensorView conv_bias,
              int64_t num_groups, int64_t group_dim, int64_t group, bool with_zigzag_splitting, TensorView out,
              pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  const int64_t B = x1_seq.shape()[0], C = x1_seq.shape()[1], l = x1_seq.shape()[2];
  if (C != num_groups * group_dim || num_groups % members.size) {
    TVM_FFI_THROW(ValueError) << "expected num_groups * group_dim = C and num_groups a multiple of " << members.size
                              << ", got " << num_groups << " * " << group_dim << " and C = " << C;
  }
  if (with_zigzag_splitting && l % 2) TVM_FFI_THROW(ValueError) << "zigzag splitting needs an even length, got " << l;
  const Globals g{x1_seq, x2_seq, v_seq, h, conv_bias, out, B, C, l, h.shape()[1], group_dim, with_zigzag_splitting};
  const DLDataType dtype = x1_seq.dtype();
  if (dtype.code == kDLBfloat) return Hyena<pkb::bf16>(g, members, comm).run(group);
  if (dtype.code == kDLFloat && dtype.bits == 16) return Hyena<_Float16>(g, members, comm).run(group);
  if (dtype.code == kDLFloat && dtype.bits == 32) return Hyena<float>(g, members, comm).run(group);
  TVM_FFI_THROW(TypeError) << "sequences must be bfloat16, float16 or float32, got code " << int(dtype.code) << " of "
                           << int(dtype.bits) << " bits";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
