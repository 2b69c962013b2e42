// DistributedIRFFT: no gather of the mirrored half, and two kernels, the first of which stores straight to the owners.
//
// Only the real part is asked for. The mirrored half of a spectrum adds to it what the stored half does, so that columns
// which have a mirror image count twice and no other rank's rows are needed. (Where rows are cropped or padded that does
// not hold: then mirrored rows are read from their ranks.) The first kernel transforms rows and stores each part of them
// into the scratch of the rank that owns these columns, which has begun the call and so ended the one before. The second
// transforms columns, two real ones as one complex line: of a complex column the part counts that has a real transform.
// The baseline gathers the whole spectrum on every rank, packs, exchanges, unpacks and takes the real part.
//
// Bound: the link, 8 bytes for each own row of a foreign column; on one rank memory, two reads and two writes.
//
// Left on the table: of what crosses, 8 ranks' columns need less, as they are real; transforms of the cut rows are whole.
#include <cmath>

#include "pkb/fft_lines_cuda.h"
#include "pkb/last_block_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

using pkb::fft_lines::kThreads;
using pkb::fft_lines::Matrices;
using pkb::fft_lines::Pair;
using pkb::fft_lines::Plan;
using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::String;
using tvm::ffi::TensorView;

namespace {

constexpr uint64_t kCounterBytes = 256;  // at the beginning of scratch, before the columns

struct Globals {
  const float2* x;
  float* y;
  Matrices from, to;
  Plan rows, columns;  // transforms
  int64_t group;
  int height;         // rows of the spectrum, of one rank
  int width;          // columns that the spectrum has
  int own_rows;       // rows of one rank that count
  int begin;          // of this rank's rows, of all
  int all_rows;       // that count, of all ranks
  int own_columns;    // of the image, of one rank
  bool is_periodic;   // as many rows come out as go in
  int ranks;
  float2* received;   // (batch, all_rows, own_columns) in scratch
  float scale;
};

// Transforms back are transforms with real and imaginary parts exchanged.
__device__ __forceinline__ float2 exchanged(float2 a) { return make_float2(a.y, a.x); }

// The number in a column of the whole spectrum, of which x holds the first columns.
__device__ __forceinline__ float2 spectrum_at(const Globals& g, int64_t matrix, int row, int column,
                                              const pkb::Device& comm) {
  const int mirrored = g.rows.length - column;
  if (column < g.width) {
    const float2 value = __ldg(g.x + matrix + row * g.from.first + column * g.from.second);
    const bool counts_twice = g.is_periodic && column > 0 && mirrored >= g.width;
    return counts_twice ? make_float2(2 * value.x, 2 * value.y) : value;
  }
  if (g.is_periodic || mirrored >= g.width) return make_float2(0.0f, 0.0f);
  const int all = g.height * g.ranks, whole = g.begin + row, other = whole == 0 ? 0 : all - whole;
  const float2* x = comm.peer(g.x, comm.group_member(g.group, other / g.height));
  const float2 value = x[matrix + other % g.height * g.from.first + mirrored * g.from.second];
  return make_float2(value.x, -value.y);
}

__global__ void __launch_bounds__(kThreads, 2)
    transform_rows(const __grid_constant__ Globals g, int all_lines, const __grid_constant__ pkb::Device comm) {
  extern __shared__ float2 numbers[];
  comm.signal_begun(g.group);
  if (!g.is_periodic) comm.wait_all_begun(0, g.group);
  const Plan& plan = g.rows;
  const int n = plan.length, most = plan.lines(), first = int(blockIdx.x) * most, lines = min(most, all_lines - first);
  for (int i = int(threadIdx.x); i < n * lines; i += kThreads) {
    const int line = i / n, column = i % n, matrix = (first + line) / g.own_rows, row = (first + line) % g.own_rows;
    numbers[plan.place(line, column)] = exchanged(spectrum_at(g, g.from.begin(matrix), row, column, comm));
  }
  pkb::fft_lines::transform(numbers, lines, plan);
  if (g.is_periodic) comm.wait_all_begun(0, g.group);
  for (int i = int(threadIdx.x); i < n * lines; i += kThreads) {
    const int line = i / n, column = i % n, matrix = (first + line) / g.own_rows, row = (first + line) % g.own_rows;
    const int64_t at = int64_t(matrix) * g.all_rows + g.begin + row;
    float2* to = g.received + at * g.own_columns + column % g.own_columns;
    *comm.peer(to, comm.group_member(g.group, column / g.own_columns)) = exchanged(numbers[plan.place(line, column)]);
  }
  pkb::meet_in_last_block(comm.scratch<unsigned>(), 0, comm);
}

// Two neighbouring columns in a row, of which the second or both may not exist, as rows may.
__device__ __forceinline__ Pair pair_at(const Globals& g, int matrix, int row, int column) {
  Pair pair{};
  if (row >= g.all_rows) return pair;
  const int64_t at = (int64_t(matrix) * g.all_rows + row) * g.own_columns + column;
  if (at % 2 == 0 && column + 1 < g.own_columns) {
    const float4 both = *reinterpret_cast<const float4*>(g.received + at);
    return {make_float2(both.x, both.y), make_float2(both.z, both.w)};
  }
  pair.first = g.received[at];
  if (column + 1 < g.own_columns) pair.second = g.received[at + 1];
  return pair;
}

__global__ void __launch_bounds__(kThreads, 2) transform_columns(const __grid_constant__ Globals g, int tiles) {
  extern __shared__ float2 numbers[];
  const Plan& plan = g.columns;
  const int n = plan.length, most = plan.lines(), matrix = int(blockIdx.x) / tiles;
  const int begin = int(blockIdx.x) % tiles * 2 * most, count = min(2 * most, g.own_columns - begin);
  const int lines = (count + 1) / 2, width = 2 * lines;
  for (int i = int(threadIdx.x); i < (n / 2 + 1) * lines; i += kThreads) {
    const int line = i % lines, row = i / lines, opposite = row == 0 ? 0 : n - row, column = begin + 2 * line;
    const Pair here = pair_at(g, matrix, row, column), there = pair_at(g, matrix, opposite, column);
    numbers[plan.place(line, row)] = exchanged(pkb::fft_lines::put_together(here, there));
    if (opposite != row) numbers[plan.place(line, opposite)] = exchanged(pkb::fft_lines::put_together(there, here));
  }
  pkb::fft_lines::transform(numbers, lines, plan);
  float* to = g.y + g.to.begin(matrix);
  for (int i = int(threadIdx.x); i < n * width; i += kThreads) {
    const int column = i % width, row = i / width;
    if (column >= count) continue;
    const float value = reinterpret_cast<const float*>(numbers + plan.place(column / 2, row))[1 - column % 2];
    to[row * g.to.first + (begin + column) * g.to.second] = g.scale * value;
  }
}

double scale_of(const String& norm, int64_t n) {
  if (norm == "ortho") return 1 / std::sqrt(double(n));
  if (norm == "backward") return 1 / double(n);
  if (norm != "forward") TVM_FFI_THROW(ValueError) << "norm must be 'ortho', 'forward' or 'backward', got " << norm;
  return 1;
}

}  // namespace

