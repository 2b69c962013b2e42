// SAM3IoUSuppression: foreground bits travel first, then only the masks that stay. One launch.
//
// What moves: each rank packs its masks to one bit a pixel, stores the bits into every rank's scratch and widens its
// masks into its own output. Once all bits have arrived, every rank counts all overlaps by binary matrix products
// (and + popcount on tensor cores) and decides. It then reads the peers' masks that stay from where they lie, and
// fills the others. Masks that nobody can suppress, however they overlap, are read while the bits travel.
// The bound is the link: the input bytes of the foreign masks that stay, and one bit a pixel of all foreign masks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr float kBlank = -10.0f;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kThreads = 512, kWarps = kThreads / 32;

// A warp handles a chunk of a mask at a time. A lane has kOctets runs of eight pixels of it, 256 pixels apart, and one
// word of bits. Which pixel has which bit does not matter, as long as all masks agree.
constexpr int kOctet = 8, kOctets = 4;
constexpr int kChunk = 32 * kOctet * kOctets;
constexpr int kChunkWords = kChunk / 32;

// A block counts the overlaps of kTile objects with kTile others; each of its warps takes some steps of the pixels.
constexpr int kTile = 32, kTilePitch = kTile + 8;
constexpr int kVector = 4;  // words that a lane reads at once
constexpr int kStepVectors = 4;
constexpr int kRowTiles = kTile / 16, kColumnTiles = kTile / 8;

constexpr int kSkip = std::numeric_limits<int>::max();  // what is no entry of a list of objects

// Signal slot r tells that the bits of rank r are here; one more, that all decisions of this rank are made.
constexpr int kDecided = pkb::kMaxRanks;

// Blocks of this rank that have arrived; zero between calls.
struct Arrivals {
  unsigned packed, decided;
};
constexpr uint64_t kArrivalsBytes = 256;
constexpr int kListBytesByDefault = 40 << 10;  // shared memory that needs no asking, less what is static

template <typename T>
struct Globals {
  const T* masks;  // this rank's, as the scores
  const T* scores;
  const int64_t* last;
  float* out_masks;
  float* out_scores;
  bool* suppressed;
  Arrivals* arrivals;
  uint32_t* bits;  // (objects, chunks, kChunkWords)
  int first[pkb::kMaxRanks + 1];  // object of each rank
  int objects, chunks;
  int64_t pixels, group;
  float threshold;
  bool reverse;
  bool in_octets;  // masks consist of whole octets, all aligned
};

__device__ int lane_id() { return int(threadIdx.x) % 32; }
__device__ int warp_id() { return int(threadIdx.x) / 32; }
__device__ int first_item() { return int(blockIdx.x) * kWarps + warp_id(); }
__device__ int all_warps() { return int(gridDim.x) * kWarps; }

// ---- Pixels ----

using Pixels = float[kOctets][kOctet];

__device__ int64_t octet_offset(int chunk, int octet) {
  return int64_t(chunk) * kChunk + (octet * 32 + lane_id()) * kOctet;
}

// A lane's pixels of a chunk, background beyond the end.
template <typename T>
__device__ void load_chunk(const Globals<T>& g, const T* mask, int chunk, Pixels& values) {
  constexpr int kVectors = kOctet * sizeof(T) / sizeof(uint4);
  if (g.in_octets) {
    uint4 raw[kOctets][kVectors];
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int64_t at = octet_offset(chunk, o);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        raw[o][v] = at < g.pixels ? __ldg(reinterpret_cast<const uint4*>(mask + at) + v) : uint4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) values[o][i] = float(reinterpret_cast<const T*>(raw[o])[i]);
    }
    return;
  }
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const int64_t at = octet_offset(chunk, o) + i;
      values[o][i] = at < g.pixels ? float(mask[at]) : 0.0f;
    }
  }
}

template <typename T>
__device__ void store_chunk(const Globals<T>& g, float* mask, int chunk, const Pixels& values) {
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    const int64_t at = octet_offset(chunk, o);
    if (g.in_octets) {
      if (at >= g.pixels) continue;
      auto* to = reinterpret_cast<float4*>(mask + at);
#pragma unroll
      for (int v = 0; v < kOctet / 4; ++v) {
        const float* from = values[o] + 4 * v;
        __stcs(to + v, float4{from[0], from[1], from[2], from[3]});
      }
    } else {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        if (at + i < g.pixels) mask[at + i] = values[o][i];
      }
    }
  }
}

