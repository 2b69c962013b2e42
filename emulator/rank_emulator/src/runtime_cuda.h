// What the functions of our libcudart share.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime_world.h"

namespace pkb::emulator {

// The rank on whose thread a function of CUDA is called; null: none.
inline RankState* calling_rank() { return World::current; }

// Remembers an error for cudaGetLastError.
inline cudaError_t finish(cudaError_t error) {
  if (RankState* const rank = calling_rank(); rank && error != cudaSuccess) rank->last_error = error;
  return error;
}

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

// The stream of a handle; null where it is none of this rank's.
inline Stream* stream_of(RankState& rank, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return rank.streams[1].get();
  if (handle == cudaStreamPerThread) return rank.streams[2].get();
  for (const auto& stream : rank.streams) {
    if (reinterpret_cast<cudaStream_t>(stream.get()) == handle) return stream.get();
  }
  return nullptr;
}

template <class F>
cudaError_t with_stream(cudaStream_t handle, F f) {
  return with_rank([&](RankState& rank) {
    Stream* const stream = stream_of(rank, handle);
    return stream ? f(rank, *stream) : cudaErrorInvalidResourceHandle;
  });
}

// Memory of a kind, of a pool if there is one.
cudaError_t allocate(RankState& rank, void** pointer, size_t bytes, MemoryKind kind = MemoryKind::kDevice, MemoryPool* pool = nullptr);

inline cudaError_t waited(bool fine) { return fine ? cudaSuccess : cudaErrorLaunchFailure; }

}  // namespace pkb::emulator

#define PKB_CUDART extern "C" __attribute__((visibility("default")))
