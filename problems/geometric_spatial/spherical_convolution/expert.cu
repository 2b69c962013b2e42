// SphericalConvolution: fields travel once, and filter and mixing are one kernel.
//
// The baseline moves channels for longitudes and back, K times as many numbers on the way back, and sums blocks of all
// latitudes between. Here a rank fetches the others' fields, which are as many numbers as its block of the output at
// least, and their filters, whose entries of equal rows it finds by looking at neighbours. A block of the second kernel
// then makes one latitude of the output: filtered values of some channels and rows of the filter go to shared memory,
// where they are mixed with the weights as a product of matrices.
//
// Bound: the link, (W - 1) / W of the whole field for each rank; with many channels the mixing, in float32.
//
// Left on the table: the switch could add partial sums; own longitudes could be filtered while others arrive.
#include <algorithm>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

// Pieces of a dimension that ranks share: all equal but the last.
struct Pieces {
  int size, number, each;

  __host__ __device__ Pieces(int size, int number) : size(size), number(number), each((size + number - 1) / number) {
    if (size - each * (number - 1) <= 0) each = size / number;
  }
  __host__ __device__ int begin(int i) const { return i * each; }
  __host__ __device__ int length(int i) const { return i + 1 < number ? each : size - each * (number - 1); }
  __device__ int owner(int at) const { return min(at / each, number - 1); }
};

// Entry of a filter: where its latitude begins in a field, its longitude, and its value.
struct alignas(16) Entry {
  int latitude, longitude;
  float value;
  int unused;
};

struct Globals {
  const float* x;           // (samples, channels, latitudes, longitudes of this rank)
  const int64_t* indices;   // (3, entries)
  const float *values, *weight, *bias;
  float* out;               // (samples, filters, out_latitudes, longitudes of this rank)
  int samples, channels, filters, rows, groups;  // rows: of the filter at a latitude
  int latitudes, out_latitudes, entries;         // of this rank; peers have others
  int across, down;                              // ranks that share latitudes, and longitudes; rank = q * across + a
  Pieces longitudes, out_longitudes, channel_pieces;
  int pitch;                // latitudes of a field in memory
  // What the first kernel makes.
  float* fields;            // (down, samples, channels, pitch, all longitudes)
  Entry* filters_of_ranks;  // max_entries of each
  int64_t max_entries;
  int* begins;              // of each rank, first entry of each row of its filter
  int max_rows;             // of its filter, at all latitudes
  int* own_begin;           // first output latitude of this rank, and the number of all

  __host__ __device__ int all_longitudes() const { return longitudes.size; }
  __device__ float* field(int q, int sample, int channel) const {
    return fields + ((int64_t(q) * samples + sample) * channels + channel) * pitch * all_longitudes();
  }
};

// ---- from the ranks ----

constexpr int kThreads = pkb::kTransferThreads;

// Numbers that peers need of a rank, each in a word of theirs that also says that the rank's call has begun.
enum Fact { kEntries, kLatitudes, kOutLatitudes, kFacts };

__device__ void send_facts(const Globals& g, const pkb::Device& comm) {
  const int r = int(threadIdx.x);
  if (blockIdx.x != 0 || r >= comm.world_size || r == comm.rank) return;
  const int facts[kFacts] = {g.entries, g.latitudes, g.out_latitudes};
  for (int fact = 0; fact < kFacts; ++fact) {
    comm.signal(fact * pkb::kMaxRanks + comm.rank, r, comm.epoch << 32 | uint32_t(facts[fact]));
  }
}

struct Facts {
  int of_ranks[kFacts][pkb::kMaxRanks];

  __device__ void receive(const Globals& g, const pkb::Device& comm) {
    const int r = int(threadIdx.x);
    if (r < comm.world_size) {
      const int own[kFacts] = {g.entries, g.latitudes, g.out_latitudes};
      for (int fact = 0; fact < kFacts; ++fact) {
        const int slot = fact * pkb::kMaxRanks + r;
        if (r != comm.rank) comm.wait(slot, comm.epoch << 32);
        of_ranks[fact][r] =
            r == comm.rank ? own[fact] : int(uint32_t(pkb::load_acquire(comm.signal_word(slot, comm.rank))));
      }
    }
    __syncthreads();
  }
};