// ---- Packing ----

// Widens this rank's masks into its output and gives every rank their foreground bits.
template <typename T>
__device__ void pack_own(const Globals<T>& g, const pkb::Device& comm) {
  const int W = comm.group_size(g.group), own = comm.group_rank(g.group);
  const int first = g.first[own], items = (g.first[own + 1] - first) * g.chunks;
  for (int item = first_item(); item < items; item += all_warps()) {
    const int object = item / g.chunks, chunk = item % g.chunks;
    Pixels values;
    load_chunk(g, g.masks + object * g.pixels, chunk, values);
    uint32_t word = 0;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) word |= uint32_t(values[o][i] > 0) << (o * kOctet + i);
    }
    uint32_t* place = g.bits + (int64_t(first + object) * g.chunks + chunk) * kChunkWords + lane_id();
    for (int w = 0; w < W; ++w) *comm.peer(place, comm.group_member(g.group, w)) = word;
    store_chunk(g, g.out_masks + (first + object) * g.pixels, chunk, values);
  }
}

template <typename T>
__device__ const T* of_owner(const T* own, int owner, const Globals<T>& g, const pkb::Device& comm) {
  return comm.peer(own, comm.group_member(g.group, owner));
}

template <typename T>
__device__ int owner_of(const Globals<T>& g, int object) {
  int owner = 0;
  while (g.first[owner + 1] <= object) ++owner;
  return owner;
}

// Scores of all objects; nobody is suppressed yet.
template <typename T>
__device__ void begin_outputs(const Globals<T>& g, const pkb::Device& comm) {
  for (int object = threadIdx.x; object < g.objects; object += kThreads) {
    const int owner = owner_of(g, object);
    g.out_scores[object] = float(of_owner(g.scores, owner, g, comm)[object - g.first[owner]]);
    g.suppressed[object] = false;
  }
}

// Counts this block. True in the last one, which sees what all others wrote before.
__device__ bool arrives_last(unsigned* arrived) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    if (last) {
      *arrived = 0;
      __threadfence_system();
    }
  }
  __syncthreads();
  return last;
}

template <typename T>
__device__ void tell_packed(const Globals<T>& g, const pkb::Device& comm) {
  if (arrives_last(&g.arrivals->packed) && int(threadIdx.x) < comm.group_size(g.group)) {
    comm.signal(comm.rank, comm.group_member(g.group, threadIdx.x));
  }
}

// All ranks' bits are here, and this rank's outputs have begun.
template <typename T>
__device__ void wait_packed(const Globals<T>& g, const pkb::Device& comm) {
  if (int(threadIdx.x) < comm.group_size(g.group)) comm.wait(comm.group_member(g.group, threadIdx.x));
  __syncthreads();
}

// The blocks of this rank meet.
__device__ void meet_decided(Arrivals* arrivals, const pkb::Device& comm) {
  if (arrives_last(&arrivals->decided) && threadIdx.x == 0) comm.signal(kDecided, comm.rank);
  if (threadIdx.x == 0) comm.wait(kDecided);
  __syncthreads();
}

// ---- Deciding ----

// Whether an object loses against another one that overlaps it.
__device__ bool yields(int64_t own_last, int64_t other_last, bool reverse) {
  return other_last > -1 && (reverse ? own_last < other_last : own_last > other_last);
}

