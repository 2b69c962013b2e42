// DistributedRFFT: two kernels, one for each axis, the first of which stores its rows straight to their owners.
//
// The first transforms columns, two real ones as one complex line, several lines a block so that rows are read and sent
// in whole sectors. It takes the two apart and stores frequencies k0 into the scratch of the ranks that own them, where
// they lie as the second kernel reads them. A receiver's scratch may be written once it has begun the call: it then has
// ended the one before. The second transforms rows and stores the half of the spectrum that counts. The baseline packs,
// exchanges, unpacks and cuts in kernels of their own, and transforms real columns as complex ones.
//
// Bound: the link, 8 bytes for each own row of a foreign column; on one rank memory, two reads and two writes.
//
// Left on the table: rows k0 and -k0 of four or more ranks' columns cross though they are conjugates; half of what the
// second kernel computes is not stored.
#include <cmath>

#include "pkb/fft_lines_cuda.h"
#include "pkb/last_block_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

using pkb::fft_lines::kThreads;
using pkb::fft_lines::Matrices;
using pkb::fft_lines::Plan;
using tvm::ffi::Array;
using tvm::ffi::String;
using tvm::ffi::TensorView;

namespace {

constexpr uint64_t kCounterBytes = 256;  // at the beginning of scratch, before the rows

struct Globals {
  const float* x;
  float2* y;
  Matrices from, to;
  Plan first, second;  // transforms of columns and of rows
  int64_t group;
  int height;       // rows of x that count
  int own_columns;  // that count, of this rank
  int own_begin;    // where they begin, of all
  int columns;      // of all ranks
  int rows;         // of the spectrum, of this rank
  float2* received;  // (batch, rows, columns) in scratch
  float scale;
};

__global__ void __launch_bounds__(kThreads, 2)
    transform_columns(const __grid_constant__ Globals g, int tiles, const __grid_constant__ pkb::Device comm) {
  extern __shared__ float2 numbers[];
  comm.signal_begun(g.group);
  const Plan& plan = g.first;
  const int n = plan.length, most = plan.lines(), batch = int(blockIdx.x) / tiles;
  const int begin = int(blockIdx.x) % tiles * 2 * most, count = min(2 * most, g.own_columns - begin);
  const int lines = (max(count, 0) + 1) / 2, width = 2 * lines;
  const float* from = g.x + g.from.begin(batch);
  const bool by_columns = g.from.second == 1;  // neighbours in memory are neighbours in a row
  for (int i = int(threadIdx.x); i < n * width; i += kThreads) {
    const int column = by_columns ? i % width : i / n, row = by_columns ? i / width : i % n;
    const bool inside = row < g.height && column < count;
    const float value = inside ? from[row * g.from.first + (begin + column) * g.from.second] : 0.0f;
    reinterpret_cast<float*>(numbers + plan.place(column / 2, row))[column % 2] = value;
  }
  pkb::fft_lines::transform(numbers, lines, plan);
  comm.wait_all_begun(0, g.group);
  for (int i = int(threadIdx.x); i < n * lines; i += kThreads) {
    const int line = i % lines, k = i / lines, owner = k / g.rows, column = begin + 2 * line;
    const auto pair = pkb::fft_lines::take_apart(numbers[plan.place(line, k)],
                                                 numbers[plan.place(line, k == 0 ? 0 : n - k)]);
    const int64_t row = int64_t(batch) * g.rows + k % g.rows, at = row * g.columns + g.own_begin + column;
    float2* to = comm.peer(g.received + at, comm.group_member(g.group, owner));
    if (at % 2 == 0 && column + 1 < g.own_columns) {
      *reinterpret_cast<float4*>(to) = make_float4(pair.first.x, pair.first.y, pair.second.x, pair.second.y);
      continue;
    }
    to[0] = pair.first;
    if (column + 1 < g.own_columns) to[1] = pair.second;
  }
  pkb::meet_in_last_block(comm.scratch<unsigned>(), 0, comm);
}

__global__ void __launch_bounds__(kThreads, 2) transform_rows(const __grid_constant__ Globals g, int all_rows) {
  extern __shared__ float2 numbers[];
  const Plan& plan = g.second;
  const int n = plan.length, most = plan.lines(), first = int(blockIdx.x) * most, lines = min(most, all_rows - first);
  const float2* from = g.received + int64_t(first) * g.columns;
  for (int i = int(threadIdx.x); i < n * lines; i += kThreads) {
    const int line = i / n, column = i % n;
    const bool inside = column < g.columns;
    numbers[plan.place(line, column)] = inside ? __ldcs(from + int64_t(line) * g.columns + column) : float2{0, 0};
  }
  pkb::fft_lines::transform(numbers, lines, plan);
  const int kept = n / 2 + 1;
  for (int i = int(threadIdx.x); i < kept * lines; i += kThreads) {
    const int line = i / kept, k = i % kept, row = first + line;
    const float2 value = numbers[plan.place(line, k)];
    g.y[g.to.begin(row / g.rows) + row % g.rows * g.to.first + k * g.to.second] =
        make_float2(g.scale * value.x, g.scale * value.y);
  }
}

double scale_of(const String& norm, int64_t n) {
  if (norm == "ortho") return 1 / std::sqrt(double(n));
  if (norm == "forward") return 1 / double(n);
  if (norm != "backward") TVM_FFI_THROW(ValueError) << "norm must be 'ortho', 'forward' or 'backward', got " << norm;
  return 1;
}

}  // namespace

void solution(TensorView x, Array<int64_t> s, Array<int64_t> dim, String norm, int64_t group, TensorView y,
              pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  const auto length = [](const TensorView& of, int64_t axis) { return of.size(int(axis < 0 ? axis + of.ndim() : axis)); };
  if (members.size != comm.world_size) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  if (s[0] % members.size) TVM_FFI_THROW(ValueError) << s[0] << " rows cannot be shared by " << members.size << " ranks";
  Globals g{static_cast<const float*>(x.data_ptr()),
            static_cast<float2*>(y.data_ptr()),
            Matrices(x, dim[0], dim[1]),
            Matrices(y, dim[0], dim[1]),
            Plan(s[0]),
            Plan(s[1])};
  const int64_t width = length(x, dim[1]);
  g.group = group;
  g.height = int(std::min(length(x, dim[0]), s[0]));
  g.own_begin = int(members.rank * width);
  g.own_columns = int(std::clamp<int64_t>(s[1] - g.own_begin, 0, width));
  g.columns = int(std::min(width * members.size, s[1]));
  g.rows = int(s[0] / members.size);
  g.received = comm.scratch<float2>(kCounterBytes);
  g.scale = float(scale_of(norm, s[0]) * scale_of(norm, s[1]));
  const int64_t all_rows = g.from.batch * g.rows;
  if (uint64_t(all_rows) * g.columns * sizeof(float2) + kCounterBytes > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold the transformed columns";
  }
  if (all_rows == 0) return;

  constexpr int kShared = pkb::fft_lines::kSharedBytes;
  pkb::allow_shared_memory<transform_columns>(kShared);
  pkb::allow_shared_memory<transform_rows>(kShared);
  const int of_tile = 2 * g.first.lines(), tiles = std::max(1, (g.own_columns + of_tile - 1) / of_tile);
  transform_columns<<<unsigned(g.from.batch * tiles), kThreads, kShared, comm.cuda_stream()>>>(g, tiles, comm.device());
  PKB_CUDA_LAUNCHED();
  const int lines = g.second.lines();
  transform_rows<<<unsigned((all_rows + lines - 1) / lines), kThreads, kShared, comm.cuda_stream()>>>(g, int(all_rows));
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
