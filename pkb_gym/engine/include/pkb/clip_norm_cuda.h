// The p-norm of lists of gradients over all ranks, and clipping by it, in one kernel.
//
// Blocks add up powers of their tiles. The last block to finish adds up their sums and sends this rank's to the ranks of
// its groups as tagged words (pkb/tagged_cuda.h), to itself too. Every block waits for these words, which makes the
// barrier between reading and scaling, forms the same norm, and scales its tiles in reverse, those first that the L2
// cache still holds. Gradients within the norm are not written. No peer touches a rank's tensors.
//
// Bound: memory, one read of all gradients and, where they change, another read and a write. The last 50 MB need no
// second read on H200.
//
// The formula is that of torch.nn.utils.clip_grad_norm_; with expert parallelism, that of VeOmni: expert gradients are
// divided by the expert-parallel size, and their powers are summed over two groups, one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/tensor_list_cuda.h"

namespace pkb {

constexpr int kClipBlocksPerSm = 4;

// Gradients in two parts, dense ones and those of experts.
struct Clip {
  float max_norm, p;
  uint32_t dense_tiles;           // tiles before this one are dense
  float expert_factor = 1.0f;     // expert gradients are multiplied by it, before all else
  int64_t dense_group;            // sums dense powers; negative: none does
  int64_t expert_groups[2] = {-1, -1};  // sum those of experts, one after the other
  bool has_experts = false;       // on any rank
  float* total_norm;
};

// In symmetric scratch. Tagged words lie in two halves by the parity of the epoch, one for each sender.
struct ClipScratch {
  static constexpr uint64_t kSums = 256, kWords = 64 << 10;
  enum Word { kDense, kExpertFirst, kExpert, kWordKinds };

  __device__ static unsigned* counter(const Device& comm) { return comm.scratch<unsigned>(); }
  __device__ static float2* sums(const Device& comm) { return comm.scratch<float2>(kSums); }
  __device__ static uint64_t* words(const Device& comm, Word kind) {
    return comm.scratch<uint64_t>(kWords) + (comm.epoch % 2 * kWordKinds + kind) * kMaxRanks;
  }
};

// Ranks that add up, of which a negative group has this one alone.
struct ClipGroup {
  const Device& comm;
  int64_t group;
  __device__ int size() const { return group < 0 ? 1 : comm.group_size(group); }
  __device__ int member(int place) const { return group < 0 ? comm.rank : comm.group_member(group, place); }
};

// Sends this rank's sum to the members of a group, by their number of threads.
__device__ __forceinline__ void send_sum(const ClipGroup& group, ClipScratch::Word kind, float sum) {
  const Device& comm = group.comm;
  if (int(threadIdx.x) < group.size()) {
    uint64_t* word = ClipScratch::words(comm, kind) + comm.rank;
    store_tagged(comm.peer(word, group.member(int(threadIdx.x))), sum, uint32_t(comm.epoch));
  }
}

// Waits for the sums of all members and adds them up, in the same order in every thread and on every rank.
__device__ __forceinline__ float await_sums(const ClipGroup& group, ClipScratch::Word kind) {
  __shared__ float sums[kMaxRanks];
  const Device& comm = group.comm;
  const int size = group.size();
  __syncthreads();  // the last sums have been read
  if (int(threadIdx.x) < size) {
    const uint64_t* word = ClipScratch::words(comm, kind) + group.member(int(threadIdx.x));
    sums[threadIdx.x] = wait_tagged(word, uint32_t(comm.epoch));
  }
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < size; ++i) sum += sums[i];
  return sum;
}

// Sum of |factor x|^p over a tile's vectors.
template <class T>
__device__ __forceinline__ float sum_of_powers(const TileVectors<T>& tile, float factor, float p) {
  float sum = 0.0f;
#pragma unroll
  for (const uint4& vector : tile.vectors) {
#pragma unroll
    for (int i = 0; i < kPerVector<T>; ++i) {
      const float x = fabsf(factor * element<T>(vector, i));
      sum += p == 2.0f ? x * x : p == 1.0f ? x : powf(x, p);
    }
  }
  return sum;
}

template <class T>
__device__ __forceinline__ void scale(TileVectors<T>& tile, float factor) {
#pragma unroll
  for (uint4& vector : tile.vectors) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kPerVector<T>; i += 2) {
      round_to(pack.values[i], pack.values[i + 1], factor * element<T>(vector, i), factor * element<T>(vector, i + 1));
    }
    vector = reinterpret_cast<const uint4&>(pack);
  }
}