// Entries of rank r's filter, and where its rows begin: where neighbours lie in different rows.
__device__ void fetch_filter(const Globals& g, int r, int entries, int all_latitudes, const pkb::Device& comm) {
  const int64_t* indices = comm.peer(g.indices, r);
  const float* values = comm.peer(g.values, r);
  Entry* to = g.filters_of_ranks + r * g.max_entries;
  int* begins = g.begins + int64_t(r) * (g.max_rows + 1);
  const int rows = g.rows * all_latitudes;
  const auto row = [&](int e) { return int(indices[e]) * all_latitudes + int(indices[int64_t(entries) + e]); };
  for (int e = blockIdx.x * kThreads + threadIdx.x; e <= entries; e += gridDim.x * kThreads) {
    const int before = e == 0 ? -1 : row(e - 1), own = e == entries ? rows : row(e);
    for (int i = before + 1; i <= own; ++i) begins[i] = e;
    if (e == entries) break;
    const int column = int(indices[2 * int64_t(entries) + e]), longitude = column % g.all_longitudes();
    to[e] = {column - longitude, longitude, values[e], 0};
  }
}

// Rank r's part of the field, in accesses of Unit.
template <class Unit>
__device__ void fetch_field(const Globals& g, int r, int latitudes, const pkb::Device& comm) {
  constexpr int kLanes = sizeof(Unit) / sizeof(float);
  const int a = r % g.across, q = r / g.across, of_row = g.longitudes.length(a) / kLanes;
  const auto* from = reinterpret_cast<const Unit*>(comm.peer(g.x, r));
  float* to = g.field(q, 0, 0) + g.longitudes.begin(a);
  const int64_t units = int64_t(g.samples) * g.channels * latitudes * of_row;
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t first = blockIdx.x * int64_t(kThreads) + threadIdx.x; first < units; first += pkb::kLoadsAtOnce * step) {
    Unit loaded[pkb::kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < pkb::kLoadsAtOnce; ++k) {
      if (first + k * step < units) loaded[k] = __ldcs(from + first + k * step);
    }
#pragma unroll
    for (int k = 0; k < pkb::kLoadsAtOnce; ++k) {
      const int64_t i = first + k * step, row = i / of_row, plane = row / latitudes;
      if (i >= units) break;
      float* place = to + (plane * g.pitch + row % latitudes) * g.all_longitudes() + i % of_row * kLanes;
      *reinterpret_cast<Unit*>(place) = loaded[k];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    fetch(const __grid_constant__ Globals g, const __grid_constant__ pkb::Device comm) {
  __shared__ Facts facts;
  send_facts(g, comm);
  facts.receive(g, comm);
  int all_latitudes = 0, begin = 0;
  for (int q = 0; q < g.down; ++q) {
    if (q == comm.rank / g.across) begin = all_latitudes;
    all_latitudes += facts.of_ranks[kOutLatitudes][q * g.across];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    g.own_begin[0] = begin;
    g.own_begin[1] = all_latitudes;
  }
  const bool in_vectors = g.longitudes.size % 4 == 0 && g.longitudes.each % 4 == 0;
  for (int k = 0; k < comm.world_size; ++k) {  // no two ranks begin with the same one
    const int r = (comm.rank + k) % comm.world_size;
    if (facts.of_ranks[kEntries][r] > g.max_entries) __trap();  // scratch grows with the tensors of a call
    fetch_filter(g, r, facts.of_ranks[kEntries][r], all_latitudes, comm);
    if (comm.world_size == 1) break;
    const int latitudes = facts.of_ranks[kLatitudes][r];
    if (in_vectors) fetch_field<float4>(g, r, latitudes, comm);
    else fetch_field<float>(g, r, latitudes, comm);
  }
  comm.barrier_blocks();
}

// ---- on this rank ----

constexpr int kDepth = 16;        // filtered values of a point at a time
constexpr int kEachFilter = 8;    // filters of a thread
constexpr int kFilterThreads = 128;

// A block makes so many longitudes of so many filters.
template <int kPoints_, int kFilters_>
struct Shape {
  static constexpr int kPoints = kPoints_, kFilters = kFilters_;
  static constexpr int kEachPoint = kPoints * kFilters / kFilterThreads / kEachFilter;
  static constexpr int kPointThreads = kPoints / kEachPoint;
};
using Narrow = Shape<128, 8>;
using Wide = Shape<64, 64>;

// Row k of the filter at an output latitude and longitude, on one channel: over the latitudes of all ranks.
__device__ __forceinline__ float filtered(const Globals& g, int sample, int channel, int row, int shift) {
  float sum = 0;
  const int a = g.channel_pieces.owner(channel);
  for (int q = 0; q < g.down; ++q) {
    const int r = q * g.across + a;
    const int* begins = g.begins + int64_t(r) * (g.max_rows + 1) + row;
    const Entry* entries = g.filters_of_ranks + r * g.max_entries;
    const float* field = g.field(q, sample, channel);
    for (int e = begins[0]; e < begins[1]; ++e) {
      const Entry entry = entries[e];
      int longitude = entry.longitude + shift;
      if (longitude >= g.all_longitudes()) longitude -= g.all_longitudes();
      sum += entry.value * field[entry.latitude + longitude];
    }
  }
  return sum;
}

template <class Shape>
__global__ void __launch_bounds__(kFilterThreads)
    convolve(const __grid_constant__ Globals g, int a, int tiles_across, int filter_tiles) {
  __shared__ float inputs[kDepth][Shape::kPoints], weights[kDepth][Shape::kFilters];
  const int of_group = g.filters / g.groups, channels = g.channels / g.groups, depth = channels * g.rows;
  const int width = g.out_longitudes.length(a), thread = int(threadIdx.x);
  int index = int(blockIdx.x);
  const int first_filter = index % filter_tiles * Shape::kFilters;
  const int group = (index /= filter_tiles) % g.groups;
  const int first_point = (index /= g.groups) % tiles_across * Shape::kPoints;
  const int latitude = (index /= tiles_across) % g.out_latitudes, sample = index / g.out_latitudes;
  const int coarser = g.all_longitudes() / g.out_longitudes.size;
  const int own_begin = g.own_begin[0], all_latitudes = g.own_begin[1];
  const int point = thread % Shape::kPointThreads, filter = thread / Shape::kPointThreads * kEachFilter;
  float sums[Shape::kEachPoint][kEachFilter] = {};
  for (int begin = 0; begin < depth; begin += kDepth) {
    for (int i = thread; i < kDepth * Shape::kPoints; i += kFilterThreads) {
      const int at = begin + i / Shape::kPoints, longitude = first_point + i % Shape::kPoints;
      const int row = at % g.rows * all_latitudes + own_begin + latitude;
      const int shift = (g.out_longitudes.begin(a) + longitude) * coarser;
      inputs[i / Shape::kPoints][i % Shape::kPoints] =
          at < depth && longitude < width ? filtered(g, sample, group * channels + at / g.rows, row, shift) : 0.0f;
    }
    for (int i = thread; i < kDepth * Shape::kFilters; i += kFilterThreads) {
      const int at = begin + i % kDepth, own = first_filter + i / kDepth;
      weights[i % kDepth][i / kDepth] =
          at < depth && own < of_group ? g.weight[int64_t(group * of_group + own) * depth + at] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float factors[kEachFilter];
#pragma unroll
      for (int j = 0; j < kEachFilter; ++j) factors[j] = weights[k][filter + j];
#pragma unroll
      for (int i = 0; i < Shape::kEachPoint; ++i) {
        const float input = inputs[k][point + i * Shape::kPointThreads];
#pragma unroll
        for (int j = 0; j < kEachFilter; ++j) sums[i][j] += input * factors[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < kEachFilter; ++j) {
    if (first_filter + filter + j >= of_group) break;
    const int own = group * of_group + first_filter + filter + j;
    const float bias = g.bias ? g.bias[own] : 0.0f;
    float* to = g.out + ((int64_t(sample) * g.filters + own) * g.out_latitudes + latitude) * width;
#pragma unroll
    for (int i = 0; i < Shape::kEachPoint; ++i) {
      const int longitude = first_point + point + i * Shape::kPointThreads;
      if (longitude < width) to[longitude] = sums[i][j] + bias;
    }
  }
}

template <class Shape>
void launch_convolution(const Globals& g, int a, cudaStream_t stream) {
  const auto divide_up = [](int x, int by) { return (x + by - 1) / by; };
  const int across = divide_up(g.out_longitudes.length(a), Shape::kPoints);
  const int filter_tiles = divide_up(g.filters / g.groups, Shape::kFilters);
  const int64_t blocks = int64_t(g.samples) * g.out_latitudes * across * g.groups * filter_tiles;
  if (blocks == 0) return;
  convolve<Shape><<<unsigned(blocks), kFilterThreads, 0, stream>>>(g, a, across, filter_tiles);
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView x, TensorView psi_indices, TensorView psi_values, TensorView weight, int64_t groups,
              int64_t nlon_out, int64_t nlon_in, int64_t azimuth_group, int64_t polar_group,
              Optional<TensorView> bias, TensorView out, pkb::Comm comm) {
  const auto of = [](const TensorView& tensor) { return static_cast<float*>(tensor.data_ptr()); };
  const int across = comm.group(azimuth_group).size, down = comm.group(polar_group).size;
  if (across * down != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "groups of " << across << " and " << down << " are no grid of " << comm.world_size;
  }
  Globals g{of(x),
            static_cast<const int64_t*>(psi_indices.data_ptr()),
            of(psi_values),
            of(weight),
            bias.has_value() ? of(*bias) : nullptr,
            of(out),
            int(x.size(0)),
            int(x.size(1)),
            int(weight.size(0)),
            int(weight.size(2)),
            int(groups),
            int(x.size(2)),
            int(out.size(2)),
            int(psi_values.numel()),
            across,
            down,
            Pieces(int(nlon_in), across),
            Pieces(int(nlon_out), across),
            Pieces(int(x.size(1)), across)};
  // Pieces of a dimension differ by less than their number.
  g.max_rows = g.rows * down * (g.out_latitudes + down);
  g.begins = pkb::kept_memory<int>(2 + int64_t(comm.world_size) * (g.max_rows + 1)) + 2;
  g.own_begin = g.begins - 2;
  g.filters_of_ranks = comm.scratch<Entry>(0);
  g.max_entries = int64_t(comm.scratch_bytes / sizeof(Entry)) / comm.world_size;
  if (comm.world_size == 1) {
    g.pitch = g.latitudes;
    g.fields = const_cast<float*>(g.x);
  } else {
    g.pitch = g.latitudes + down;
    g.fields = pkb::kept_memory<float>(int64_t(down) * g.samples * g.channels * g.pitch * nlon_in);
  }
  // As many blocks on every rank, whose shares differ: they meet.
  constexpr int64_t kLatitudesOfBlock = 32;
  const int64_t row_bytes = int64_t(g.samples) * g.channels * nlon_in * int64_t(sizeof(float));
  fetch<<<pkb::blocks_for(row_bytes * kLatitudesOfBlock, pkb::kCopyTile), kThreads, 0, comm.cuda_stream()>>>(
      g, comm.device());
  PKB_CUDA_LAUNCHED();
  const int a = comm.rank % across;
  if (g.filters / g.groups <= 2 * Narrow::kFilters) launch_convolution<Narrow>(g, a, comm.cuda_stream());
  else launch_convolution<Wide>(g, a, comm.cuda_stream());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
