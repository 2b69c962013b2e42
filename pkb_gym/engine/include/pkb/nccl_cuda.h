// NCCL's device API for kernels: a source that includes <nccl_device.h> finds a communicator of all ranks, created before
// the first call, with a device communicator of kNcclBarriers barriers among load/store accessible (LSA) ranks. They end
// with the ranks.
//
//   static const pkb::NcclMemory inbox = pkb::nccl_memory(bytes);  // by all ranks, in their first call
//   kernel<<<...>>>(inbox.window, pkb::nccl().device, ...);        // ncclGetLsaPointer(inbox.window, 0, r)
//
// Arguments lie in no window: comm.peer() reaches them. nccl_arguments() makes one of them where NCCL can register their
// memory. All ranks are on one node, where there is no GIN.
#pragma once

#include <nccl_device.h>

#include "pkb/exported_cuda.h"
#include "pkb/symm.h"

#ifndef PKB_EXPORTED
#define PKB_EXPORTED extern "C" __attribute__((visibility("default"), used)) inline
#endif

namespace pkb {

constexpr int kNcclBarriers = 256;

struct Nccl {
  ncclComm_t comm;
  ncclDevComm device;  // kernels take it by value
};

struct NcclMemory {
  void* memory;  // of this rank
  ncclWindow_t window;
};

inline Nccl& nccl_state() {
  static Nccl it{};
  return it;
}

// The communicators of all ranks.
inline const Nccl& nccl() { return nccl_state(); }

// Throws, with the call and NCCL's words, where a call of NCCL failed: PKB_NCCL(ncclMemAlloc(...)).
inline void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    TVM_FFI_THROW(RuntimeError) << what << ": " << ncclGetErrorString(result) << ": " << ncclGetLastError(nccl().comm);
  }
}
#define PKB_NCCL(call) ::pkb::check_nccl((call), #call)

// So many bytes of NCCL's memory, zero at first, on each rank, with their window; called by all ranks.
inline NcclMemory nccl_memory(size_t bytes) {
  NcclMemory made{};
  PKB_NCCL(ncclMemAlloc(&made.memory, bytes));
  PKB_CUDA(cudaMemset(made.memory, 0, bytes));
  PKB_CUDA(cudaDeviceSynchronize());  // before a peer, which registers it with us, can write to it
  PKB_NCCL(ncclCommWindowRegister(nccl().comm, made.memory, bytes, &made.window, NCCL_WIN_COLL_SYMMETRIC));
  if (!made.window) TVM_FFI_THROW(RuntimeError) << "NCCL has no windows on this machine: NCCL_CUMEM_ENABLE or NCCL_WIN_ENABLE is 0";
  return made;
}

// The window of arguments, outputs and scratch; `nccl_offset` is their place in it. Called by all ranks the first time;
// throws where NCCL cannot register their memory.
inline ncclWindow_t nccl_arguments(const Comm& comm) {
  static const ncclWindow_t window = [&comm] {
    char* const own = comm.segments[comm.rank];
    ncclWindow_t made{};
    if (is_exported(own)) {
      PKB_NCCL(ncclCommWindowRegister(nccl().comm, own, comm.segment_bytes, &made, NCCL_WIN_COLL_SYMMETRIC));
    }
    if (!made) {
      TVM_FFI_THROW(RuntimeError) << "NCCL cannot register the memory of arguments on this machine; reach peers' by "
                                     "comm.peer(), or copy them into nccl_memory()";
    }
    return made;
  }();
  return window;
}
inline size_t nccl_offset(const Comm& comm, const void* own) { return size_t(static_cast<const char*>(own) - comm.segments[comm.rank]); }

}  // namespace pkb

// ---- for the rank program ----
static_assert(sizeof(ncclUniqueId) == 128, "the rank program hands over 128 bytes");

// Rank 0 makes the id by which all find each other; returns 0, or a result of NCCL.
PKB_EXPORTED int pkb_nccl_id(void* id) { return ncclGetUniqueId(static_cast<ncclUniqueId*>(id)); }

// Creates the communicators, together with all other ranks; returns 0, a result of NCCL, or minus the version of the library
// that was loaded where it is not that of the headers. The current device is this rank's.
PKB_EXPORTED int pkb_nccl_begin(const void* id, int rank, int world_size) {
  int version = 0;
  ncclResult_t result = ncclGetVersion(&version);
  if (result == ncclSuccess && version / 100 != NCCL_VERSION_CODE / 100) return -version;
  pkb::Nccl& state = pkb::nccl_state();
  if (result == ncclSuccess) result = ncclCommInitRank(&state.comm, world_size, *static_cast<const ncclUniqueId*>(id), rank);
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements wanted{};
#endif
  wanted.lsaBarrierCount = pkb::kNcclBarriers;
  return result == ncclSuccess ? ncclDevCommCreate(state.comm, &wanted, &state.device) : result;
}
