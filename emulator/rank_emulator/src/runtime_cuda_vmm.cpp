// libcuda: virtual memory management. Physical memory is a file that each mapping shares; addresses are reserved ranges.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "aliases.h"
#include "physical_memory.h"
#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace pkb::emulator {

SharedState::~SharedState() {
  for (const auto& [begin, reserved_bytes] : reserved) munmap(reinterpret_cast<void*>(begin), reserved_bytes);
}

void let_go(RankState& rank, SharedState& state, PhysicalMemory* memory) {
  if (--memory->references > 0) return;
  if (memory->multicast) unbind_all(rank, state, *memory->multicast);
  if (memory->known) rank.world->engine.memory.remove_alias(reinterpret_cast<uint64_t>(memory->known));
  rank.world->engine.memory.remove(memory->region);
  state.physical.erase(memory);
}

}  // namespace pkb::emulator

namespace {

constexpr uint64_t kPoisoned = 64 << 20;    // bytes of larger allocations are zero behind these
constexpr uint64_t kFabricMagic = 0x706b622d66616231;

struct FabricHandle {
  uint64_t magic;
  PhysicalMemory* memory;
};
static_assert(sizeof(FabricHandle) <= sizeof(CUmemFabricHandle));

// The mapping that begins at an address; null: none does.
VirtualMapping* mapping_at(SharedState& state, CUdeviceptr address) {
  const auto found = state.mappings.find(own_address(address));
  return found == state.mappings.end() ? nullptr : &found->second;
}

void hide(RankState& rank, SharedState& state, uint64_t begin, VirtualMapping& mapping) {
  if (!mapping.is_accessible) return;
  mapping.is_accessible = false;
  if (mapping.memory->multicast) return rank.world->engine.memory.remove_multicasts(begin, begin + mapping.bytes);
  rank.world->engine.memory.remove_alias(begin);
  if (state.aliases) state.aliases->remove(begin);
}

}  // namespace

PKB_CUDART CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

