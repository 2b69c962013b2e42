// HyenaConv1d: halos are pushed to the neighbours first, and the convolution runs on the tensor cores meanwhile.
//
// What moves: the last positions of each chunk, to the scratch of the rank that needs them, as many blocks at a time
// as read them there; a word from each block signals its counterpart. Outputs that need no halo are computed while
// halos are under way. A warp convolves 2048 positions of a channel: outputs 16 positions wide are a product of the
// sequence in overlapping rows with a Toeplitz matrix of the filter, which stays in registers (mma), and a row is
// loaded once for up to eight products. The baseline convolves on CUDA cores, after a copy of the whole sequence
// behind its halos.
//
// Bound: memory, a read and a write of the sequence; halos are a few parts in a thousand. Filters of more than 129
// taps and float32 run on CUDA cores, where they are bound by arithmetic, 2 K operations an element.
//
// Left on the table: a product of 16 outputs by 144 positions has a ninth of zeros for 128 taps, and half for 7.
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 2048;        // outputs of a warp at a time
constexpr int kSpan = 128;         // positions between rows of a tile in shared memory; padded against bank conflicts
constexpr int kPad = 8;
constexpr int kWide = 16;          // outputs of a product
constexpr int kSimtTile = 512;

template <class T>
struct Convolution {
  const T *x, *weight;
  T* y;
  int rows, channels, chunk, taps;  // rows: samples and channels; a rank has two chunks of each
  int halo;                         // positions that travel: taps - 1, rounded up to a multiple of 16
  uint64_t half_bytes;              // of scratch, by the parity of calls

  __device__ const T* chunk_of(int row, int i) const { return x + (int64_t(row) * 2 + i) * chunk; }
  // Halos of this rank's chunks, in scratch.
  __device__ T* halo_of(const pkb::Device& comm, int row, int i) const {
    return comm.scratch<T>(comm.epoch % 2 * half_bytes) + (int64_t(row) * 2 + i) * halo;
  }
  // Position `at` of a chunk's end that travels, in 0 .. halo - 1; zero before the chunk.
  __device__ T tail(int row, int i, int at) const {
    const int position = chunk - halo + at;
    return position < 0 ? T(0.0f) : chunk_of(row, i)[position];
  }
};

// Rows of this block; blocks of the same number have the same ones on all ranks.
struct Rows {
  int begin, end;
  __device__ explicit Rows(int rows)
      : begin(int(int64_t(rows) * blockIdx.x / gridDim.x)), end(int(int64_t(rows) * (blockIdx.x + 1) / gridDim.x)) {}
};

// The neighbour that has what comes before a chunk of this rank; -1: none, or this rank.
__device__ int rank_before(const pkb::Device& comm, int i) {
  return i == 0 ? comm.rank - 1 : comm.rank + 1 < comm.world_size ? comm.rank + 1 : -1;
}

// Ends of chunk 0 go to the next rank, those of chunk 1 to the previous one.
template <class T>
__device__ void push_tails(const Convolution<T>& g, const Rows& rows, const pkb::Device& comm) {
  constexpr int kPack = pkb::kPerVector<T>;
  for (int i = 0; i < 2; ++i) {
    const int receiver = i == 0 ? comm.rank + 1 : comm.rank - 1;
    if (receiver < 0 || receiver >= comm.world_size) continue;
    if (g.chunk % kPack == 0 && g.chunk >= g.halo) {
      const int vectors = g.halo / kPack;
      for (int at = threadIdx.x; at < (rows.end - rows.begin) * vectors; at += kThreads) {
        const int row = rows.begin + at / vectors, vector = at % vectors;
        const uint4 values = pkb::load_vector(g.chunk_of(row, i) + g.chunk - g.halo + vector * kPack);
        pkb::store_vector(comm.peer(g.halo_of(comm, row, i) + vector * kPack, receiver), values);
      }
    } else {
      for (int at = threadIdx.x; at < (rows.end - rows.begin) * g.halo; at += kThreads) {
        const int row = rows.begin + at / g.halo, element = at % g.halo;
        *comm.peer(g.halo_of(comm, row, i) + element, receiver) = g.tail(row, i, element);
      }
    }
  }
  __syncthreads();
  const int neighbour = comm.rank + (threadIdx.x == 0 ? -1 : 1);
  if (threadIdx.x < 2 && neighbour >= 0 && neighbour < comm.world_size) comm.signal_block(0, neighbour);
}

__device__ void await_tails(const pkb::Device& comm) {
  const int neighbour = comm.rank + (threadIdx.x == 0 ? -1 : 1);
  if (threadIdx.x < 2 && neighbour >= 0 && neighbour < comm.world_size) comm.wait_block(0, neighbour);
  __syncthreads();
}