// d += a and b, counted over 256 bits: a has 16 rows, b 8 columns.
__device__ void add_common(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Counts {
  int common[kTile][kTilePitch];
  int row_areas[kTile], column_areas[kTile];
};

// What one warp counts. The areas are overlaps with a mask that is all foreground.
struct Counter {
  int common[kRowTiles][kColumnTiles][4] = {};
  int row_areas[kRowTiles][4] = {};
  int column_areas[kColumnTiles][4] = {};

  // Adds 256 pixels; rows[h] has two words of row 8 h + lane / 4, columns[n] of column 8 n + lane / 4.
  __device__ void add(const uint2 (&rows)[2 * kRowTiles], const uint2 (&columns)[kColumnTiles]) {
    constexpr uint32_t kOnes = ~0u;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint2 a = rows[2 * m], b = rows[2 * m + 1];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) add_common(common[m][n], a.x, b.x, a.y, b.y, columns[n].x, columns[n].y);
      add_common(row_areas[m], a.x, b.x, a.y, b.y, kOnes, kOnes);
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      add_common(column_areas[n], kOnes, kOnes, kOnes, kOnes, columns[n].x, columns[n].y);
    }
  }

  // A lane holds rows lane / 4 and that + 8 of each product, columns 2 (lane % 4) and the next.
  __device__ void add_to(Counts& sum) const {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          atomicAdd(&sum.common[m * 16 + i / 2 * 8 + row][n * 8 + column + i % 2], common[m][n][i]);
        }
      }
      if (column == 0) {
        atomicAdd(&sum.row_areas[m * 16 + row], row_areas[m][0]);
        atomicAdd(&sum.row_areas[m * 16 + 8 + row], row_areas[m][2]);
      }
    }
    if (row == 0) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        atomicAdd(&sum.column_areas[n * 8 + column], column_areas[n][0]);
        atomicAdd(&sum.column_areas[n * 8 + column + 1], column_areas[n][1]);
      }
    }
  }
};

// Counts the pixels that objects row .. row + kTile - 1 share with objects column .. column + kTile - 1. Objects that
// do not exist are counted as the last one.
template <typename T>
__device__ void count_tile(const Globals<T>& g, int row, int column, Counts& counts) {
  const auto* bits = reinterpret_cast<const uint4*>(g.bits);
  const int vectors = g.chunks * kChunkWords / kVector;  // of an object
  const int own_vector = lane_id() % 4;
  int row_begins[2 * kRowTiles], column_begins[kColumnTiles];
#pragma unroll
  for (int h = 0; h < 2 * kRowTiles; ++h) {
    row_begins[h] = min(row + 8 * h + lane_id() / 4, g.objects - 1) * vectors + own_vector;
  }
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    column_begins[n] = min(column + 8 * n + lane_id() / 4, g.objects - 1) * vectors + own_vector;
  }

  Counter counter;
#pragma unroll 1
  for (int at = warp_id() * kStepVectors; at < vectors; at += kWarps * kStepVectors) {
    uint4 rows[2 * kRowTiles], columns[kColumnTiles];
    // Peers wrote the bits during this launch: they are in L2.
#pragma unroll
    for (int h = 0; h < 2 * kRowTiles; ++h) rows[h] = __ldcg(bits + row_begins[h] + at);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) columns[n] = __ldcg(bits + column_begins[n] + at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint2 a[2 * kRowTiles], b[kColumnTiles];
#pragma unroll
      for (int h = 0; h < 2 * kRowTiles; ++h) a[h] = half ? uint2{rows[h].z, rows[h].w} : uint2{rows[h].x, rows[h].y};
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        b[n] = half ? uint2{columns[n].z, columns[n].w} : uint2{columns[n].x, columns[n].y};
      }
      counter.add(a, b);
    }
  }
  counter.add_to(counts);
}

// Marks what loses by the pairs of a tile.
template <typename T>
__device__ void decide_tile(const Globals<T>& g, int row, int column, const Counts& counts) {
  for (int pair = threadIdx.x; pair < kTile * kTile; pair += kThreads) {
    const int a = pair / kTile, b = pair % kTile, i = row + a, j = column + b;
    if (i >= j || j >= g.objects) continue;
    const int common = counts.common[a][b], either = counts.row_areas[a] + counts.column_areas[b] - common;
    if (!(float(common) / fmaxf(float(either), 1.0f) >= g.threshold)) continue;
    if (yields(g.last[i], g.last[j], g.reverse)) g.suppressed[i] = true;
    if (yields(g.last[j], g.last[i], g.reverse)) g.suppressed[j] = true;
  }
}

// All pairs of objects, in tiles on and above the diagonal that are dealt to the blocks.
template <typename T>
__device__ void decide(const Globals<T>& g) {
  __shared__ Counts counts;
  const int tiles = (g.objects + kTile - 1) / kTile;
  for (int index = blockIdx.x; index < tiles * (tiles + 1) / 2; index += gridDim.x) {
    int row = 0, right = index;  // tiles of a row begin on the diagonal
    for (; right >= tiles - row; ++row) right -= tiles - row;
    const int first_row = row * kTile, first_column = (row + right) * kTile;
    __syncthreads();
    for (int i = threadIdx.x; i < int(sizeof(Counts) / sizeof(int)); i += kThreads) {
      reinterpret_cast<int*>(&counts)[i] = 0;
    }
    __syncthreads();
    count_tile(g, first_row, first_column, counts);
    __syncthreads();
    decide_tile(g, first_row, first_column, counts);
  }
}

