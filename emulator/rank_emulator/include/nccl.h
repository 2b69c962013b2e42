// NCCL's device API for load/store accessible peers, and the functions of its host API that lead there, with the names and the
// semantics of its documentation: "Device API" (host-side setup, LSA, teams, thread groups), "Window Registration",
// "Communicator Creation and Management", "Collective Communication Functions", "Point To Point Communication Functions". All ranks are in one LSA team.
#pragma once

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "rank_emulator.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01

typedef enum { ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclInt8 = 0, ncclChar = 0, ncclUint8 = 1, ncclInt32 = 2, ncclInt = 2, ncclUint32 = 3, ncclInt64 = 4, ncclUint64 = 5, ncclFloat16 = 6, ncclHalf = 6, ncclFloat32 = 7, ncclFloat = 7, ncclFloat64 = 8, ncclDouble = 8, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
namespace pkb_nccl {
constexpr int kMaxRanks = 16;
struct Post {  // by another rank: its buffers
  unsigned long long epoch;
  const void* from;
  void* to;
};
struct Box {   // in memory of the GPU, one of each rank; arrays by rank
  Post posts[kMaxRanks], wanted[kMaxRanks];
  unsigned long long ended[kMaxRanks], sent[kMaxRanks], epoch;
};
struct Peers {
  Box* of[kMaxRanks];
  int rank, ranks;
};
}  // namespace pkb_nccl
typedef struct ncclComm {
  int rank, ranks, device;
  unsigned long long group;  // of a process with several GPUs: a number that its members have in common
  pkb_nccl::Peers peers;
  unsigned long long sent[pkb_nccl::kMaxRanks], received[pkb_nccl::kMaxRanks];  // messages to and from each rank
}* ncclComm_t;
typedef struct {
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER {1, 0, 0, 0}

namespace pkb_nccl {
struct Window {  // in memory of the GPU
  char* base[kMaxRanks];
  char* multicast;
  int rank;
};
inline std::map<void*, Window>& windows() {
  static std::map<void*, Window> all;
  return all;
}
inline ncclResult_t refuse(const char* name) { return pkb_emu_refuse(name), ncclInvalidUsage; }
inline ncclResult_t result_of(bool is_fine) { return is_fine ? ncclSuccess : ncclInternalError; }
inline ncclResult_t meet(const char* name) { return result_of(pkb_emu_exchange(name, nullptr, nullptr, 0) == 0); }
// Makes a GPU the current one for as long as it lives. Kernels that are launched meanwhile reach all GPUs' memory.
struct OnDevice {
  int before = 0, reached;
  explicit OnDevice(int device) : reached(pkb_emu_reach_peers(1)) {
    cudaGetDevice(&before);
    cudaSetDevice(device);
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() {
    cudaSetDevice(before);
    pkb_emu_reach_peers(reached);
  }
};
inline bool is_one_process() { return pkb_emu_rank_count() == 1; }

// ---- communicators of one process with several GPUs ----
struct Member {
  int device;
  Box* box;
};
struct Init {  // a rank of a communicator to be made
  ncclComm_t* made;
  int ranks;
  unsigned long long group;
  int rank, device;
};
inline bool make_box(Member& member) {
  const OnDevice on(member.device);
  return cudaMalloc(reinterpret_cast<void**>(&member.box), sizeof(Box)) == cudaSuccess && cudaMemset(member.box, 0, sizeof(Box)) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
}
inline ncclComm_t made_of(const std::vector<Member>& members, const Init& init) {
  auto* const comm = new ncclComm{};
  comm->rank = comm->peers.rank = init.rank;
  comm->ranks = comm->peers.ranks = int(members.size());
  comm->device = init.device;
  comm->group = init.group;
  for (size_t i = 0; i < members.size(); ++i) comm->peers.of[i] = members[i].box;
  return comm;
}
// By one thread: all ranks of a communicator.
inline ncclResult_t make_together(const std::vector<Init>& inits) {
  std::vector<Member> members(inits.size());
  for (const Init& init : inits) {
    if (init.ranks != int(inits.size())) return refuse("a group with a part of the ranks of a communicator");
    if (init.rank < 0 || init.rank >= init.ranks || members[size_t(init.rank)].box) return ncclInvalidArgument;
    for (const Member& other : members) {
      if (other.box && other.device == init.device) return ncclInvalidUsage;  // a GPU twice
    }
    Member& member = members[size_t(init.rank)] = {init.device, nullptr};
    if (!make_box(member)) return ncclUnhandledCudaError;
  }
  for (const Init& init : inits) *init.made = made_of(members, init);
  return ncclSuccess;
}
// By a thread for each rank.
inline ncclResult_t make_alone(const Init& init) {
  Member mine{init.device, nullptr};
  if (init.rank < 0 || init.rank >= init.ranks || init.ranks > kMaxRanks) return ncclInvalidArgument;
  if (!make_box(mine)) return ncclUnhandledCudaError;
  std::vector<Member> members(static_cast<size_t>(init.ranks));
  if (pkb_emu_meet(init.group, init.ranks, init.rank, "ncclCommInitRank", &mine, members.data(), sizeof mine) != 0) return ncclInternalError;
  *init.made = made_of(members, init);
  return ncclSuccess;
}
struct Inits {
  int depth = 0;  // of groups
  std::vector<Init> pending;
};
inline Inits& inits() {
  static thread_local Inits it;
  return it;
}
inline ncclResult_t end_inits() {
  if (inits().depth > 0) return ncclSuccess;
  std::map<unsigned long long, std::vector<Init>> of_groups;
  for (const Init& init : std::exchange(inits().pending, {})) of_groups[init.group].push_back(init);
  for (const auto& [group, of_group] : of_groups) {
    const ncclResult_t result = of_group.size() == 1 ? make_alone(of_group[0]) : make_together(of_group);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

// A communicator of the ranks with this rank's color, in the order of their keys; all ranks call it.
inline ncclResult_t make_communicator(ncclComm_t* made, const char* name, int color, int key) {
  struct Member {
    int color, key, rank;
    Box* box;
  } mine{color, key, pkb_emu_my_rank(), nullptr};
  std::vector<Member> all(static_cast<size_t>(pkb_emu_rank_count()));
  if (cudaMalloc(reinterpret_cast<void**>(&mine.box), sizeof(Box)) != cudaSuccess || cudaMemset(mine.box, 0, sizeof(Box)) != cudaSuccess) return ncclUnhandledCudaError;
  if (cudaDeviceSynchronize() != cudaSuccess) return ncclUnhandledCudaError;
  if (pkb_emu_exchange(name, &mine, all.data(), sizeof mine) != 0) return ncclInternalError;
  std::map<std::pair<int, int>, Member> members;
  for (const Member& each : all) {
    if (each.color == color) members[{each.key, each.rank}] = each;
  }
  *made = nullptr;
  if (color < 0) return ncclSuccess;
  auto* const comm = *made = new ncclComm{};
  for (const auto& [order, each] : members) {
    if (each.rank == mine.rank) comm->rank = comm->ranks, comm->device = mine.rank;
    comm->peers.of[comm->ranks++] = each.box;
  }
  comm->peers.rank = comm->rank;
  comm->peers.ranks = comm->ranks;
  return ncclSuccess;
}
}  // namespace pkb_nccl
typedef pkb_nccl::Window* ncclWindow_t;

// ---- communicators ----
static inline ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
static inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = ncclUniqueId{};
  if (!pkb_nccl::is_one_process()) return ncclSuccess;
  const unsigned long long group = pkb_emu_unique();
  __builtin_memcpy(id->internal, &group, sizeof group);
  return ncclSuccess;
}
static inline const char* ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "an error of NCCL"; }
static inline const char* ncclGetLastError(ncclComm_t) { return ""; }
static inline ncclResult_t ncclCommInitRank(ncclComm_t* made, int ranks, ncclUniqueId id, int rank) {
  if (pkb_nccl::is_one_process()) {
    pkb_nccl::Init init{made, ranks, 0, rank, 0};
    __builtin_memcpy(&init.group, id.internal, sizeof init.group);
    cudaGetDevice(&init.device);
    pkb_nccl::inits().pending.push_back(init);
    return pkb_nccl::end_inits();
  }
  if (ranks != pkb_emu_rank_count() || rank != pkb_emu_my_rank()) return pkb_nccl::refuse("ncclCommInitRank of a part of the ranks, or in another order,");
  return pkb_nccl::make_communicator(made, "ncclCommInitRank", 0, rank);
}
static inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) { return ncclCommInitRank(made, ranks, id, rank); }
static inline ncclResult_t ncclCommInitAll(ncclComm_t* made, int count, const int* devices) {
  if (!pkb_nccl::is_one_process()) return pkb_nccl::refuse("ncclCommInitAll");
  if (count < 1 || count > pkb_emu_gpu_count()) return ncclInvalidArgument;
  std::vector<pkb_nccl::Init> all;
  const unsigned long long group = pkb_emu_unique();
  for (int rank = 0; rank < count; ++rank) all.push_back({made + rank, count, group, rank, devices ? devices[rank] : rank});
  return pkb_nccl::make_together(all);
}
static inline ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  if (comm->ranks != pkb_emu_rank_count()) return pkb_nccl::refuse("ncclCommSplit of a part of the ranks");
  return pkb_nccl::make_communicator(made, "ncclCommSplit", color, key);
}
static inline ncclResult_t ncclCommFinalize(ncclComm_t comm) { return !pkb_nccl::is_one_process() && comm->ranks == pkb_emu_rank_count() ? pkb_nccl::meet("ncclCommFinalize") : ncclSuccess; }
static inline ncclResult_t ncclCommDestroy(ncclComm_t comm) { return delete comm, ncclSuccess; }
static inline ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) { return *error = ncclSuccess, ncclSuccess; }
static inline ncclResult_t ncclCommCount(ncclComm_t comm, int* count) { return *count = comm->ranks, ncclSuccess; }
static inline ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) { return *rank = comm->rank, ncclSuccess; }
static inline ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) { return *device = comm->device, ncclSuccess; }