// What a warp reads: position `at` of a tile that begins at `first`, with the halo before it.
template <class T>
__device__ T element_of(const Convolution<T>& g, int row, int i, int position, const pkb::Device& comm) {
  if (position >= g.chunk || position < -g.halo) return T(0.0f);
  if (position >= 0) return g.chunk_of(row, i)[position];
  if (rank_before(comm, i) >= 0) return __ldcg(g.halo_of(comm, row, i) + g.halo + position);
  return i == 0 ? T(0.0f) : g.tail(row, 0, g.halo + position);  // the last rank's chunks are neighbours
}

__device__ __forceinline__ int padded(int position) { return position + position / kSpan * kPad; }

// ---- tensor cores ----

// Loads a tile with the halo before it to shared memory, by a warp.
template <class T>
__device__ __forceinline__ void load_tile(const Convolution<T>& g, T* window, int row, int i, int first,
                                          const pkb::Device& comm) {
  constexpr int kPack = pkb::kPerVector<T>;
  const int positions = g.halo + kTile;
#pragma unroll 4
  for (int at = pkb::lane_id() * kPack; at < positions; at += 32 * kPack) {
    const int position = first - g.halo + at;
    uint4 values;
    if (position >= 0 && position + kPack <= g.chunk && g.chunk % kPack == 0) {
      values = pkb::load_vector(g.chunk_of(row, i) + position);
    } else {
      alignas(16) T each[kPack];
      for (int e = 0; e < kPack; ++e) each[e] = element_of(g, row, i, position + e, comm);
      values = *reinterpret_cast<const uint4*>(each);
    }
    pkb::store_vector(window + padded(at), values);
  }
  __syncwarp();
}

template <class T>
__device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The filter as a matrix (16 kSteps positions, 16 outputs): what each thread holds of it for mma's right operand.
template <class T, int kSteps>
struct Toeplitz {
  uint32_t words[kSteps][2][2];

  __device__ __forceinline__ void load(const Convolution<T>& g, int row) {
    const T* filter = g.weight + int64_t(row % g.channels) * g.taps;
    const int lane = pkb::lane_id();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const int position = step * 16 + lane % 4 * 2 + part * 8, output = half * 8 + lane / 4;
          T two[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int tap = position + e - output - g.halo + g.taps - 1;
            two[e] = tap >= 0 && tap < g.taps ? filter[tap] : T(0.0f);
          }
          memcpy(&words[step][half][part], two, 4);
        }
      }
    }
  }
};

// A tile: row n of a product begins at position 128 n of the window, and product j is 16 j positions further.
template <class T, int kSteps>
__device__ __forceinline__ void convolve_tile(const Convolution<T>& g, const Toeplitz<T, kSteps>& filter, T* window,
                                              int row, int i, int first) {
  constexpr int kProducts = kSpan / kWide;
  const int lane = pkb::lane_id();
  float sums[kProducts][2][4] = {};
#pragma unroll
  for (int at = 0; at < kProducts + kSteps - 1; ++at) {
    uint32_t a[4];
    const T* from = window + padded((lane % 16 + at / kProducts) * kSpan) + at % kProducts * kWide + lane / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(uint32_t(__cvta_generic_to_shared(from)))
                 : "memory");
#pragma unroll
    for (int j = 0; j < kProducts; ++j) {
      const int step = at - j;
      if (step < 0 || step >= kSteps) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply<T>(sums[j][half], a, filter.words[step][half][0], filter.words[step][half][1]);
      }
    }
  }
  __syncwarp();  // all have read the window, where results go now
#pragma unroll
  for (int j = 0; j < kProducts; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int position = (lane / 4 + 8 * part) * kSpan + j * kWide + half * 8 + lane % 4 * 2;
        T two[2];
        pkb::round_to(two[0], two[1], sums[j][half][2 * part], sums[j][half][2 * part + 1]);
        uint32_t word;
        memcpy(&word, two, 4);
        *reinterpret_cast<uint32_t*>(window + padded(position)) = word;
      }
    }
  }
  __syncwarp();
  constexpr int kPack = pkb::kPerVector<T>;
  T* out = g.y + (int64_t(row) * 2 + i) * g.chunk + first;
  const int count = min(g.chunk - first, kTile);
  if (g.chunk % kPack == 0) {
#pragma unroll 4
    for (int at = lane * kPack; at < count; at += 32 * kPack) {
      pkb::store_vector(out + at, pkb::load_vector(window + padded(at)));
    }
  } else {
    for (int at = lane; at < count; at += 32) out[at] = window[padded(at)];
  }
  __syncwarp();
}

template <int kSteps>
constexpr int kWindow = (kTile + (kSteps - 1) * 16) / kSpan * (kSpan + kPad) + kSpan + kPad;  // elements of a warp

