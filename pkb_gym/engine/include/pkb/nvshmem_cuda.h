// NVSHMEM for kernels: a source that includes <nvshmem.h> is linked with its device library, and NVSHMEM is started on
// all ranks before the first call, where PE r is rank r. It ends with the ranks.
//
//   static auto* inbox = static_cast<float*>(nvshmem_calloc(count, sizeof(float)));  // by all ranks, in their first call
//   kernel<<<...>>>(inbox, ...);                                                     // nvshmemx_put..._block(inbox, ...)
//
// Arguments are no symmetric objects of NVSHMEM: they can be the source of a put and the destination of a get, and
// comm.peer() reaches them. nvshmem_address() makes them symmetric where NVSHMEM can register their memory.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include "pkb/exported_cuda.h"
#include "pkb/symm.h"

#define PKB_EXPORTED extern "C" __attribute__((visibility("default"), used)) inline

namespace pkb {

// This rank's segment as NVSHMEM knows it; called by all ranks the first time.
inline char* nvshmem_segment(const Comm& comm) {
  char* const own = comm.segments[comm.rank];
  static char* const known = static_cast<char*>(
      is_exported(own) ? nvshmemx_buffer_register_symmetric(own, comm.segment_bytes, 0) : nullptr);
  if (!known) {
    TVM_FFI_THROW(RuntimeError) << "NVSHMEM cannot register the memory of arguments on this machine; put from them "
                                   "into memory of nvshmem_malloc";
  }
  return known;
}

// The address by which NVSHMEM knows an address of this rank's segment: of an argument, an output, or scratch. Called
// by all ranks the first time; throws where their memory cannot be registered.
template <typename T>
T* nvshmem_address(const Comm& comm, T* own) {
  return reinterpret_cast<T*>(nvshmem_segment(comm) + (reinterpret_cast<const char*>(own) - comm.segments[comm.rank]));
}

}  // namespace pkb

// ---- for the rank program ----
static_assert(sizeof(nvshmemx_uniqueid_t) == 128, "the rank program hands over 128 bytes");

// Rank 0 makes the id by which all find each other; returns 0, or a status of NVSHMEM.
PKB_EXPORTED int pkb_nvshmem_id(void* id) {
  auto* const made = static_cast<nvshmemx_uniqueid_t*>(id);
  *made = NVSHMEMX_UNIQUEID_INITIALIZER;
  return nvshmemx_get_uniqueid(made);
}

// Starts NVSHMEM, together with all other ranks; returns 0, or a status of NVSHMEM. The current device is this rank's.
PKB_EXPORTED int pkb_nvshmem_begin(const void* id, int rank, int world_size) {
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  const int status = nvshmemx_set_attr_uniqueid_args(rank, world_size, static_cast<const nvshmemx_uniqueid_t*>(id), &attributes);
  return status ? status : nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
}