// ---- Gathering ----

// An object that yields to nobody, overlap or not, has a last occlusion up to (reverse: from) this one on. All threads
// of the block call it.
template <typename T>
__device__ int64_t safe_bound(const Globals<T>& g) {
  __shared__ int64_t of_warps[kWarps];
  const auto better = [&](int64_t a, int64_t b) { return (a < b) != g.reverse ? a : b; };
  const int64_t none = g.reverse ? INT64_MIN : INT64_MAX;
  int64_t bound = none;
  for (int object = threadIdx.x; object < g.objects; object += kThreads) {
    bound = better(bound, g.last[object] > -1 ? g.last[object] : none);
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) bound = better(bound, __shfl_xor_sync(kAllLanes, bound, apart));
  if (lane_id() == 0) of_warps[warp_id()] = bound;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) bound = better(bound, of_warps[warp]);
  return bound;
}

// Lists what `entry` makes of each object, unless it is kSkip, from the next rank's objects on, so that ranks begin
// with different peers. All threads of the block call it.
template <typename T, typename Entry>
__device__ int list_objects(const Globals<T>& g, int own, int* list, Entry entry) {
  __shared__ int wanted_by[kWarps];
  int length = 0;
  for (int i = 0; i < g.objects; i += kThreads) {
    const int place = i + int(threadIdx.x);
    const int made = place < g.objects ? entry((place + g.first[own + 1]) % g.objects) : kSkip;
    const unsigned wanted = __ballot_sync(kAllLanes, made != kSkip);
    __syncthreads();
    if (lane_id() == 0) wanted_by[warp_id()] = __popc(wanted);
    __syncthreads();
    int at = length + __popc(wanted & ((1u << lane_id()) - 1));
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp < warp_id()) at += wanted_by[warp];
      length += wanted_by[warp];
    }
    if (made != kSkip) list[at] = made;
  }
  __syncthreads();
  return length;
}

// Reads the listed masks from their owners; those listed as ~object become blank.
template <typename T>
__device__ void gather_masks(const Globals<T>& g, const pkb::Device& comm, const int* list, int length) {
  for (int item = first_item(); item < length * g.chunks; item += all_warps()) {
    const int entry = list[item / g.chunks], chunk = item % g.chunks;
    const int object = entry < 0 ? ~entry : entry;
    Pixels values;
    if (entry < 0) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < kOctet; ++i) values[o][i] = kBlank;
      }
    } else {
      const int owner = owner_of(g, object);
      load_chunk(g, of_owner(g.masks, owner, g, comm) + (object - g.first[owner]) * g.pixels, chunk, values);
    }
    store_chunk(g, g.out_masks + object * g.pixels, chunk, values);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) suppress(const Globals<T> g, const pkb::Device comm) {
  extern __shared__ int list[];
  const int own = comm.group_rank(g.group);
  const auto is_own = [&](int object) { return object >= g.first[own] && object < g.first[own + 1]; };

  pack_own(g, comm);
  if (blockIdx.x == gridDim.x - 1) begin_outputs(g, comm);
  tell_packed(g, comm);

  const int64_t bound = safe_bound(g);
  const auto is_safe = [&](int object) { return g.reverse ? g.last[object] >= bound : g.last[object] <= bound; };
  const int safe = list_objects(g, own, list, [&](int object) {
    return !is_own(object) && is_safe(object) ? object : kSkip;
  });
  gather_masks(g, comm, list, safe);

  wait_packed(g, comm);
  decide(g);
  meet_decided(g.arrivals, comm);

  const auto* suppressed = reinterpret_cast<const unsigned char*>(g.suppressed);
  const int others = list_objects(g, own, list, [&](int object) {
    if (is_safe(object)) return kSkip;
    return __ldcg(suppressed + object) ? ~object : is_own(object) ? kSkip : object;
  });
  gather_masks(g, comm, list, others);
}

