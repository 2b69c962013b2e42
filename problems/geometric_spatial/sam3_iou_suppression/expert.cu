// SAM3IoUSuppression: foreground bits travel first, then only the masks that stay. One launch.
//
// What moves: each rank packs its masks to one bit a pixel, stores the bits into every rank's scratch and widens its
// masks into its own output. Once all bits have arrived, every rank counts all overlaps by binary matrix products
// (and + popcount on tensor cores) and decides. It then reads the peers' masks that stay from where they lie, and
// fills the others. Masks that nobody can suppress, however they overlap, are read while the bits travel. Bits lie in
// two halves of scratch by turns; masks and scores are read once their ranks have told that their calls have begun, and
// equal blocks of all ranks meet when they have read them.
// The bound is the link: the input bytes of the foreign masks that stay, and one bit a pixel of all foreign masks.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "pkb/common_bits_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr float kBlank = -10.0f;
constexpr int kThreads = 512, kWarps = kThreads / 32;

// A warp handles a chunk of a mask at a time. A lane has kOctets runs of eight pixels of it, 256 pixels apart, and one
// word of bits. Which pixel has which bit does not matter, as long as all masks agree.
constexpr int kOctet = 8, kOctets = 4;
constexpr int kChunk = 32 * kOctet * kOctets;
constexpr int kChunkWords = kChunk / 32;
static_assert(kChunkWords % pkb::bits::kStepWords == 0, "bits of masks are counted in steps");

constexpr int kSkip = std::numeric_limits<int>::max();  // what is no entry of a list of objects

// Signal slot r tells that the bits of rank r are here; one more, that all decisions of this rank are made.
constexpr int kDecided = pkb::kMaxRanks;

// Blocks of this rank that have arrived; zero between calls.
struct Arrivals {
  unsigned packed, decided;
};
constexpr uint64_t kArrivalsBytes = 256;

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

__device__ int first_item() { return int(blockIdx.x) * kWarps + pkb::warp_id(); }
__device__ int all_warps() { return int(gridDim.x) * kWarps; }

// ---- Pixels ----

using Pixels = float[kOctets][kOctet];

