// The part of MPI by which tests of CUDA libraries find their ranks and exchange handles, with the names of the MPI standard.
// All ranks are on one node and in one communicator; buffers lie in memory of the host or, as CUDA-aware libraries take them, of
// the GPU. Work that still uses such a buffer has to be over, as for host memory.
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vector>

#include "rank_emulator.h"

typedef int MPI_Comm;
typedef int MPI_Datatype;
typedef int MPI_Op;
typedef int MPI_Info;
struct MPI_Status {
  int MPI_SOURCE, MPI_TAG, MPI_ERROR;
  size_t pkb_bytes;
};
enum { MPI_SUCCESS = 0, MPI_ERR_OTHER = 15, MPI_ERR_PENDING = 18 };
enum { MPI_COMM_NULL = 0, MPI_COMM_WORLD = 1, MPI_COMM_TYPE_SHARED = 1, MPI_INFO_NULL = 0 };
enum { MPI_MAX = 1, MPI_MIN, MPI_SUM, MPI_LAND, MPI_LOR, MPI_PROD };
enum { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE };
enum { MPI_PROC_NULL = -1, MPI_ANY_SOURCE = -2, MPI_ANY_TAG = -3, MPI_UNDEFINED = -4, MPI_MAX_PROCESSOR_NAME = 64, MPI_MAX_ERROR_STRING = 64 };
#define MPI_IN_PLACE ((void*)1)
#define MPI_STATUS_IGNORE ((MPI_Status*)0)
#define MPI_STATUSES_IGNORE ((MPI_Status*)0)

// A datatype is its kind and size: signed, unsigned or floating.
#define PKB_MPI_TYPE(kind, T) ((kind) << 8 | int(sizeof(T)))
#define MPI_BYTE PKB_MPI_TYPE(1, char)
#define MPI_CHAR PKB_MPI_TYPE(0, char)
#define MPI_SIGNED_CHAR PKB_MPI_TYPE(0, char)
#define MPI_UNSIGNED_CHAR PKB_MPI_TYPE(1, char)
#define MPI_SHORT PKB_MPI_TYPE(0, short)
#define MPI_INT PKB_MPI_TYPE(0, int)
#define MPI_UNSIGNED PKB_MPI_TYPE(1, int)
#define MPI_LONG PKB_MPI_TYPE(0, long)
#define MPI_UNSIGNED_LONG PKB_MPI_TYPE(1, long)
#define MPI_LONG_LONG PKB_MPI_TYPE(0, long long)
#define MPI_LONG_LONG_INT MPI_LONG_LONG
#define MPI_UNSIGNED_LONG_LONG PKB_MPI_TYPE(1, long long)
#define MPI_INT8_T PKB_MPI_TYPE(0, int8_t)
#define MPI_INT32_T PKB_MPI_TYPE(0, int32_t)
#define MPI_INT64_T PKB_MPI_TYPE(0, int64_t)
#define MPI_UINT8_T PKB_MPI_TYPE(1, uint8_t)
#define MPI_UINT32_T PKB_MPI_TYPE(1, uint32_t)
#define MPI_UINT64_T PKB_MPI_TYPE(1, uint64_t)
#define MPI_FLOAT PKB_MPI_TYPE(2, float)
#define MPI_DOUBLE PKB_MPI_TYPE(2, double)

namespace pkb_mpi {

inline int& last_communicator() {
  static int last = MPI_COMM_WORLD;
  return last;
}

inline size_t bytes_of(MPI_Datatype type) { return size_t(type & 0xff); }

// Copies have a stream of their own, so that nothing orders them but what the host has waited for.
inline void copy(void* to, const void* from, size_t bytes) {
  static cudaStream_t stream = nullptr;
  if (!bytes) return;
  cudaPointerAttributes source, target;
  const auto is_on_gpu = [](cudaPointerAttributes* of, const void* pointer) { return cudaPointerGetAttributes(of, pointer) == cudaSuccess && of->type == cudaMemoryTypeDevice; };
  if (!is_on_gpu(&source, from) && !is_on_gpu(&target, to)) {
    memcpy(to, from, bytes);
    return;
  }
  if (!stream) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  cudaStreamSynchronize(stream);
}

inline int exchange(const char* name, const void* mine, void* all, size_t bytes) { return pkb_emu_exchange(name, mine, all, bytes) == 0 ? MPI_SUCCESS : MPI_ERR_OTHER; }

// What a rank gives, and what all have given, in memory of any kind.
inline int gather(const char* name, const void* mine, void* all, size_t bytes) {
  std::vector<char> own(bytes), of_all(bytes * size_t(pkb_emu_rank_count()));
  copy(own.data(), mine, bytes);
  const int status = exchange(name, own.data(), of_all.data(), bytes);
  if (status == MPI_SUCCESS) copy(all, of_all.data(), of_all.size());
  return status;
}

template <class T>
int reduce(const char* name, const void* mine, void* to, int count, MPI_Op operation) {
  const int ranks = pkb_emu_rank_count();
  std::vector<T> all(size_t(count) * size_t(ranks)), results(static_cast<size_t>(count));
  if (gather(name, mine, all.data(), size_t(count) * sizeof(T)) != MPI_SUCCESS) return MPI_ERR_OTHER;
  for (int i = 0; i < count; ++i) {
    T result = all[size_t(i)];
    for (int rank = 1; rank < ranks; ++rank) {
      const T other = all[size_t(rank) * size_t(count) + size_t(i)];
      switch (operation) {
        case MPI_MAX: result = result < other ? other : result; break;
        case MPI_MIN: result = other < result ? other : result; break;
        case MPI_LAND: result = T(result && other); break;
        case MPI_PROD: result = T(result * other); break;
        case MPI_LOR: result = T(result || other); break;
        default: result = T(result + other);
      }
    }
    results[size_t(i)] = result;
  }
  copy(to, results.data(), results.size() * sizeof(T));
  return MPI_SUCCESS;
}

}  // namespace pkb_mpi

