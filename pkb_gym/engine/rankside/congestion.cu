// A kernel that makes a rank's memory slow to answer while its calls run. Loaded in every rank.
//
// It reads memory of the host from all multiprocessors, which is a hundred times slower than the GPU's own: loads of the
// calls queue behind, and take tens of microseconds. Both ends of a congestion are enqueued on the stream of the calls, so
// that it covers the same calls however far ahead the host is; the kernel runs on a stream of its own, beside them.
#include <cuda_runtime.h>

#include <cstdint>

namespace pkb_congestion {
namespace {

constexpr int kLoads = 4;                     // of 16 bytes, that each thread has under way
constexpr int64_t kResidenceNs = 200 * 1000;  // the longest that a call waits for the kernel to be there

__device__ uint32_t begun_blocks;  // of all congestions
__device__ uint32_t ended;         // number of the last congestion that is over

__device__ __forceinline__ int64_t now_ns() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ uint32_t current(const uint32_t* word) { return *static_cast<const volatile uint32_t*>(word); }

__global__ void congest(const uint4* memory, uint64_t rows, bool is_uneven, uint32_t number, int64_t duration_ns) {
  __shared__ bool is_over;
  if (threadIdx.x == 0) atomicAdd(&begun_blocks, 1u);
  const int64_t begin = now_ns();
  const bool reads = !is_uneven || blockIdx.x % 2 == 0;
  const uint32_t lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  uint64_t place = warp * 0x9e3779b97f4a7c15ull + 1;
  do {
#pragma unroll
    for (int i = 0; reads && i < kLoads; ++i) {
      place = place * 6364136223846793005ull + 1442695040888963407ull;
      const uint4* row = memory + __umul64hi(place, rows) * 32 + lane;
      asm volatile("{ .reg .u32 a, b, c, d; ld.volatile.global.v4.u32 {a, b, c, d}, [%0]; }" ::"l"(row));
    }
    if (threadIdx.x == 0) is_over = int32_t(current(&ended) - number) >= 0 || now_ns() - begin > duration_ns;
    __syncthreads();
  } while (!is_over);
}

__global__ void await_blocks(uint32_t blocks) {
  const int64_t begin = now_ns();
  while (int32_t(current(&begun_blocks) - blocks) < 0 && now_ns() - begin < kResidenceNs) {
  }
}

__global__ void end_of(uint32_t number) { *static_cast<volatile uint32_t*>(&ended) = number; }

uint32_t number = 0, blocks = 0;

}  // namespace
}  // namespace pkb_congestion

// Enqueues the begin of a congestion; returns the CUDA status.
//
// stream: that the calls are enqueued on. memory, nbytes: of the host, as the GPU reaches it. grid, threads: of the kernel.
// is_uneven: whether every other block of it only takes its place. duration_ns: after which it ends at the latest.
extern "C" int pkb_enqueue_congestion(void* stream, const void* memory, uint64_t nbytes, int grid, int threads,
                                      int is_uneven, int64_t duration_ns) {
  using namespace pkb_congestion;
  const auto calls = static_cast<cudaStream_t>(stream);
  static cudaStream_t beside = nullptr;
  static cudaEvent_t begin = nullptr;
  cudaError_t status = cudaSuccess;
  if (begin == nullptr) {
    int least, greatest;
    status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (status == cudaSuccess) status = cudaStreamCreateWithPriority(&beside, cudaStreamNonBlocking, greatest);
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
  }
  if (status == cudaSuccess) status = cudaEventRecord(begin, calls);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(beside, begin, 0);
  if (status != cudaSuccess) return int(status);
  ++number;
  blocks += uint32_t(grid);
  congest<<<grid, threads, 0, beside>>>(static_cast<const uint4*>(memory), nbytes / (32 * sizeof(uint4)), is_uneven != 0,
                                        number, duration_ns);
  await_blocks<<<1, 1, 0, calls>>>(blocks);
  return int(cudaGetLastError());
}

// Enqueues the end of the last congestion; returns the CUDA status.
extern "C" int pkb_enqueue_end_of_congestion(void* stream) {
  using namespace pkb_congestion;
  end_of<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(number);
  return int(cudaGetLastError());
}
