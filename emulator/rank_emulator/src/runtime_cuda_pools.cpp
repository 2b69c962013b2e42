// libcudart: pools of stream-ordered allocations.
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

MemoryPool& add_pool(RankState& rank) {
  MemoryPool& pool = *rank.pools.emplace_back(std::make_unique<MemoryPool>());
  pool.reached_by = 1u << rank.rank;
  return pool;
}

MemoryPool& default_pool(RankState& rank) { return rank.pools.empty() ? add_pool(rank) : *rank.pools.front(); }

cudaMemPool_t handle_of(MemoryPool& pool) { return reinterpret_cast<cudaMemPool_t>(&pool); }

template <class F>
cudaError_t with_pool(cudaMemPool_t handle, F f) {
  return with_rank([&](RankState& rank) {
    for (size_t i = 0; i < rank.world->visible(); ++i) {
      RankState& of = rank.world->visible(rank, i);
      for (const auto& pool : of.pools) {
        if (handle_of(*pool) == handle) return f(of, *pool);
      }
    }
    return cudaErrorInvalidValue;
  });
}

// Calls f with the GPU of a number; a rank with a process of its own has one alone.
template <class F>
cudaError_t with_device(int device, F f) {
  return with_rank([&](RankState& rank) {
    if (device < 0 || size_t(device) >= rank.world->ranks.size()) return cudaErrorInvalidDevice;
    return f(rank.world->visible(rank, size_t(device)));
  });
}

// Attributes of reuse are ints, the others 64 bits.
bool is_flag(cudaMemPoolAttr attribute) { return attribute <= cudaMemPoolReuseAllowInternalDependencies; }

}  // namespace

PKB_CUDART cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return with_stream(stream, [&](RankState& rank, Stream& of) {
    const cudaError_t error = allocate(rank, pointer, bytes, MemoryKind::kDevice, rank.pool ? rank.pool : &default_pool(rank));
    if (error == cudaSuccess && bytes && rank.world->capture_of(of)) rank.allocations.find(reinterpret_cast<uint64_t>(*pointer))->second.is_of_graph = true;
    return error;
  });
}
PKB_CUDART cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t handle, cudaStream_t) {
  return with_pool(handle, [&](RankState& rank, MemoryPool& pool) { return allocate(rank, pointer, bytes, MemoryKind::kDevice, &pool); });
}

PKB_CUDART cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* handle, int device) {
  return with_device(device, [&](RankState& rank) {
    *handle = handle_of(default_pool(rank));
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* handle, int device) {
  return with_device(device, [&](RankState& rank) {
    *handle = handle_of(rank.pool ? *rank.pool : default_pool(rank));
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  return with_pool(handle, [&](RankState& of, MemoryPool& pool) {
    if (of.world->one_process && device != of.rank) return cudaErrorInvalidValue;
    of.pool = &pool;
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* properties) {
  return with_device(properties->location.id, [&](RankState& rank) {
    if (properties->allocType != cudaMemAllocationTypePinned) return cudaErrorInvalidValue;
    default_pool(rank);
    *handle = handle_of(add_pool(rank));
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

// Without regard to cudaDeviceEnablePeerAccess.
PKB_CUDART cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* accesses, size_t count) {
  return with_pool(handle, [&](RankState& of, MemoryPool& pool) {
    for (size_t i = 0; i < count; ++i) {
      const cudaMemLocation& location = accesses[i].location;
      if (location.type != cudaMemLocationTypeDevice || location.id < 0 || size_t(location.id) >= of.world->ranks.size()) return cudaErrorInvalidValue;
      const bool is_given = accesses[i].flags != cudaMemAccessFlagsProtNone;
      if (of.world->one_process && location.id == of.rank && !is_given) return cudaErrorInvalidValue;
      pool.reached_by = (pool.reached_by & ~(1u << location.id)) | uint32_t(is_given) << location.id;
    }
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation* location) {
  return with_pool(handle, [&](RankState& of, MemoryPool& pool) {
    const bool is_given = !of.world->one_process || pool.reached_by >> location->id & 1;
    *flags = is_given ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
    return cudaSuccess;
  });
}
