// libcudart: the current GPU, and access of one to the memory of another.
#include <cstdio>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

// Calls f with another GPU of the process than the current one. Ranks with a process each reach all memory that hosts show them.
template <class F>
cudaError_t with_peer(int peer, F f) {
  return with_rank([&](RankState& rank) {
    World& world = *rank.world;
    if (peer < 0 || size_t(peer) >= world.ranks.size()) return cudaErrorInvalidDevice;
    if (!world.one_process) return cudaSuccess;
    return peer == rank.rank ? cudaErrorInvalidDevice : f(*world.ranks[size_t(peer)], 1u << rank.rank);
  });
}

}  // namespace

PKB_CUDART cudaError_t cudaGetDevice(int* device) {
  *device = calling_rank() ? calling_rank()->rank : 0;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaSetDevice(int device) {
  return with_rank([&](RankState& rank) {
    World& world = *rank.world;
    if (world.one_process) {
      if (device < 0 || size_t(device) >= world.ranks.size()) return cudaErrorInvalidDevice;
      World::current->device = world.ranks[size_t(device)].get();
      return cudaSuccess;
    }
    if (device == rank.rank || device == 0) return cudaSuccess;
    const std::string number = std::to_string(rank.rank);
    if (world.lacking.insert("cudaSetDevice of rank " + number).second) {
      std::fprintf(stderr, "rank %s: cudaSetDevice(%d) is refused: an emulated rank is a process with one GPU, number %s; --gpus N gives one process N GPUs\n", number.c_str(), device, number.c_str());
    }
    return cudaErrorInvalidDevice;
  });
}
PKB_CUDART cudaError_t cudaGetDeviceCount(int* count) {
  return with_rank([&](RankState& rank) {
    *count = int(rank.world->ranks.size());
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return with_rank([&](RankState& rank) {
    const auto exists = [&](int number) { return number >= 0 && size_t(number) < rank.world->ranks.size(); };
    if (!exists(device) || !exists(peer)) return cudaErrorInvalidDevice;
    *can = !rank.world->one_process || device != peer;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (flags != 0) return finish(cudaErrorInvalidValue);
  return with_peer(peer, [](RankState& of, uint32_t mine) {
    if (of.reached_by & mine) return cudaErrorPeerAccessAlreadyEnabled;
    of.reached_by |= mine;
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return with_peer(peer, [](RankState& of, uint32_t mine) {
    if (!(of.reached_by & mine)) return cudaErrorPeerAccessNotEnabled;
    of.reached_by &= ~mine;
    return cudaSuccess;
  });
}
// All GPUs of a node reach each other, with atomics.
PKB_CUDART cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int, int) {
  *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported;
  return cudaSuccess;
}
