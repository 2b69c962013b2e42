// All-reduce in place by NCCL's device API: windows of symmetric memory, and barriers among ranks that load and store.
// check-ranks: --ranks 4
// MISTAKE: the barrier behind the stores is relaxed.
#include <nccl.h>
#include <nccl_device.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                      \
  if ((call) != 0) {                                                                     \
    std::fprintf(stderr, "%s:%d: %s has failed\n", __FILE__, __LINE__, #call);           \
    std::exit(1);                                                                        \
  }

constexpr int kCount = 512, kBlocks = 2;

__global__ void sum_in_place(ncclDevComm comm, ncclWindow_t window, size_t offset) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);
  const int part = kCount / comm.lsaSize / kBlocks, begin = (comm.lsaRank * kBlocks + blockIdx.x) * part;
  for (int i = begin + threadIdx.x; i < begin + part; i += blockDim.x) {
    float sum = 0;
    for (int peer = 0; peer < comm.lsaSize; ++peer) sum += static_cast<float*>(ncclGetLsaPointer(window, offset, peer))[i];
    for (int peer = 0; peer < comm.lsaSize; ++peer) static_cast<float*>(ncclGetLsaPointer(window, offset, peer))[i] = sum;
  }
#ifdef MISTAKE
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);
#else
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
#endif
}

int main() {
  const int rank = std::atoi(std::getenv("RANK")), ranks = std::atoi(std::getenv("WORLD_SIZE"));
  CHECK(cudaSetDevice(rank));
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, id, rank));
  float* values;
  CHECK(ncclMemAlloc(reinterpret_cast<void**>(&values), kCount * sizeof(float)));
  ncclWindow_t window;
  CHECK(ncclCommWindowRegister(comm, values, kCount * sizeof(float), &window, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  wanted.lsaBarrierCount = kBlocks;
  ncclDevComm device;
  CHECK(ncclDevCommCreate(comm, &wanted, &device));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  std::vector<float> content(kCount);
  for (int i = 0; i < kCount; ++i) content[i] = float(rank + i);
  CHECK(cudaMemcpyAsync(values, content.data(), kCount * sizeof(float), cudaMemcpyHostToDevice, stream));
  sum_in_place<<<kBlocks, 128, 0, stream>>>(device, window, 0);
  CHECK(cudaMemcpyAsync(content.data(), values, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) {
    const float expected = float(ranks * (ranks - 1) / 2 + ranks * i);
    if (content[i] == expected) continue;
    std::printf("rank %d, value %d: got %g, expected %g\n", rank, i, content[i], expected);
    return 1;
  }
  CHECK(ncclDevCommDestroy(comm, &device));
  CHECK(ncclCommWindowDeregister(comm, window));
  CHECK(ncclMemFree(values));
  CHECK(ncclCommDestroy(comm));
  return 0;
}
