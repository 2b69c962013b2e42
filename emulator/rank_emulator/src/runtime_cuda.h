// What the functions of our libcudart share.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "runtime_world.h"

namespace pkb::emulator {

// The rank, or the GPU of a process with several, that a function of CUDA is called for; null: none.
inline RankState* calling_rank() { return World::current ? World::current->device : nullptr; }

// Remembers an error for cudaGetLastError.
inline cudaError_t finish(cudaError_t error) {
  if (World::current && error != cudaSuccess) World::current->last_error = error;
  return error;
}

// The runtime's errors have the numbers of the driver's where both have them.
inline CUresult driver_result(cudaError_t error) { return CUresult(error); }

// Calls f(rank) and keeps its error; fails where there is no rank, or its run has failed.
template <class F>
cudaError_t with_rank(F f) {
  RankState* const rank = calling_rank();
  if (!rank) return cudaErrorInitializationError;
  if (rank->world->failed()) return finish(cudaErrorLaunchFailure);
  try {
    return finish(f(*rank));
  } catch (const std::bad_alloc&) {
    return finish(cudaErrorMemoryAllocation);
  }
}

// cudaStreamPerThread of the calling thread.
inline Stream* stream_of_thread(RankState& rank) {
  HostThread& host = *World::current;
  if (!host.is_started) return rank.streams[2].get();
  Stream*& own = host.own[&rank];
  if (!own) own = rank.world->add_stream(rank, StreamKind::kPerThread);
  return own;
}

// The stream of a handle, on any GPU of the process; null where it is none of these.
inline Stream* stream_of(RankState& rank, cudaStream_t handle) {
  if (handle == nullptr) return World::current->defaults_to_own ? stream_of_thread(rank) : rank.streams[1].get();
  if (handle == cudaStreamLegacy) return rank.streams[1].get();
  if (handle == cudaStreamPerThread) return stream_of_thread(rank);
  for (size_t i = 0; i < rank.world->visible(); ++i) {
    for (const auto& stream : rank.world->visible(rank, i).streams) {
      if (reinterpret_cast<cudaStream_t>(stream.get()) == handle) return stream.get();
    }
  }
  return nullptr;
}

// The event of a handle; null where it is none that this rank has made or opened.
inline Event* event_of(RankState& rank, cudaEvent_t handle) {
  for (size_t i = 0; i < rank.world->visible(); ++i) {
    for (const auto& event : rank.world->visible(rank, i).events) {
      if (reinterpret_cast<cudaEvent_t>(event.get()) == handle) return event.get();
    }
  }
  const auto opened = rank.opened.find(reinterpret_cast<Event*>(handle));
  return opened == rank.opened.end() ? nullptr : *opened;
}

// Calls f with the stream of a handle, and its GPU.
template <class F>
cudaError_t with_stream(cudaStream_t handle, F f) {
  return with_rank([&](RankState& rank) {
    Stream* const stream = stream_of(rank, handle);
    return stream ? f(*stream->rank, *stream) : cudaErrorInvalidResourceHandle;
  });
}

// Memory of a kind, of a pool if there is one.
cudaError_t allocate(RankState& rank, void** pointer, size_t bytes, MemoryKind kind = MemoryKind::kDevice, MemoryPool* pool = nullptr);

// Copies and fills of the runtime and the driver, by the name of the function that was called.
cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool is_async, const char* name);
cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaStream_t stream, bool is_async, const char* name);
cudaError_t copy_box(const cudaMemcpy3DParms& box, cudaStream_t stream, bool is_async, const char* name);
cudaError_t fill(void* to, uint32_t value, size_t bytes, cudaStream_t stream, bool is_async, const char* name, uint32_t value_bytes = 1);
cudaError_t fill_rows(void* to, size_t pitch, uint32_t value, size_t width, size_t height, cudaStream_t stream, bool is_async, const char* name, uint32_t value_bytes = 1);

inline cudaError_t waited(bool fine) { return fine ? cudaSuccess : cudaErrorLaunchFailure; }

}  // namespace pkb::emulator

#define PKB_CUDART extern "C" __attribute__((visibility("default")))