int multiprocessors() {
  static const int count = [] {
    int device = 0, found = 0;
    PKB_CUDA(cudaGetDevice(&device));
    PKB_CUDA(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
    return found;
  }();
  return count;
}

struct Arguments {
  TensorView masks, scores;
  const tvm::ffi::Array<int64_t>& counts;
  TensorView last_occluded;
  float threshold;
  bool reverse;
  int64_t group;
  TensorView out_masks, out_scores, suppressed;
};

template <typename T>
void launch(const Arguments& a, const pkb::Comm& comm) {
  Globals<T> g{};
  g.masks = static_cast<const T*>(a.masks.data_ptr());
  g.scores = static_cast<const T*>(a.scores.data_ptr());
  g.last = static_cast<const int64_t*>(a.last_occluded.data_ptr());
  g.out_masks = static_cast<float*>(a.out_masks.data_ptr());
  g.out_scores = static_cast<float*>(a.out_scores.data_ptr());
  g.suppressed = static_cast<bool*>(a.suppressed.data_ptr());
  for (size_t w = 0; w < a.counts.size(); ++w) g.first[w + 1] = g.first[w] + int(a.counts[w]);
  g.objects = g.first[a.counts.size()];
  if (g.objects != a.last_occluded.numel()) {
    TVM_FFI_THROW(ValueError) << "num_obj_per_gpu adds up to " << g.objects << ", last_occluded has "
                              << a.last_occluded.numel() << " objects";
  }
  g.pixels = a.masks.shape()[1] * a.masks.shape()[2];
  g.chunks = int((g.pixels + kChunk - 1) / kChunk);
  g.group = a.group;
  g.threshold = a.threshold;
  g.reverse = a.reverse;
  g.in_octets = g.pixels % kOctet == 0;

  // Bits lie in two halves of scratch in turn: a peer may be one call ahead, never two, since it waits for this rank's
  // bits in each.
  const uint64_t half = (comm.scratch_bytes - kArrivalsBytes) / 2 / 256 * 256;
  const uint64_t bytes = uint64_t(g.objects) * g.chunks * kChunkWords * sizeof(uint32_t);
  if (bytes > half) TVM_FFI_THROW(ValueError) << bytes << " bytes of foreground bits do not fit into scratch";
  g.arrivals = comm.scratch<Arrivals>();
  g.bits = comm.scratch<uint32_t>(kArrivalsBytes + comm.epoch % 2 * half);

  const int list_bytes = g.objects * int(sizeof(int));
  if (list_bytes > kListBytesByDefault) {
    PKB_CUDA(cudaFuncSetAttribute(suppress<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, list_bytes));
  }
  // All blocks are resident together, since they wait for each other.
  const int64_t useful = (int64_t(g.objects) * g.chunks + kWarps - 1) / kWarps;
  const int blocks = int(std::clamp<int64_t>(useful, 1, multiprocessors()));
  suppress<T><<<blocks, kThreads, list_bytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView low_res_masks_local, TensorView obj_scores_local, tvm::ffi::Array<int64_t> num_obj_per_gpu,
              TensorView last_occluded, double iou_threshold, bool reverse, int64_t group, TensorView masks,
              TensorView scores, TensorView suppressed, pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  if (int(num_obj_per_gpu.size()) != members.size) {
    TVM_FFI_THROW(ValueError) << "expected " << members.size << " counts of objects, got " << num_obj_per_gpu.size();
  }
  const int64_t n = num_obj_per_gpu[members.rank];
  if (low_res_masks_local.shape()[0] != n || obj_scores_local.numel() != n) {
    TVM_FFI_THROW(ValueError) << "expected " << n << " objects, got " << low_res_masks_local.shape()[0] << " masks and "
                              << obj_scores_local.numel() << " scores";
  }
  const Arguments a{low_res_masks_local, obj_scores_local, num_obj_per_gpu, last_occluded, float(iou_threshold),
                    reverse,             group,            masks,           scores,        suppressed};
  const DLDataType dtype = low_res_masks_local.dtype();
  if (dtype.code == kDLBfloat) return launch<__nv_bfloat16>(a, comm);
  if (dtype.code == kDLFloat && dtype.bits == 16) return launch<__half>(a, comm);
  if (dtype.code == kDLFloat && dtype.bits == 32) return launch<float>(a, comm);
  TVM_FFI_THROW(TypeError) << "masks must be bfloat16, float16 or float32, got code " << int(dtype.code) << " of "
                           << int(dtype.bits) << " bits";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