PKB_CUDART CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties, unsigned long long) {
  return on_rank([&](RankState& rank, SharedState& state) {
    if (!handle || !properties || bytes == 0 || bytes % kGranularity || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    const int owner = rank.world->one_process ? properties->location.id : rank.rank;
    if (owner < 0 || size_t(owner) >= rank.world->ranks.size()) return CUDA_ERROR_INVALID_VALUE;
    const int file = memfd_create("pkb-emulated-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    void* const known = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (known == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(known, kNewByte, std::min<uint64_t>(bytes, kPoisoned));
    Memory& memory = rank.world->engine.memory;
    const uint64_t region = memory.add(RegionKind::kAllocation, owner, "cuMemCreate", reinterpret_cast<uint64_t>(known), bytes, Space::kGlobal, false, 0, false);
    const auto made = std::make_shared<PhysicalMemory>(file, owner, bytes, static_cast<char*>(known), region, *properties);
    memory.add_alias(region, owner, reinterpret_cast<uint64_t>(known), bytes, made->written.data());
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made.get());
    state.physical[made.get()] = made;
    if (!state.aliases && rank.world->engine.observer) {
      state.aliases = std::make_shared<Aliases>(rank.world->engine.observer);
      rank.world->engine.observer = state.aliases.get();
    }
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return on_rank([&](RankState& rank, SharedState& state) {
    PhysicalMemory* const memory = memory_of(state, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    let_go(rank, state, memory);
    return CUDA_SUCCESS;
  });
}

// ---- handles for other ranks ----

PKB_CUDART CUresult cuMemExportToShareableHandle(void* exported, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long) {
  return on_rank([&](RankState&, SharedState& state) {
    PhysicalMemory* const memory = memory_of(state, handle);
    if (!memory || !(memory->properties.requestedHandleTypes & type)) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      const int copy = dup(memory->file);
      std::memcpy(exported, &copy, sizeof copy);
      return copy < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
    }
    if (type != CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
    const FabricHandle content{kFabricMagic, memory};
    std::memset(exported, 0, sizeof(CUmemFabricHandle));
    std::memcpy(exported, &content, sizeof content);
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* exported, CUmemAllocationHandleType type) {
  return on_rank([&](RankState&, SharedState& state) {
    PhysicalMemory* found = nullptr;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      struct stat wanted, each;
      if (fstat(int(reinterpret_cast<intptr_t>(exported)), &wanted) != 0) return CUDA_ERROR_INVALID_VALUE;
      for (const auto& [memory, kept] : state.physical) {
        if (fstat(memory->file, &each) == 0 && each.st_ino == wanted.st_ino && each.st_dev == wanted.st_dev) found = memory;
      }
    } else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
      FabricHandle content;
      std::memcpy(&content, exported, sizeof content);
      if (content.magic == kFabricMagic) found = memory_of(state, reinterpret_cast<CUmemGenericAllocationHandle>(content.memory));
    } else {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    ++found->references;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(found);
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return on_rank([&](RankState&, SharedState& state) {
    const PhysicalMemory* const memory = memory_of(state, handle);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    *properties = memory->properties;
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return on_rank([&](RankState&, SharedState& state) {
    const VirtualMapping* const mapping = mapping_at(state, reinterpret_cast<CUdeviceptr>(address));
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    ++mapping->memory->references;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(mapping->memory);
    return CUDA_SUCCESS;
  });
}

// ---- addresses ----

PKB_CUDART CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long) {
  return on_rank([&](RankState&, SharedState& state) {
    const uint64_t unit = std::max<uint64_t>(alignment, kGranularity);
    if (bytes == 0 || bytes % kGranularity || (unit & (unit - 1))) return CUDA_ERROR_INVALID_VALUE;
    void* const found = mmap(nullptr, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t begin = (reinterpret_cast<uint64_t>(found) + unit - 1) / unit * unit;
    state.reserved[begin] = bytes;
    *address = gpu_address(begin);
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return on_rank([&](RankState&, SharedState& state) {
    const auto found = state.reserved.find(own_address(address));
    if (found == state.reserved.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
    const auto inside = state.mappings.lower_bound(found->first);
    if (inside != state.mappings.end() && inside->first < found->first + bytes) return CUDA_ERROR_INVALID_VALUE;  // it is mapped
    munmap(reinterpret_cast<void*>(found->first), bytes);
    state.reserved.erase(found);
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  return on_rank([&](RankState&, SharedState& state) {
    PhysicalMemory* const memory = memory_of(state, handle);
    const uint64_t begin = own_address(address);
    auto reserved = state.reserved.upper_bound(begin);
    if (!memory || bytes == 0 || bytes % kGranularity || offset % kGranularity || offset + bytes > memory->bytes || reserved == state.reserved.begin()) return CUDA_ERROR_INVALID_VALUE;
    --reserved;
    if (begin + bytes > reserved->first + reserved->second || mapping_at(state, address)) return CUDA_ERROR_INVALID_VALUE;
    if (!memory->multicast && mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file, off_t(offset)) == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ++memory->references;
    state.mappings[begin] = {memory, bytes, offset, false};
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return on_rank([&](RankState& rank, SharedState& state) {
    const uint64_t end = own_address(address) + bytes;
    auto found = state.mappings.find(own_address(address));
    if (found == state.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    while (found != state.mappings.end() && found->first < end) {
      hide(rank, state, found->first, found->second);
      mmap(reinterpret_cast<void*>(found->first), found->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      let_go(rank, state, found->second.memory);
      found = state.mappings.erase(found);
    }
    return CUDA_SUCCESS;
  });
}

// Only from here on kernels may touch the memory.
PKB_CUDART CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  return on_rank([&](RankState& rank, SharedState& state) {
    const uint64_t begin = own_address(address);
    auto found = state.mappings.lower_bound(begin);
    if (count == 0 || found == state.mappings.end() || found->first >= begin + bytes) return CUDA_ERROR_INVALID_VALUE;
    for (; found != state.mappings.end() && found->first < begin + bytes; ++found) {
      VirtualMapping& mapping = found->second;
      hide(rank, state, found->first, mapping);
      if (access[count - 1].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
      PhysicalMemory& memory = *mapping.memory;
      mapping.is_accessible = true;
      if (memory.multicast) {
        show_multicast(*rank.world, found->first, mapping);
        continue;
      }
      rank.world->engine.memory.add_alias(memory.region, memory.rank, found->first, mapping.bytes, memory.written.data() + mapping.offset / 8);
      if (state.aliases) state.aliases->add(found->first, mapping.bytes, reinterpret_cast<uint64_t>(memory.known) + mapping.offset);
    }
    return CUDA_SUCCESS;
  });
}
