// libcuda: multicast objects. Each GPU binds memory of its own to one; mapped, its addresses stand for that of all.
#include <sys/stat.h>

#include <algorithm>

#include "physical_memory.h"

using namespace pkb::emulator;

namespace {

template <class F>
CUresult on_object(CUmemGenericAllocationHandle handle, F f) {
  return on_rank([&](RankState& rank, SharedState& state) {
    PhysicalMemory* const memory = memory_of(state, handle);
    return memory && memory->multicast ? f(rank, state, *memory) : CUDA_ERROR_INVALID_VALUE;
  });
}

int gpu_of(const RankState& rank, CUdevice device) {
  const World& world = *rank.world;
  if (device < 0 || size_t(device) >= world.visible()) return -1;
  return world.one_process ? device : rank.rank;
}

// Mappings of the object stand for what is bound now.
void renew(RankState& rank, SharedState& state, const PhysicalMemory& object) {
  for (const auto& [begin, mapping] : state.mappings) {
    if (mapping.memory != &object || !mapping.is_accessible) continue;
    rank.world->engine.memory.remove_multicasts(begin, begin + mapping.bytes);
    show_multicast(*rank.world, begin, mapping);
  }
}

CUresult bind(RankState& rank, SharedState& state, PhysicalMemory& object, const MulticastObject::Binding& wanted) {
  MulticastObject& multicast = *object.multicast;
  const uint64_t end = wanted.at + wanted.bytes;
  if (wanted.bytes == 0 || wanted.at % kGranularity || wanted.bytes % kGranularity || end > object.bytes) return CUDA_ERROR_INVALID_VALUE;
  if (std::find(multicast.added.begin(), multicast.added.end(), wanted.rank) == multicast.added.end()) return CUDA_ERROR_INVALID_VALUE;
  const bool is_taken = std::any_of(multicast.bindings.begin(), multicast.bindings.end(), [&](const auto& known) {
    return known.rank == wanted.rank && known.at < end && wanted.at < known.at + known.bytes;
  });
  if (is_taken) return CUDA_ERROR_INVALID_VALUE;
  if (wanted.memory) ++wanted.memory->references;
  multicast.bindings.push_back(wanted);
  renew(rank, state, object);
  return CUDA_SUCCESS;
}

void release(RankState& rank, SharedState& state, const MulticastObject::Binding& binding) {
  if (binding.memory) let_go(rank, state, binding.memory);
}

}  // namespace

namespace pkb::emulator {

void show_multicast(World& world, uint64_t begin, const VirtualMapping& mapping) {
  const MulticastObject& object = *mapping.memory->multicast;
  const uint64_t end = mapping.offset + mapping.bytes;
  std::vector<uint64_t> cuts{mapping.offset, end};
  for (const auto& binding : object.bindings) {
    for (const uint64_t at : {binding.at, binding.at + binding.bytes}) {
      if (at > mapping.offset && at < end) cuts.push_back(at);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    std::vector<uint64_t> members;
    for (const auto& binding : object.bindings) {
      if (binding.at > cuts[i] || cuts[i] >= binding.at + binding.bytes) continue;
      const uint64_t base = binding.memory ? reinterpret_cast<uint64_t>(binding.memory->known) : 0;
      members.push_back(base + binding.from + cuts[i] - binding.at);
    }
    if (members.size() == object.gpus) world.engine.memory.add_multicast(begin + cuts[i] - mapping.offset, cuts[i + 1] - cuts[i], std::move(members));
  }
}

void unbind_all(RankState& rank, SharedState& state, MulticastObject& object) {
  for (const auto& binding : std::exchange(object.bindings, {})) release(rank, state, binding);
}

}  // namespace pkb::emulator

PKB_CUDART CUresult cuMulticastGetGranularity(size_t* granularity, const CUmulticastObjectProp* properties, CUmulticastGranularity_flags) {
  if (!granularity || !properties) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

PKB_CUDART CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* properties) {
  return on_rank([&](RankState& rank, SharedState& state) {
    const size_t gpus = rank.world->ranks.size();
    if (!handle || !properties || properties->size == 0 || properties->size % kGranularity || properties->numDevices == 0 || properties->numDevices > gpus) return CUDA_ERROR_INVALID_VALUE;
    const int file = memfd_create("pkb-emulated-multicast", MFD_CLOEXEC);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemAllocationProp kind{};
    kind.requestedHandleTypes = CUmemAllocationHandleType(properties->handleTypes);
    const auto made = std::make_shared<PhysicalMemory>(file, rank.rank, properties->size, nullptr, 0, kind);
    made->multicast = std::make_unique<MulticastObject>(MulticastObject{properties->numDevices, {}, {}});
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made.get());
    state.physical[made.get()] = made;
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  return on_object(handle, [&](RankState& rank, SharedState&, PhysicalMemory& object) {
    auto& added = object.multicast->added;
    const int gpu = gpu_of(rank, device);
    if (gpu < 0 || added.size() == object.multicast->gpus || std::find(added.begin(), added.end(), gpu) != added.end()) return CUDA_ERROR_INVALID_VALUE;
    added.push_back(gpu);
    return CUDA_SUCCESS;
  });
}

PKB_CUDART CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory_handle, size_t from, size_t bytes, unsigned long long) {
  return on_object(handle, [&](RankState& rank, SharedState& state, PhysicalMemory& object) {
    PhysicalMemory* const memory = memory_of(state, memory_handle);
    if (!memory || memory->multicast || from % kGranularity || from + bytes > memory->bytes) return CUDA_ERROR_INVALID_VALUE;
    return bind(rank, state, object, {memory->rank, at, bytes, memory, from});
  });
}

PKB_CUDART CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address, size_t bytes, unsigned long long) {
  return on_object(handle, [&](RankState& rank, SharedState& state, PhysicalMemory& object) {
    const auto mapping = state.mappings.upper_bound(own_address(address));
    if (mapping != state.mappings.begin()) {
      const auto& [begin, of] = *std::prev(mapping);
      const uint64_t inside = own_address(address) - begin;
      if (inside + bytes <= of.bytes) return of.memory->multicast ? CUDA_ERROR_INVALID_VALUE : bind(rank, state, object, {of.memory->rank, at, bytes, of.memory, of.offset + inside});
    }
    const Extent* const extent = rank.world->engine.memory.find_seen(address, bytes);
    if (!extent || !extent->on_gpu) return CUDA_ERROR_INVALID_VALUE;
    return bind(rank, state, object, {extent->rank, at, bytes, nullptr, own_address(address)});
  });
}

PKB_CUDART CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t bytes) {
  return on_object(handle, [&](RankState& rank, SharedState& state, PhysicalMemory& object) {
    auto& bindings = object.multicast->bindings;
    const int gpu = gpu_of(rank, device);
    const auto found = std::find_if(bindings.begin(), bindings.end(), [&](const auto& known) { return known.rank == gpu && known.at == at && known.bytes == bytes; });
    if (found == bindings.end()) return CUDA_ERROR_INVALID_VALUE;
    const auto binding = *found;
    bindings.erase(found);
    renew(rank, state, object);
    release(rank, state, binding);
    return CUDA_SUCCESS;
  });
}