static inline int MPI_Init(int*, char***) { return MPI_SUCCESS; }
static inline int MPI_Init_thread(int*, char***, int wanted, int* provided) { return *provided = wanted, MPI_SUCCESS; }
static inline int MPI_Initialized(int* flag) { return *flag = 1, MPI_SUCCESS; }
static inline int MPI_Finalize() { return pkb_mpi::gather("MPI_Finalize", nullptr, nullptr, 0); }
static inline int MPI_Abort(MPI_Comm, int status) { exit(status ? status : 1); }
static inline int MPI_Comm_rank(MPI_Comm, int* rank) { return *rank = pkb_emu_my_rank(), MPI_SUCCESS; }
static inline int MPI_Comm_size(MPI_Comm, int* size) { return *size = pkb_emu_rank_count(), MPI_SUCCESS; }
static inline int MPI_Comm_split_type(MPI_Comm, int, int, MPI_Info, MPI_Comm* made) { return *made = MPI_COMM_WORLD, MPI_SUCCESS; }
// All ranks make their communicators in one order: a number keeps the messages of each apart.
static inline int MPI_Comm_dup(MPI_Comm, MPI_Comm* made) {
  *made = ++pkb_mpi::last_communicator();
  return pkb_mpi::exchange("MPI_Comm_dup", nullptr, nullptr, 0);
}
static inline int MPI_Comm_free(MPI_Comm* freed) { return *freed = MPI_COMM_NULL, MPI_SUCCESS; }
static inline int MPI_Barrier(MPI_Comm) { return pkb_mpi::gather("MPI_Barrier", nullptr, nullptr, 0); }
static inline int MPI_Finalized(int* flag) { return *flag = 0, MPI_SUCCESS; }
static inline int MPI_Get_processor_name(char* name, int* length) {
  strcpy(name, "emulator");
  return *length = int(strlen(name)), MPI_SUCCESS;
}
static inline int MPI_Error_string(int, char* text, int* length) {
  strcpy(text, "an error of MPI");
  return *length = int(strlen(text)), MPI_SUCCESS;
}
// Of all ranks: the emulator has no communicators of a part.
static inline int MPI_Comm_split(MPI_Comm, int color, int, MPI_Comm* made) {
  std::vector<int> all(static_cast<size_t>(pkb_emu_rank_count()));
  const int status = pkb_mpi::gather("MPI_Comm_split", &color, all.data(), sizeof color);
  for (const int other : all) {
    if (status == MPI_SUCCESS && other != color) return pkb_emu_refuse("MPI_Comm_split by several colors"), MPI_ERR_OTHER;
  }
  return *made = MPI_COMM_WORLD, status;
}
static inline double MPI_Wtime() { return double(clock()) / CLOCKS_PER_SEC; }

