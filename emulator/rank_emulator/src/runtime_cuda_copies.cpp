// libcudart: copies, fills, variables.
#include <set>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

bool is_host(MemoryKind kind) { return kind == MemoryKind::kPageable || kind == MemoryKind::kPinned; }

// Whether the host waits for a copy ("API synchronization behavior" of the CUDA runtime API). Copies from pageable memory
// are staged, so that asynchronous ones return at once.
bool waits_for(MemoryKind to, MemoryKind from, bool is_async) {
  if (is_host(from) && is_host(to)) return true;
  if (to == MemoryKind::kPageable) return true;
  return !is_async && !(from == MemoryKind::kDevice && to == MemoryKind::kDevice);
}

// Whether a copy may use this memory. That from malloc on the GPU is for kernels alone: it "cannot be used in any runtime or
// driver API calls".
bool is_usable(const RankState& rank, const void* pointer, uint64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (rank.world->engine.heap(rank.rank).holds(own_address(address))) return false;
  return !bytes || !is_of_gpu(address) || rank.world->engine.memory.find_seen(address, bytes);
}

// The GPUs that two pointers are of; empty where they are of one.
std::set<RankState*> different_gpus(World& world, const void* to, const void* from) {
  std::set<RankState*> gpus;
  for (const void* const each : {to, from}) {
    const Extent* const extent = world.engine.memory.find_seen(reinterpret_cast<uint64_t>(each), 1);
    if (extent && extent->on_gpu) gpus.insert(world.ranks[size_t(extent->rank)].get());
  }
  return gpus.size() == 2 ? gpus : std::set<RankState*>{};
}

}  // namespace

namespace pkb::emulator {

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t handle, bool is_async, const char* name) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    if (bytes && (!to || !from)) return cudaErrorInvalidValue;
    if (!is_usable(rank, to, bytes) || !is_usable(rank, from, bytes)) return cudaErrorInvalidValue;
    World& world = *rank.world;
    // "Peer-to-Peer Memory Copy" of the programming guide: a copy in the null stream between two GPUs begins once all that
    // either has been given is over, and ends before what they are given afterwards.
    std::set<RankState*> joined;
    if (world.one_process && !is_async && stream.kind == StreamKind::kLegacy && !world.capture_of(stream)) joined = different_gpus(world, to, from);
    if (!joined.empty()) joined.insert(&rank);
    for (RankState* const gpu : joined) world.gather(*gpu, stream);
    const MemoryKind source = world.kind_of_memory(from), target = world.kind_of_memory(to);
    const bool is_staged = source == MemoryKind::kPageable && target != MemoryKind::kPageable && !world.capture_of(stream);
    world.enqueue(stream, is_staged ? staged_copy_work(world, to, from, bytes, name, world.call_site()) : copy_work(world, to, from, bytes, name, world.call_site()));
    for (RankState* const gpu : joined) world.hold(*gpu, stream);
    return world.capture_of(stream) || !waits_for(target, source, is_async) ? cudaSuccess : waited(world.synchronize(stream));
  });
}

cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaStream_t stream, bool is_async, const char* name) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, stream, is_async, name);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// CUDA promises that the host waits for a synchronous fill of memory that it may read itself. Here it always does: initial
// values of counters are filled in so, ahead of kernels on other streams.
cudaError_t fill(void* to, uint32_t value, size_t bytes, cudaStream_t handle, bool is_async, const char* name, uint32_t value_bytes) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    World& world = *rank.world;
    if (!is_usable(rank, to, bytes)) return cudaErrorInvalidValue;
    world.enqueue(stream, fill_work(world, to, value, bytes, name, value_bytes, world.call_site()));
    return is_async || world.capture_of(stream) ? cudaSuccess : waited(world.synchronize(stream));
  });
}

cudaError_t fill_rows(void* to, size_t pitch, uint32_t value, size_t width, size_t height, cudaStream_t stream, bool is_async, const char* name, uint32_t value_bytes) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = fill(static_cast<char*>(to) + row * pitch, value, width, stream, is_async, name, value_bytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace pkb::emulator

namespace {

bool holds(const VariableEntry& variable, size_t offset, size_t bytes) {
  return offset <= variable.bytes && bytes <= variable.bytes - offset;
}

template <class F>
cudaError_t with_variable(const void* symbol, F f) {
  return with_rank([&](RankState& rank) {
    const auto found = rank.variables.find(symbol);
    if (found == rank.variables.end()) return cudaErrorInvalidSymbol;
    const uint64_t address = rank.world->variable_address(*found->second.module, found->second.name);
    return address ? f(rank, reinterpret_cast<char*>(address), found->second) : cudaErrorInvalidSymbol;
  });
}

}  // namespace

PKB_CUDART cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes, nullptr, false, "cudaMemcpy"); }
PKB_CUDART cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) { return copy(to, from, bytes, stream, true, "cudaMemcpyAsync"); }
PKB_CUDART cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) { return copy(to, from, bytes, nullptr, false, "cudaMemcpyPeer"); }
PKB_CUDART cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) { return copy(to, from, bytes, stream, true, "cudaMemcpyPeerAsync"); }
PKB_CUDART cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, nullptr, false, "cudaMemcpy2D");
}
PKB_CUDART cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return copy_rows(to, to_pitch, from, from_pitch, width, height, stream, true, "cudaMemcpy2DAsync");
}

PKB_CUDART cudaError_t cudaMemset(void* to, int byte, size_t bytes) { return fill(to, uint8_t(byte), bytes, nullptr, false, "cudaMemset"); }
PKB_CUDART cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) { return fill(to, uint8_t(byte), bytes, stream, true, "cudaMemsetAsync"); }

PKB_CUDART cudaError_t cudaMemset2D(void* to, size_t pitch, int byte, size_t width, size_t height) { return fill_rows(to, pitch, uint8_t(byte), width, height, nullptr, false, "cudaMemset2D"); }
PKB_CUDART cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int byte, size_t width, size_t height, cudaStream_t stream) { return fill_rows(to, pitch, uint8_t(byte), width, height, stream, true, "cudaMemset2DAsync"); }

PKB_CUDART cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry&) {
    *pointer = address;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return with_variable(symbol, [&](RankState&, char*, const VariableEntry& variable) {
    *bytes = variable.bytes;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind, cudaStream_t stream) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return !holds(variable, offset, bytes) ? cudaErrorInvalidValue : copy(address + offset, from, bytes, stream, true, "cudaMemcpyToSymbolAsync");
  });
}
PKB_CUDART cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return !holds(variable, offset, bytes) ? cudaErrorInvalidValue : copy(address + offset, from, bytes, nullptr, false, "cudaMemcpyToSymbol");
  });
}
PKB_CUDART cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind, cudaStream_t stream) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return !holds(variable, offset, bytes) ? cudaErrorInvalidValue : copy(to, address + offset, bytes, stream, true, "cudaMemcpyFromSymbolAsync");
  });
}
PKB_CUDART cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind) {
  return with_variable(symbol, [&](RankState&, char* address, const VariableEntry& variable) {
    return !holds(variable, offset, bytes) ? cudaErrorInvalidValue : copy(to, address + offset, bytes, nullptr, false, "cudaMemcpyFromSymbol");
  });
}