template <class T, int kSteps>
__global__ void __launch_bounds__(kThreads, kSteps > 2 ? 1 : 2)
    convolve(const __grid_constant__ Convolution<T> g, const __grid_constant__ pkb::Device comm) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  T* window = reinterpret_cast<T*>(dynamic) + pkb::warp_id() * kWindow<kSteps>;
  const Rows rows(g.rows);
  const int tiles = (g.chunk + kTile - 1) / kTile;
  push_tails(g, rows, comm);
  Toeplitz<T, kSteps> filter;
  const auto convolve_tiles = [&](int row, int first_tile, int end_tile) {
    filter.load(g, row);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
#pragma unroll 1
      for (int tile = first_tile; tile < end_tile; ++tile) {
        load_tile(g, window, row, i, tile * kTile, comm);
        convolve_tile<T, kSteps>(g, filter, window, row, i, tile * kTile);
      }
    }
  };
  if (tiles > 1) {
    for (int row = rows.begin + pkb::warp_id(); row < rows.end; row += kWarps) convolve_tiles(row, 1, tiles);
  }
  await_tails(comm);
  for (int row = rows.begin + pkb::warp_id(); row < rows.end; row += kWarps) convolve_tiles(row, 0, 1);
}

// ---- CUDA cores ----

// A block convolves some positions of a chunk at a time; shared memory holds them with the halo before, and the filter.
template <class T>
__global__ void __launch_bounds__(kThreads)
    convolve_simt(const __grid_constant__ Convolution<T> g, const __grid_constant__ pkb::Device comm) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  float* window = reinterpret_cast<float*>(dynamic);
  float* filter = window + g.taps - 1 + kSimtTile;
  const Rows rows(g.rows);
  push_tails(g, rows, comm);
  const int tiles = (g.chunk + kSimtTile - 1) / kSimtTile;
  for (int first_tile = 1; first_tile >= 0; --first_tile) {  // those that need halos last
    if (first_tile == 0) await_tails(comm);
    for (int row = rows.begin; row < rows.end; ++row) {
      for (int at = threadIdx.x; at < g.taps; at += kThreads) {
        filter[at] = pkb::to_float(g.weight[int64_t(row % g.channels) * g.taps + at]);
      }
      for (int item = 0; item < 2 * tiles; ++item) {
        const int i = item / tiles, first = item % tiles * kSimtTile, count = min(g.chunk - first, kSimtTile);
        if ((first > 0) != (first_tile == 1)) continue;
        for (int at = threadIdx.x; at < g.taps - 1 + count; at += kThreads) {
          window[at] = pkb::to_float(element_of(g, row, i, first - (g.taps - 1) + at, comm));
        }
        __syncthreads();
        for (int at = threadIdx.x; at < count; at += kThreads) {
          float sum = 0.0f;
          for (int tap = 0; tap < g.taps; ++tap) sum += filter[tap] * window[at + tap];
          g.y[(int64_t(row) * 2 + i) * g.chunk + first + at] = T(sum);
        }
        __syncthreads();
      }
      __syncthreads();
    }
  }
}

// ---- host ----

template <class T, int kSteps>
void launch(const Convolution<T>& g, const pkb::Comm& comm) {
  constexpr int kBytes = kWarps * kWindow<kSteps> * int(sizeof(T));
  const int resident = pkb::resident_blocks<convolve<T, kSteps>, kThreads, kBytes>();
  const int blocks = std::min({resident, (g.rows + kWarps - 1) / kWarps, pkb::kMaxBlocks});
  convolve<T, kSteps><<<unsigned(blocks), kThreads, kBytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

template <class T>
void launch_simt(const Convolution<T>& g, const pkb::Comm& comm) {
  const int bytes = (2 * g.taps + kSimtTile) * int(sizeof(float));
  pkb::allow_shared_memory<convolve_simt<T>>(bytes);
  const int blocks = std::min({pkb::multiprocessors(), g.rows, pkb::kMaxBlocks});
  convolve_simt<T><<<unsigned(blocks), kThreads, bytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView x, TensorView weight, int64_t group, TensorView y, pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  pkb::with_type<__nv_bfloat16, __half, float>(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Convolution<T> g;
    g.x = static_cast<const T*>(x.data_ptr());
    g.weight = static_cast<const T*>(weight.data_ptr());
    g.y = static_cast<T*>(y.data_ptr());
    g.channels = int(x.size(1));
    g.rows = int(x.size(0)) * g.channels;
    g.chunk = int(x.size(2)) / 2;
    g.taps = int(weight.size(2));
    constexpr bool is_half = sizeof(T) == 2;
    const bool is_short = g.taps <= 17, is_long = g.taps > 129;
    g.halo = is_half && is_short ? 16 : is_half && !is_long ? 128 : (g.taps - 1 + 15) / 16 * 16;
    g.half_bytes = comm.scratch_bytes / 512 * 256;  // halves begin at the same places in calls of all shapes
    const uint64_t bytes = uint64_t(g.rows) * 2 * g.halo * sizeof(T);
    if (bytes > g.half_bytes) {
      TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds no " << 2 * bytes;
    }
    if (g.rows == 0 || g.chunk == 0) return;
    if constexpr (is_half) {
      if (is_short) return launch<T, 2>(g, comm);
      if (!is_long) return launch<T, 9>(g, comm);
    }
    launch_simt(g, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