enum ncclGinType_t { NCCL_GIN_TYPE_NONE = 0 };
// What a communicator can do on one node, whose ranks reach each other's memory.
typedef struct {
  size_t size;
  unsigned magic, version;
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
} ncclCommProperties_t;
#define NCCL_COMM_PROPERTIES_INITIALIZER {sizeof(ncclCommProperties_t)}
static inline ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  const bool is_whole = comm->ranks == pkb_emu_rank_count();  // as ncclDevCommCreate wants it
  *properties = {sizeof *properties, 0, NCCL_VERSION_CODE, comm->rank, comm->ranks, comm->device, comm->device, is_whole, is_whole, NCCL_GIN_TYPE_NONE, 1, false};
  return ncclSuccess;
}

// ---- memory and windows ----
static inline ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }
static inline ncclResult_t ncclMemFree(void* pointer) { return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }
static inline ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes, ncclWindow_t* made, int flags) {
  if (comm->ranks != pkb_emu_rank_count()) return pkb_nccl::refuse("ncclCommWindowRegister of a part of the ranks");
  if (!(flags & NCCL_WIN_COLL_SYMMETRIC)) return pkb_nccl::refuse("ncclCommWindowRegister without NCCL_WIN_COLL_SYMMETRIC");
  struct Part {
    char* base;
    size_t bytes;
  } const mine{static_cast<char*>(buffer), bytes};
  std::vector<Part> all(size_t(comm->ranks));
  if (pkb_emu_exchange("ncclCommWindowRegister", &mine, all.data(), sizeof mine) != 0) return ncclInternalError;
  pkb_nccl::Window content{};
  content.rank = comm->rank;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    if (all[size_t(rank)].bytes != bytes) return ncclInvalidArgument;
    content.base[rank] = all[size_t(rank)].base;
  }
  content.multicast = static_cast<char*>(pkb_emu_multicast(content.base, bytes));
  if (cudaMalloc(reinterpret_cast<void**>(made), sizeof content) != cudaSuccess) return ncclUnhandledCudaError;
  cudaMemcpy(*made, &content, sizeof content, cudaMemcpyHostToDevice);
  pkb_nccl::windows()[*made] = content;
  return pkb_nccl::meet("ncclCommWindowRegister");
}
static inline ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window) {
  const auto found = pkb_nccl::windows().find(window);
  if (found == pkb_nccl::windows().end()) return ncclInvalidArgument;
  pkb_emu_end_multicast(found->second.multicast);
  pkb_nccl::windows().erase(found);
  cudaFree(window);
  return pkb_nccl::meet("ncclCommWindowDeregister");
}
static inline ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle) { return *handle = nullptr, ncclSuccess; }
static inline ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }
// Pointers of peers, for hosts.
static inline ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int peer, void** pointer) {
  const auto found = pkb_nccl::windows().find(window);
  if (found == pkb_nccl::windows().end()) return ncclInvalidArgument;
  return *pointer = found->second.base[peer] + offset, ncclSuccess;
}
static inline ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** pointer) { return ncclGetLsaDevicePointer(window, offset, peer, pointer); }

#include "nccl_collectives.h"