static inline int MPI_Allgather(const void* mine, int count, MPI_Datatype type, void* all, int each, MPI_Datatype type_of_all, MPI_Comm) {
  if (mine == MPI_IN_PLACE) count = each, type = type_of_all;
  const size_t bytes = size_t(count) * pkb_mpi::bytes_of(type);
  std::vector<char> own(bytes);  // a part of `all` in place
  if (mine != MPI_IN_PLACE) return pkb_mpi::gather("MPI_Allgather", mine, all, bytes);
  pkb_mpi::copy(own.data(), static_cast<char*>(all) + size_t(pkb_emu_my_rank()) * bytes, bytes);
  return pkb_mpi::gather("MPI_Allgather", own.data(), all, bytes);
}
static inline int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm) {
  const size_t bytes = size_t(count) * pkb_mpi::bytes_of(type);
  std::vector<char> own(bytes), all(bytes * size_t(pkb_emu_rank_count()));
  if (pkb_emu_my_rank() == root) pkb_mpi::copy(own.data(), buffer, bytes);  // the others' hold nothing yet
  const int status = pkb_mpi::exchange("MPI_Bcast", own.data(), all.data(), bytes);
  if (status == MPI_SUCCESS && pkb_emu_my_rank() != root) pkb_mpi::copy(buffer, all.data() + size_t(root) * bytes, bytes);
  return status;
}
static inline int MPI_Allreduce(const void* mine, void* to, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm) {
  const void* const from = mine == MPI_IN_PLACE ? to : mine;
  switch (type) {
    case MPI_CHAR: return pkb_mpi::reduce<signed char>("MPI_Allreduce", from, to, count, operation);
    case MPI_BYTE: return pkb_mpi::reduce<unsigned char>("MPI_Allreduce", from, to, count, operation);
    case MPI_INT: return pkb_mpi::reduce<int>("MPI_Allreduce", from, to, count, operation);
    case MPI_UNSIGNED: return pkb_mpi::reduce<unsigned>("MPI_Allreduce", from, to, count, operation);
    case MPI_LONG: return pkb_mpi::reduce<long>("MPI_Allreduce", from, to, count, operation);
    case MPI_UNSIGNED_LONG: return pkb_mpi::reduce<unsigned long>("MPI_Allreduce", from, to, count, operation);
    case MPI_FLOAT: return pkb_mpi::reduce<float>("MPI_Allreduce", from, to, count, operation);
    case MPI_DOUBLE: return pkb_mpi::reduce<double>("MPI_Allreduce", from, to, count, operation);
    default: return pkb_emu_refuse("MPI_Allreduce of this datatype"), MPI_ERR_OTHER;
  }
}
static inline int MPI_Reduce(const void* mine, void* to, int count, MPI_Datatype type, MPI_Op operation, int root, MPI_Comm comm) {
  std::vector<char> unused(size_t(count) * pkb_mpi::bytes_of(type));
  const bool is_root = pkb_emu_my_rank() == root;
  return MPI_Allreduce(mine == MPI_IN_PLACE ? to : mine, is_root ? to : unused.data(), count, type, operation, comm);
}
static inline int MPI_Gather(const void* mine, int count, MPI_Datatype type, void* all, int each, MPI_Datatype type_of_all, int root, MPI_Comm comm) {
  if (pkb_emu_my_rank() == root) return MPI_Allgather(mine, count, type, all, each, type_of_all, comm);
  std::vector<char> unused(size_t(count) * pkb_mpi::bytes_of(type) * size_t(pkb_emu_rank_count()));
  return MPI_Allgather(mine, count, type, unused.data(), count, type, comm);
}
static inline int MPI_Alltoall(const void* mine, int count, MPI_Datatype type, void* to, int, MPI_Datatype, MPI_Comm) {
  const size_t part = size_t(count) * pkb_mpi::bytes_of(type), ranks = size_t(pkb_emu_rank_count()), bytes = part * ranks;
  if (mine == MPI_IN_PLACE) return pkb_emu_refuse("MPI_Alltoall in place"), MPI_ERR_OTHER;
  std::vector<char> all(bytes * ranks);
  const int status = pkb_mpi::gather("MPI_Alltoall", mine, all.data(), bytes);
  for (size_t rank = 0; rank < ranks; ++rank) pkb_mpi::copy(static_cast<char*>(to) + rank * part, all.data() + rank * bytes + size_t(pkb_emu_my_rank()) * part, part);
  return status;
}
static inline int MPI_Scatter(const void* all, int count, MPI_Datatype type, void* to, int, MPI_Datatype, int root, MPI_Comm comm) {
  const size_t part = size_t(count) * pkb_mpi::bytes_of(type), ranks = size_t(pkb_emu_rank_count());
  std::vector<char> parts(part * ranks);
  if (pkb_emu_my_rank() == root) pkb_mpi::copy(parts.data(), all, parts.size());
  const int status = MPI_Bcast(parts.data(), int(parts.size()), MPI_BYTE, root, comm);
  if (to != MPI_IN_PLACE) pkb_mpi::copy(to, parts.data() + size_t(pkb_emu_my_rank()) * part, part);
  return status;
}
#include "mpi_messages.h"
#include "mpi_varying.h"