__device__ int64_t octet_offset(int chunk, int octet) {
  return int64_t(chunk) * kChunk + (octet * 32 + pkb::lane_id()) * kOctet;
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
    uint32_t* place = g.bits + (int64_t(first + object) * g.chunks + chunk) * kChunkWords + pkb::lane_id();
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

template <typename T>
__device__ void copy_scores(const Globals<T>& g, const pkb::Device& comm) {
  for (int object = threadIdx.x; object < g.objects; object += kThreads) {
    const int owner = owner_of(g, object);
    g.out_scores[object] = float(of_owner(g.scores, owner, g, comm)[object - g.first[owner]]);
  }
}

template <typename T>
__device__ void tell_packed(const Globals<T>& g, const pkb::Device& comm) {
  if (pkb::arrives_last(&g.arrivals->packed) && int(threadIdx.x) < comm.group_size(g.group)) {
    comm.signal(comm.rank, comm.group_member(g.group, threadIdx.x));
  }
}

// All ranks' bits are here, and nobody is suppressed yet.
template <typename T>
__device__ void wait_packed(const Globals<T>& g, const pkb::Device& comm) {
  if (int(threadIdx.x) < comm.group_size(g.group)) comm.wait(comm.group_member(g.group, threadIdx.x));
  __syncthreads();
}

// The blocks of this rank meet.
__device__ void meet_decided(Arrivals* arrivals, const pkb::Device& comm) {
  if (pkb::arrives_last(&arrivals->decided) && threadIdx.x == 0) comm.signal(kDecided, comm.rank);
  if (threadIdx.x == 0) comm.wait(kDecided);
  __syncthreads();
}

// ---- Deciding ----

// Whether an object loses against another one that overlaps it.
__device__ bool yields(int64_t own_last, int64_t other_last, bool reverse) {
  return other_last > -1 && (reverse ? own_last < other_last : own_last > other_last);
}

// Marks what loses by the pairs of a tile of objects.
template <typename T>
__device__ void decide_tile(const Globals<T>& g, int row, int column, const pkb::bits::Counts& counts) {
  constexpr int kTile = pkb::bits::kTile;
  for (int pair = threadIdx.x; pair < kTile * kTile; pair += kThreads) {
    const int a = pair / kTile, b = pair % kTile, i = row + a, j = column + b;
    if (i >= j || j >= g.objects) continue;
    const int common = counts.common[a][b], either = counts.of_rows[a] + counts.of_columns[b] - common;
    if (!(float(common) / fmaxf(float(either), 1.0f) >= g.threshold)) continue;
    if (yields(g.last[i], g.last[j], g.reverse)) g.suppressed[i] = true;
    if (yields(g.last[j], g.last[i], g.reverse)) g.suppressed[j] = true;
  }
}

// All pairs of objects, in tiles on and above the diagonal that are dealt to the blocks.
template <typename T>
__device__ void decide(const Globals<T>& g) {
  constexpr int kTile = pkb::bits::kTile;
  __shared__ pkb::bits::Counts counts;
  const int tiles = (g.objects + kTile - 1) / kTile;
  for (int index = blockIdx.x; index < tiles * (tiles + 1) / 2; index += gridDim.x) {
    int row = 0, right = index;  // tiles of a row begin on the diagonal
    for (; right >= tiles - row; ++row) right -= tiles - row;
    const int first_row = row * kTile, first_column = (row + right) * kTile;
    __syncthreads();
    for (int i = threadIdx.x; i < int(sizeof(counts) / sizeof(int)); i += kThreads) {
      reinterpret_cast<int*>(&counts)[i] = 0;
    }
    __syncthreads();
    pkb::bits::count_common<kWarps>(g.bits, g.chunks * kChunkWords, g.objects, first_row, first_column, counts);
    __syncthreads();
    decide_tile(g, first_row, first_column, counts);
  }
}

// ---- Gathering ----

// An object that yields to nobody, overlap or not, has a last occlusion up to (reverse: from) this one on. All threads
// of the block call it.
template <typename T>
__device__ int64_t safe_bound(const Globals<T>& g) {
  const auto better = [&](int64_t a, int64_t b) { return (a < b) != g.reverse ? a : b; };
  const int64_t none = g.reverse ? INT64_MIN : INT64_MAX;
  int64_t bound = none;
  for (int object = threadIdx.x; object < g.objects; object += kThreads) {
    bound = better(bound, g.last[object] > -1 ? g.last[object] : none);
  }
  return pkb::reduce_block<kThreads>(bound, better);
}

// Lists what `entry` makes of each object, unless it is kSkip, from the next rank's objects on, so that ranks begin
// with different peers. All threads of the block call it.
template <typename T, typename Entry>
__device__ int list_objects(const Globals<T>& g, int own, int* list, Entry entry) {
  int length = 0;
  for (int i = 0; i < g.objects; i += kThreads) {
    const int place = i + int(threadIdx.x);
    const int made = place < g.objects ? entry((place + g.first[own + 1]) % g.objects) : kSkip;
    const pkb::Count listed = pkb::count_in_block<kThreads>(made != kSkip);
    if (made != kSkip) list[length + listed.before] = made;
    length += listed.all;
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

  comm.tell_begun(g.group);
  pack_own(g, comm);
  const bool is_last = blockIdx.x == gridDim.x - 1;
  for (int object = threadIdx.x; is_last && object < g.objects; object += kThreads) g.suppressed[object] = false;
  tell_packed(g, comm);

  comm.wait_all_begun(0, g.group);
  if (is_last) copy_scores(g, comm);

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
  comm.barrier_blocks(0, g.group);
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
  pkb::allow_shared_memory<suppress<T>>(list_bytes);
  // All blocks are resident together, since they wait for each other.
  const int64_t useful = (int64_t(g.objects) * g.chunks + kWarps - 1) / kWarps;
  const int blocks = int(std::clamp<int64_t>(useful, 1, pkb::multiprocessors()));
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
  pkb::with_type<__nv_bfloat16, __half, float>(low_res_masks_local.dtype(),
                                               [&](auto zero) { launch<decltype(zero)>(a, comm); });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