void solution(TensorView x, Optional<Array<int64_t>> s, Array<int64_t> dim, String norm, int64_t group, TensorView y,
              pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  const auto length = [](const TensorView& of, int64_t axis) { return of.size(int(axis < 0 ? axis + of.ndim() : axis)); };
  const int64_t height = length(x, dim[0]), width = length(x, dim[1]);
  const int64_t n0 = s.has_value() ? (*s)[0] : height, n1 = s.has_value() ? (*s)[1] : 2 * (width - 1);
  if (members.size != comm.world_size) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  if (n1 % members.size) TVM_FFI_THROW(ValueError) << n1 << " columns cannot be shared by " << members.size << " ranks";
  Globals g{static_cast<const float2*>(x.data_ptr()),
            static_cast<float*>(y.data_ptr()),
            Matrices(x, dim[0], dim[1]),
            Matrices(y, dim[0], dim[1]),
            Plan(n1),
            Plan(n0)};
  g.group = group;
  g.height = int(height);
  g.width = int(width);
  g.begin = int(members.rank * height);
  g.own_rows = int(std::clamp<int64_t>(n0 - g.begin, 0, height));
  g.all_rows = int(std::min(height * members.size, n0));
  g.own_columns = int(n1 / members.size);
  g.is_periodic = n0 == height * members.size;
  g.ranks = members.size;
  g.received = comm.scratch<float2>(kCounterBytes);
  g.scale = float(scale_of(norm, n0) * scale_of(norm, n1));
  const int64_t lines = g.from.batch * g.own_rows;
  if (uint64_t(g.from.batch) * g.all_rows * g.own_columns * sizeof(float2) + kCounterBytes > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold the transformed rows";
  }
  if (y.numel() == 0) return;

  constexpr int kShared = pkb::fft_lines::kSharedBytes;
  pkb::allow_shared_memory<transform_rows>(kShared);
  pkb::allow_shared_memory<transform_columns>(kShared);
  const int64_t blocks = std::max<int64_t>(1, (lines + g.rows.lines() - 1) / g.rows.lines());
  transform_rows<<<unsigned(blocks), kThreads, kShared, comm.cuda_stream()>>>(g, int(lines), comm.device());
  PKB_CUDA_LAUNCHED();
  const int of_tile = 2 * g.columns.lines(), tiles = (g.own_columns + of_tile - 1) / of_tile;
  transform_columns<<<unsigned(g.from.batch * tiles), kThreads, kShared, comm.cuda_stream()>>>(g, tiles);
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
