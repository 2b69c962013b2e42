// libcudart: pools of stream-ordered allocations.
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

MemoryPool& default_pool(RankState& rank) {
  if (rank.pools.empty()) rank.pools.push_back(std::make_unique<MemoryPool>());
  return *rank.pools.front();
}

cudaMemPool_t handle_of(MemoryPool& pool) { return reinterpret_cast<cudaMemPool_t>(&pool); }

template <class F>
cudaError_t with_pool(cudaMemPool_t handle, F f) {
  return with_rank([&](RankState& rank) {
    for (const auto& pool : rank.pools) {
      if (handle_of(*pool) == handle) return f(rank, *pool);
    }
    return cudaErrorInvalidValue;
  });
}

// Attributes of reuse are ints, the others 64 bits.
bool is_flag(cudaMemPoolAttr attribute) { return attribute <= cudaMemPoolReuseAllowInternalDependencies; }

}  // namespace

PKB_CUDART cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return with_stream(stream, [&](RankState& rank, Stream&) {
    return allocate(rank, pointer, bytes, MemoryKind::kDevice, rank.pool ? rank.pool : &default_pool(rank));
  });
}
PKB_CUDART cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t handle, cudaStream_t) {
  return with_pool(handle, [&](RankState& rank, MemoryPool& pool) { return allocate(rank, pointer, bytes, MemoryKind::kDevice, &pool); });
}

PKB_CUDART cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* handle, int) {
  return with_rank([&](RankState& rank) {
    *handle = handle_of(default_pool(rank));
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* handle, int) {
  return with_rank([&](RankState& rank) {
    *handle = handle_of(rank.pool ? *rank.pool : default_pool(rank));
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceSetMemPool(int, cudaMemPool_t handle) {
  return with_pool(handle, [](RankState& rank, MemoryPool& pool) {
    rank.pool = &pool;
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* properties) {
  return with_rank([&](RankState& rank) {
    if (properties->allocType != cudaMemAllocationTypePinned) return cudaErrorInvalidValue;
    default_pool(rank);
    *handle = handle_of(*rank.pools.emplace_back(std::make_unique<MemoryPool>()));
    return cudaSuccess;
  });
}
// Allocations of it stay until they are freed, and with them what counts their bytes.
PKB_CUDART cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return with_pool(handle, [](RankState& rank, MemoryPool& pool) {
    if (&pool == &default_pool(rank)) return cudaErrorInvalidValue;
    if (rank.pool == &pool) rank.pool = nullptr;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t) {
  return with_pool(handle, [](RankState&, MemoryPool&) { return cudaSuccess; });
}

PKB_CUDART cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return with_pool(handle, [&](RankState&, MemoryPool& pool) {
    uint64_t& stored = pool.values[int(attribute)];
    if (is_flag(attribute)) stored = uint64_t(*static_cast<int*>(value));
    else if (attribute == cudaMemPoolAttrReleaseThreshold) std::memcpy(&stored, value, 8);
    else if (attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh) pool.used_high = pool.used;
    else return cudaErrorInvalidValue;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return with_pool(handle, [&](RankState&, MemoryPool& pool) {
    const auto found = pool.values.find(int(attribute));
    if (is_flag(attribute)) {
      *static_cast<int*>(value) = found == pool.values.end() ? 1 : int(found->second);
      return cudaSuccess;
    }
    uint64_t number = found == pool.values.end() ? 0 : found->second;
    if (attribute == cudaMemPoolAttrReservedMemCurrent || attribute == cudaMemPoolAttrUsedMemCurrent) number = pool.used;
    if (attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh) number = pool.used_high;
    std::memcpy(value, &number, 8);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc*, size_t) {
  return with_pool(handle, [](RankState&, MemoryPool&) { return cudaSuccess; });
}
PKB_CUDART cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation*) {
  return with_pool(handle, [&](RankState&, MemoryPool&) {
    *flags = cudaMemAccessFlagsProtReadWrite;  // all ranks' memory is one
    return cudaSuccess;
  });
}