template <class T, int kCapacity>
__global__ void __launch_bounds__(kTransferThreads, kClipBlocksPerSm)
    clip_tensors(const __grid_constant__ TensorList<T, kCapacity> list, const __grid_constant__ Clip clip,
                 const __grid_constant__ Device comm) {
  const auto add = [](float a, float b) { return a + b; };
  const ClipGroup dense{comm, clip.dense_group};
  const ClipGroup first{comm, clip.expert_groups[0]}, second{comm, clip.expert_groups[1]};
  comm.signal_begun();

  float2 sums{0.0f, 0.0f};
  visit_tiles(list, Order::kForward, [&](uint32_t tile, const T* begin, uint32_t elements) {
    TileVectors<T> values;
    values.load(begin, elements);
    if (tile < clip.dense_tiles) sums.x += sum_of_powers(values, 1.0f, clip.p);
    else sums.y += sum_of_powers(values, clip.expert_factor, clip.p);
  });
  sums.x = reduce_block<kTransferThreads>(sums.x, add);
  if (clip.has_experts) sums.y = reduce_block<kTransferThreads>(sums.y, add);
  if (threadIdx.x == 0) ClipScratch::sums(comm)[blockIdx.x] = sums;

  if (arrives_last(ClipScratch::counter(comm))) {
    float2 all{0.0f, 0.0f};
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kTransferThreads) {
      const float2 of_block = __ldcg(ClipScratch::sums(comm) + block);
      all.x += of_block.x;
      all.y += of_block.y;
    }
    all.x = reduce_block<kTransferThreads>(all.x, add);
    if (clip.has_experts) all.y = reduce_block<kTransferThreads>(all.y, add);
    // A group may leave ranks out, which may be calls behind: they have read the words of the call before the last one.
    if (dense.size() < comm.world_size) comm.wait_all_begun(1);
    send_sum(dense, ClipScratch::kDense, all.x);
    if (clip.has_experts) {
      send_sum(first, ClipScratch::kExpertFirst, all.y);
      comm.hold();
      send_sum(second, ClipScratch::kExpert, await_sums(first, ClipScratch::kExpertFirst));
    }
  }

  comm.hold();
  float total = await_sums(dense, ClipScratch::kDense);
  if (clip.has_experts) total += await_sums(second, ClipScratch::kExpert);
  const float norm = clip.p == 2.0f ? sqrtf(total) : clip.p == 1.0f ? total : powf(total, 1.0f / clip.p);
  if (blockIdx.x == 0 && threadIdx.x == 0) *clip.total_norm = norm;
  const float factor = norm > clip.max_norm ? clip.max_norm / norm : 1.0f;  // 1 too where the norm is NaN
  if (factor == 1.0f && clip.expert_factor == 1.0f) return;
  visit_tiles(list, Order::kBackward, [&](uint32_t tile, T* begin, uint32_t elements) {
    const float of_tile = tile < clip.dense_tiles ? factor : factor * clip.expert_factor;
    if (of_tile == 1.0f) return;
    TileVectors<T> values;
    values.load(begin, elements);
    scale(values, of_tile);
    values.store(begin, elements);
  });
}

// Blocks wait for each other: as many as are resident together.
template <class T, int kCapacity>
void launch_clip_list(const TensorList<T, kCapacity>& list, const Clip& clip, const Comm& comm) {
  constexpr auto kKernel = clip_tensors<T, kCapacity>;
  const int most = resident_blocks<kKernel, kTransferThreads, 0>();
  const unsigned blocks = std::clamp<unsigned>(list.tiles(), 1, unsigned(most));
  kKernel<<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(list, clip, comm.device());
  PKB_CUDA_LAUNCHED();
}

// Launches a kernel for lists of tensors, of which any may be absent; Tensors is an Array<Optional<Tensor>>. Few tensors
// make a kernel's arguments small. Throws if there are more than 1024.
template <class T, int kCapacity, class Tensors>
void launch_clip_of(const Tensors& dense, const Tensors& experts, Clip clip, const Comm& comm) {
  TensorList<T, kCapacity> list;
  const auto add_all = [&list](const Tensors& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.has_value()) list.add(tensor.value().data_ptr(), tensor.value().numel());
    }
  };
  add_all(dense);
  clip.dense_tiles = list.tiles();
  add_all(experts);
  launch_clip_list(list, clip, comm);
}

// The same for whatever dtype the tensors have: bfloat16, float16 or float32, one for all.
template <class Tensors>
void launch_clip(const Tensors& dense, const Tensors& experts, const Clip& clip, const Comm& comm) {
  DLDataType dtype = kDtype<__nv_bfloat16>;  // where there are none
  for (const Tensors* tensors : {&dense, &experts}) {
    for (const auto& tensor : *tensors) {
      if (tensor.has_value()) dtype = tensor.value().dtype();
    }
  }
  with_type<__nv_bfloat16, __half, float>(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (dense.size() + experts.size() <= 96) launch_clip_of<T, 96>(dense, experts, clip, comm);
    else launch_clip_of<T, 1024>(dense, experts, clip, comm);
  });
}

}  // namespace pkb
