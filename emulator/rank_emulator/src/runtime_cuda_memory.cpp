// libcudart: allocations, memory of the host.
#include <cstdlib>
#include <cstring>

#include "alignment.h"
#include "runtime_cuda.h"

using namespace pkb::emulator;

constexpr uint64_t kPoisonedBytes = 64 << 20;  // of larger allocations the rest is zero

namespace pkb::emulator {

cudaError_t allocate(RankState& rank, void** pointer, size_t bytes, MemoryKind kind, MemoryPool* pool) {
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > 64ull << 30) return cudaErrorMemoryAllocation;
  Mapping mapping(bytes, kind == MemoryKind::kDevice);
  std::memset(mapping.data(), kNewByte, std::min<uint64_t>(bytes, kPoisonedBytes));
  Memory& memory = rank.world->engine.memory;
  const auto own = reinterpret_cast<uint64_t>(mapping.data()), address = mapping.address();
  uint64_t region;
  if (kind == MemoryKind::kDevice) {
    region = memory.add_on_gpu(RegionKind::kAllocation, rank.rank, "", mapping, own, bytes, Space::kGlobal, false);
    if (rank.world->one_process) memory.restrict(region, pool ? &pool->reached_by : &rank.reached_by);
  } else {  // the host's plain stores are not seen: what it has written is not known
    region = memory.add(kind == MemoryKind::kPinned ? RegionKind::kHost : RegionKind::kAllocation, rank.rank, "", own, bytes, Space::kGlobal, true);
  }
  *pointer = reinterpret_cast<void*>(address);
  if (kind == MemoryKind::kManaged) rank.world->managed.insert(region);
  if (kind != MemoryKind::kDevice) rank.world->guard_of(rank).add(own, align_up(bytes, 4096));
  rank.allocations.emplace(address, Allocation{std::move(mapping), region, pool});
  if (pool) pool->use(bytes);
  return cudaSuccess;
}

}  // namespace pkb::emulator

namespace {

// The GPU of the process that has an allocation; `rank` where none has.
RankState& owner_of(RankState& rank, const void* pointer) {
  for (size_t i = 0; i < rank.world->visible(); ++i) {
    RankState& other = rank.world->visible(rank, i);
    if (other.allocations.contains(reinterpret_cast<uint64_t>(pointer))) return other;
  }
  return rank;
}

cudaError_t release(RankState& rank, void* pointer) {
  if (!pointer) return cudaSuccess;
  const auto found = rank.allocations.find(reinterpret_cast<uint64_t>(pointer));
  if (found == rank.allocations.end()) return cudaErrorInvalidValue;
  if (found->second.is_of_graph) {  // its content is lost; the next launch of the graph has it again at this address
    const uint64_t own = own_address(found->first), bytes = found->second.memory.bytes();
    rank.world->engine.memory.set_written(own, bytes, false);
    if (Observer* const observer = rank.world->engine.observer) observer->set_initialised(own, bytes, false);
    return cudaSuccess;
  }
  if (found->second.pool) found->second.pool->used -= found->second.memory.bytes();
  rank.world->managed.erase(found->second.region);
  rank.world->guard_of(rank).remove(found->first);
  rank.world->engine.memory.remove(found->second.region);
  rank.allocations.erase(found);
  return cudaSuccess;
}

}  // namespace

PKB_CUDART cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return with_rank([&](RankState& rank) { return allocate(rank, pointer, bytes); });
}
PKB_CUDART cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}
PKB_CUDART cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  return with_rank([&](RankState& rank) { return allocate(rank, pointer, bytes, MemoryKind::kManaged); });
}
PKB_CUDART cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return with_rank([&](RankState& rank) { return allocate(rank, pointer, bytes, MemoryKind::kPinned); });
}
PKB_CUDART cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return cudaMallocHost(pointer, bytes); }

// Waits for the work of the GPU that the memory is of, as cudaFree does.
PKB_CUDART cudaError_t cudaFree(void* pointer) {
  return with_rank([&](RankState& calling) {
    RankState& rank = owner_of(calling, pointer);
    if (pointer && !rank.world->synchronize(rank)) return cudaErrorLaunchFailure;
    return release(rank, pointer);
  });
}
PKB_CUDART cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }

PKB_CUDART cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    RankState& owner = owner_of(rank, pointer);
    rank.world->enqueue(stream, function_work(*rank.world, [&owner, pointer] { release(owner, pointer); }, "cudaFreeAsync"));
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return with_rank([&](RankState& rank) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (is_of_gpu(address)) return cudaErrorInvalidValue;
    if (rank.registered.contains(address)) return cudaErrorHostMemoryAlreadyRegistered;
    rank.registered[address] = rank.world->engine.memory.add(RegionKind::kHost, rank.rank, "", address, bytes, Space::kGlobal, true);
    rank.world->guard_of(rank).add(address, bytes);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaHostUnregister(void* pointer) {
  return with_rank([&](RankState& rank) {
    for (size_t i = 0; i < rank.world->visible(); ++i) {
      auto& registered = rank.world->visible(rank, i).registered;
      const auto found = registered.find(reinterpret_cast<uint64_t>(pointer));
      if (found == registered.end()) continue;
      rank.world->engine.memory.remove(found->second);
      rank.world->guard_of(rank).remove(found->first);
      registered.erase(found);
      return cudaSuccess;
    }
    return cudaErrorHostMemoryNotRegistered;
  });
}

PKB_CUDART cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = 80ull << 30;
  *free = 64ull << 30;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return with_rank([&](RankState& rank) {
    static constexpr cudaMemoryType kTypes[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeManaged, cudaMemoryTypeDevice};
    std::memset(attributes, 0, sizeof *attributes);
    attributes->type = kTypes[int(rank.world->kind_of_memory(pointer))];
    attributes->device = rank.rank;
    if (rank.world->one_process && attributes->type == cudaMemoryTypeDevice) attributes->device = rank.world->engine.memory.find_seen(reinterpret_cast<uint64_t>(pointer), 1)->rank;
    if (attributes->type == cudaMemoryTypeUnregistered) {
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = const_cast<void*>(pointer);
      return cudaSuccess;
    }
    attributes->devicePointer = const_cast<void*>(pointer);
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = attributes->devicePointer;
    return cudaSuccess;
  });
}
