// The device side of nccl.h: teams, thread groups, pointers to peers, barriers among load/store accessible ranks.
//
// An arrival at a barrier releases, and a wait acquires, if its order says so. A wait of any order gives access to what earlier
// kernels of the peers have written, as a relaxed barrier at the begin of a kernel does in NCCL's documentation.
#pragma once

#include <cuda/atomic>

#include "nccl.h"

// ---- thread groups ----
struct ncclCoopThread {
  __device__ int thread_rank() const { return 0; }
  __device__ int size() const { return 1; }
  __device__ void sync() {}
};
template <int N>
struct ncclCoopTile {
  __device__ int thread_rank() const { return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % N; }
  __device__ int size() const { return N; }
  __device__ void sync() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    __syncwarp(N == 32 ? ~0u : ((1u << N) - 1) << lane / N * N);
  }
};
typedef ncclCoopTile<32> ncclCoopWarp;
struct ncclCoopCta {
  __device__ int thread_rank() const { return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)); }
  __device__ int size() const { return int(blockDim.x * blockDim.y * blockDim.z); }
  __device__ void sync() { __syncthreads(); }
};

// ---- device communicators ----
struct ncclTeam {
  int nRanks, rank, stride;
};
typedef ncclTeam ncclTeam_t;
struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclLsaBarrierHandle {};
typedef ncclLsaBarrierHandle ncclLsaBarrierHandle_t;

struct ncclMultimemHandle {
  void* mcBasePtr;  // null: none was asked for; it is no address of a window
};
typedef ncclMultimemHandle ncclMultimemHandle_t;

struct ncclDevComm {
  int rank, nRanks, lsaRank, lsaSize;
  ncclMultimemHandle_t lsaMultimem;
  uint8_t ginContextCount;
  ncclLsaBarrierHandle_t lsaBarrier;
  unsigned* pkb_barriers[pkb_nccl::kMaxRanks];  // of each rank: how often it has come, then how often each rank has; of each barrier
  int pkb_barrier_count;
};
typedef ncclDevComm ncclDevComm_t;

struct ncclDevCommRequirements {
  void *resourceRequirementsList, *teamRequirementsList;
  bool lsaMultimem;
  int barrierCount, lsaBarrierCount, railGinBarrierCount, lsaLLA2ABlockCount, lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount, ginSignalCount, ginCounterCount;
};
typedef ncclDevCommRequirements ncclDevCommRequirements_t;
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER {}

static inline ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements* wanted, ncclDevComm* made) {
  if (comm->ranks != pkb_emu_rank_count()) return pkb_nccl::refuse("ncclDevCommCreate of a part of the ranks");
  if (wanted->ginForceEnable || wanted->ginSignalCount || wanted->ginCounterCount || wanted->railGinBarrierCount) return pkb_nccl::refuse("GIN (of ncclDevCommCreate)");
  if (wanted->lsaLLA2ABlockCount || wanted->lsaLLA2ASlotCount) return pkb_nccl::refuse("LLA2A (of ncclDevCommCreate)");
  *made = ncclDevComm{};
  made->rank = made->lsaRank = comm->rank;
  made->nRanks = made->lsaSize = comm->ranks;
  if (wanted->lsaMultimem) made->lsaMultimem.mcBasePtr = made;
  made->pkb_barrier_count = wanted->lsaBarrierCount + wanted->barrierCount;
  const size_t bytes = sizeof(unsigned) * size_t(1 + comm->ranks) * size_t(made->pkb_barrier_count + 1);
  unsigned* mine = nullptr;
  if (cudaMalloc(&mine, bytes) != cudaSuccess || cudaMemset(mine, 0, bytes) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return ncclUnhandledCudaError;
  return pkb_nccl::result_of(pkb_emu_exchange("ncclDevCommCreate", &mine, made->pkb_barriers, sizeof mine) == 0);
}
static inline ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* destroyed) {
  const ncclResult_t met = pkb_nccl::meet("ncclDevCommDestroy");
  return met == ncclSuccess ? ncclMemFree(destroyed->pkb_barriers[comm->rank]) : met;
}

__host__ __device__ inline ncclTeam ncclTeamWorld(const ncclDevComm& comm) { return {comm.nRanks, comm.rank, 1}; }
__host__ __device__ inline ncclTeam ncclTeamLsa(const ncclDevComm& comm) { return {comm.lsaSize, comm.lsaRank, 1}; }
__host__ __device__ inline int ncclTeamRankToWorld(const ncclDevComm&, ncclTeam, int rank) { return rank; }
__host__ __device__ inline int ncclTeamRankToLsa(const ncclDevComm&, ncclTeam, int rank) { return rank; }

