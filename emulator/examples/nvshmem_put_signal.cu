// A ring of NVSHMEM: each PE puts its values at the next one and raises a signal there.
// check-ranks:
// MISTAKE: a put and a signal in two calls, without nvshmem_fence between them.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int kCount = 256, kRounds = 3;

__global__ void pass_on(int* received, int* values, uint64_t* signal, uint64_t round) {
  const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
#ifdef MISTAKE
  nvshmemx_int_put_block(received, values, kCount, next);
  if (threadIdx.x == 0) nvshmemx_signal_op(signal, round, NVSHMEM_SIGNAL_SET, next);
#else
  nvshmemx_int_put_signal_block(received, values, kCount, signal, round, NVSHMEM_SIGNAL_SET, next);
#endif
  if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, round);
  __syncthreads();
  for (int i = threadIdx.x; i < kCount; i += blockDim.x) values[i] = received[i] + 1;
  nvshmemx_barrier_all_block();
}

int main() {
  nvshmem_init();
  const int pe = nvshmem_my_pe(), pes = nvshmem_n_pes();
  cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  auto* const received = static_cast<int*>(nvshmem_malloc(kCount * sizeof(int)));
  auto* const values = static_cast<int*>(nvshmem_malloc(kCount * sizeof(int)));
  auto* const signal = static_cast<uint64_t*>(nvshmem_calloc(1, sizeof(uint64_t)));
  std::vector<int> content(kCount, pe);
  cudaMemcpyAsync(values, content.data(), kCount * sizeof(int), cudaMemcpyHostToDevice, stream);
  for (uint64_t round = 1; round <= kRounds; ++round) pass_on<<<1, 64, 0, stream>>>(received, values, signal, round);
  cudaMemcpyAsync(content.data(), values, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream);
  if (const cudaError_t error = cudaStreamSynchronize(stream); error != cudaSuccess) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    return 1;
  }
  const int expected = (pe + kRounds * (pes - 1)) % pes + kRounds;
  for (int i = 0; i < kCount; ++i) {
    if (content[i] == expected) continue;
    std::printf("PE %d, value %d: got %d, expected %d\n", pe, i, content[i], expected);
    return 1;
  }
  nvshmem_free(signal);
  nvshmem_free(values);
  nvshmem_free(received);
  nvshmem_finalize();
  return 0;
}
