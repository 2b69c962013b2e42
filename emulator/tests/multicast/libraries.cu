// Multicast addresses as NVSHMEM and NCCL hand them out: each rank adds to a counter of all ranks, then looks at its own.
#include <nccl_device.h>
#include <nvshmem.h>

#include <cstdio>
#include <cstring>

__device__ void add_to_all(unsigned* all) { asm volatile("multimem.red.release.sys.global.add.u32 [%0], 1;" ::"l"(all) : "memory"); }
__device__ void await(const unsigned* own, unsigned expected) {
  unsigned seen;
  do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");
  while (seen < expected);
}

__global__ void by_nvshmem(unsigned* counter, int ranks) {
  add_to_all(static_cast<unsigned*>(nvshmemx_mc_ptr(NVSHMEM_TEAM_WORLD, counter)));
  await(counter, ranks);
}

__global__ void by_nccl(ncclWindow_t window, ncclDevComm comm) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), 0, true);
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);
  const ncclSymPtr<unsigned> counter = ncclSymPtr<unsigned>(window, 60) + 1;
  if (comm.lsaMultimem.mcBasePtr) add_to_all(counter.lsaMultimemPtr(comm));
  await(counter.localPtr(), comm.nRanks);
  if (counter.peerPtr(comm.rank) != ncclGetLsaPointer(window, 64, comm.rank)) __trap();
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

int main(int, char** arguments) {
  nvshmem_init();
  const int ranks = nvshmem_n_pes();
  if (std::strcmp(arguments[1], "nvshmem") == 0) {
    auto* const counter = static_cast<unsigned*>(nvshmem_calloc(1, sizeof(unsigned)));
    if (!nvshmemx_mc_ptr(NVSHMEM_TEAM_WORLD, counter)) return 2;
    nvshmem_barrier_all();
    by_nvshmem<<<1, 1>>>(counter, ranks);
    nvshmem_barrier_all();
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 3;
  }
  ncclUniqueId id;
  ncclComm_t comm;
  ncclWindow_t window;
  ncclDevComm on_gpu;
  ncclDevCommRequirements wanted NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  wanted.lsaBarrierCount = 1;
  wanted.lsaMultimem = true;
  void* memory = nullptr;
  if (nvshmem_my_pe() == 0) ncclGetUniqueId(&id);
  if (ncclCommInitRank(&comm, ranks, id, nvshmem_my_pe()) != ncclSuccess || ncclMemAlloc(&memory, 4096) != ncclSuccess) return 4;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  if (ncclCommQueryProperties(comm, &properties) != ncclSuccess || !properties.deviceApiSupport || !properties.multimemSupport || properties.nLsaTeams != 1) return 11;
  if (cudaMemset(memory, 0, 4096) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return 5;
  if (ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC) != ncclSuccess) return 6;
  if (ncclDevCommCreate(comm, &wanted, &on_gpu) != ncclSuccess) return 7;
  by_nccl<<<1, 32>>>(window, on_gpu);
  if (cudaDeviceSynchronize() != cudaSuccess) return 8;
  if (ncclCommWindowDeregister(comm, window) != ncclSuccess || ncclCommWindowDeregister(comm, window) != ncclInvalidArgument) return 9;
  return ncclDevCommDestroy(comm, &on_gpu) == ncclSuccess ? 0 : 10;
}