// ---- pointers ----
__device__ inline void* ncclGetLocalPointer(ncclWindow_t window, size_t offset) { return window->base[window->rank] + offset; }
__device__ inline void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer) { return window->base[peer] + offset; }
// Of all ranks, for instructions of multicast.
__device__ inline void* ncclGetLsaMultimemPointer(ncclWindow_t window, size_t offset, const ncclDevComm&) { return window->multicast + offset; }
__device__ inline void* ncclGetMultimemPointer(ncclWindow_t window, size_t offset, ncclMultimemHandle) { return window->multicast + offset; }
__device__ inline void* ncclGetPeerPointer(ncclWindow_t window, size_t offset, int peer) { return window->base[peer] + offset; }
__device__ inline void* ncclGetPeerPointer(ncclWindow_t window, size_t offset, ncclTeam, int peer) { return window->base[peer] + offset; }

// A place in a window.
template <class T>
struct ncclSymPtr {
  typedef T ElementType;
  ncclWindow_t window = nullptr;
  size_t offset = 0;
  __host__ __device__ constexpr ncclSymPtr(ncclWindow_t of = nullptr, size_t at = 0) : window(of), offset(at) {}
  template <class Integer>
  __host__ __device__ ncclSymPtr& operator+=(Integer elements) {
    offset += size_t(elements) * sizeof(T);
    return *this;
  }
  template <class Integer>
  __host__ __device__ ncclSymPtr& operator-=(Integer elements) {
    offset -= size_t(elements) * sizeof(T);
    return *this;
  }
  template <class Integer>
  __host__ __device__ friend ncclSymPtr operator+(ncclSymPtr from, Integer elements) { return from += elements; }
  template <class Integer>
  __host__ __device__ friend ncclSymPtr operator-(ncclSymPtr from, Integer elements) { return from -= elements; }
  __device__ T* localPtr() const { return static_cast<T*>(ncclGetLocalPointer(window, offset)); }
  __device__ T* lsaPtr(int peer) const { return static_cast<T*>(ncclGetLsaPointer(window, offset, peer)); }
  __device__ T* peerPtr(int peer) const { return static_cast<T*>(ncclGetPeerPointer(window, offset, peer)); }
  __device__ T* peerPtr(ncclTeam team, int peer) const { return static_cast<T*>(ncclGetPeerPointer(window, offset, team, peer)); }
  __device__ T* multimemPtr(ncclMultimemHandle handle) const { return static_cast<T*>(ncclGetMultimemPointer(window, offset, handle)); }
  __device__ T* lsaMultimemPtr(const ncclDevComm& comm) const { return static_cast<T*>(ncclGetLsaMultimemPointer(window, offset, comm)); }
};

// ---- barriers ----
template <class Coop>
class ncclLsaBarrierSession {
 public:
  __device__ ncclLsaBarrierSession(Coop coop, const ncclDevComm& comm, ncclTeamTagLsa, uint32_t index, bool = false) : coop_(coop), comm_(comm), index_(index) {
    if (index >= uint32_t(comm.pkb_barrier_count)) __trap();
    coop_.sync();  // an earlier session of this index has ended
    epoch_ = *own();
  }
  __device__ ncclLsaBarrierSession(Coop coop, const ncclDevComm& comm, ncclTeam, ncclLsaBarrierHandle_t, uint32_t index, bool multimem = false)
      : ncclLsaBarrierSession(coop, comm, ncclTeamTagLsa{}, index, multimem) {}
  __device__ ~ncclLsaBarrierSession() {
    coop_.sync();
    if (coop_.thread_rank() == 0) *own() = epoch_;
  }
  ncclLsaBarrierSession(const ncclLsaBarrierSession&) = delete;

  __device__ void arrive(Coop, cuda::memory_order order) {
    coop_.sync();
    ++epoch_;
    for (int peer = coop_.thread_rank(); peer < comm_.lsaSize; peer += coop_.size()) {
      unsigned* const there = slots(peer) + 1 + comm_.lsaRank;
      if (order == cuda::memory_order_relaxed || order == cuda::memory_order_acquire) {
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(there), "r"(epoch_) : "memory");
      } else {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(there), "r"(epoch_) : "memory");
      }
    }
  }
  __device__ void wait(Coop, cuda::memory_order order) {
    const bool is_relaxed = order == cuda::memory_order_relaxed || order == cuda::memory_order_release;
    for (int peer = coop_.thread_rank(); peer < comm_.lsaSize; peer += coop_.size()) {
      const unsigned* const there = slots(comm_.lsaRank) + 1 + peer;
      unsigned found;
      if (is_relaxed) {
        asm volatile("pmevent.mask 0x5a09;" ::: "memory");  // LibraryMark::kBoundary of the emulator
        do {
          asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(there) : "memory");
        } while (int(found - epoch_) < 0);
        asm volatile("pmevent.mask 0x5a05;" ::: "memory");  // kEnd
      } else {
        do {
          asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(there) : "memory");
        } while (int(found - epoch_) < 0);
      }
    }
    coop_.sync();
  }
  __device__ void sync(Coop coop, cuda::memory_order order) {
    arrive(coop, order);
    wait(coop, order);
  }

 private:
  __device__ unsigned* slots(int rank) const { return comm_.pkb_barriers[rank] + index_ * uint32_t(1 + comm_.lsaSize); }
  __device__ unsigned* own() const { return slots(comm_.lsaRank); }

  Coop coop_;
  const ncclDevComm& comm_;
  uint32_t index_;
  unsigned epoch_;
};
