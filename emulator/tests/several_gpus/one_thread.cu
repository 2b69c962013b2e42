// Programs of one thread that drives several GPUs. The first argument names one, the second its mistake ("right": none).
#define _CG_LIMIT_INCLUDED_DEPENDENCIES  // without libcu++, which takes nvcc two seconds
#include <cooperative_groups.h>
#include <cuda.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#define CHECK(condition) if (!(condition)) return std::printf("line %d: %s\n", __LINE__, cudaGetErrorName(cudaGetLastError())), __LINE__ % 200 + 1
#define CUDA(call) CHECK((call) == cudaSuccess)

const char* mistake = "right";
bool is(const char* name) { return std::strcmp(mistake, name) == 0; }

__global__ void fill(int* to, int value) { to[threadIdx.x] = value + int(threadIdx.x); }
__global__ void twice(const int* from, int* to) { to[threadIdx.x] = 2 * from[threadIdx.x]; }

// ---- a stencil on a ring of GPUs, which copy their outer rows into the halos of their neighbours ----

constexpr int kWidth = 32, kRows = 3, kTurns = 4, kBytes = (kRows + 2) * kWidth * int(sizeof(float));

__host__ __device__ float relaxed(const float* at, int left, int right) { return 0.25f * (at[-kWidth] + at[kWidth] + at[left] + at[right]); }
__global__ void relax(const float* from, float* to) {
  const int row = int(blockIdx.x) + 1, x = int(threadIdx.x);
  to[row * kWidth + x] = relaxed(from + row * kWidth + x, x ? -1 : 0, x + 1 < kWidth ? 1 : 0);
}

int stencil(int gpus) {
  struct Gpu {
    float* rows[2];
    cudaStream_t compute, push;
    cudaEvent_t computed, pushed[2];
  };
  std::vector<Gpu> all(gpus);
  std::vector<float> field(size_t(gpus) * kRows * kWidth);
  for (size_t i = 0; i < field.size(); ++i) field[i] = float(i * 7 % 31);
  const auto row_of = [&](std::vector<float>& of, int row) { return of.data() + (row + gpus * kRows) % (gpus * kRows) * kWidth; };
  for (int i = 0; i < gpus; ++i) {
    Gpu& gpu = all[i];
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&gpu.compute, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&gpu.push, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&gpu.computed, cudaEventDisableTiming));
    for (cudaEvent_t& event : gpu.pushed) CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (float*& rows : gpu.rows) CUDA(cudaMalloc(&rows, kBytes));
    for (int row = -1; row <= kRows; ++row) CUDA(cudaMemcpy(gpu.rows[0] + (row + 1) * kWidth, row_of(field, i * kRows + row), kWidth * sizeof(float), cudaMemcpyHostToDevice));
  }
  for (int i = 0; i < gpus; ++i) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaDeviceSynchronize());
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int i = 0; i < gpus; ++i) {
      Gpu &gpu = all[i], &above = all[(i + gpus - 1) % gpus], &below = all[(i + 1) % gpus];
      CUDA(cudaSetDevice(i));
      if (turn > 0) {
        CUDA(cudaStreamWaitEvent(gpu.compute, gpu.pushed[turn % 2], 0));
        CUDA(cudaStreamWaitEvent(gpu.compute, above.pushed[turn % 2], 0));
        if (!is("event")) CUDA(cudaStreamWaitEvent(gpu.compute, below.pushed[turn % 2], 0));
      }
      relax<<<kRows, kWidth, 0, gpu.compute>>>(gpu.rows[turn % 2], gpu.rows[(turn + 1) % 2]);
      CUDA(cudaEventRecord(gpu.computed, gpu.compute));
      if (!is("stream")) CUDA(cudaStreamWaitEvent(gpu.push, gpu.computed, 0));
      float* const rows = gpu.rows[(turn + 1) % 2];
      CUDA(cudaMemcpyAsync(above.rows[(turn + 1) % 2] + (kRows + 1) * kWidth, rows + kWidth, kWidth * sizeof(float), cudaMemcpyDeviceToDevice, gpu.push));
      CUDA(cudaMemcpyPeerAsync(below.rows[(turn + 1) % 2], (i + 1) % gpus, rows + kRows * kWidth, i, kWidth * sizeof(float), gpu.push));
      CUDA(cudaEventRecord(gpu.pushed[(turn + 1) % 2], gpu.push));
    }
  }
  std::vector<float> next = field;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int row = 0; row < gpus * kRows; ++row) {
      std::vector<float> three;
      for (int each = row - 1; each <= row + 1; ++each) three.insert(three.end(), row_of(field, each), row_of(field, each) + kWidth);
      for (int x = 0; x < kWidth; ++x) row_of(next, row)[x] = relaxed(three.data() + kWidth + x, x ? -1 : 0, x + 1 < kWidth ? 1 : 0);
    }
    std::swap(field, next);
  }
  for (int i = 0; i < gpus; ++i) {
    std::vector<float> found(kRows * kWidth);
    CUDA(cudaSetDevice(i));
    CUDA(cudaMemcpyAsync(found.data(), all[i].rows[kTurns % 2] + kWidth, found.size() * sizeof(float), cudaMemcpyDeviceToHost, all[i].compute));
    CUDA(cudaStreamSynchronize(all[i].compute));
    for (size_t at = 0; at < found.size() && is("right"); ++at) CHECK(found[at] == field[size_t(i) * kRows * kWidth + at]);
  }
  return 0;
}

// ---- two GPUs, one after the other: kernels that read the other's memory, and copies ----

int ping_pong(int) {
  int *first, *second, can = 0, found[32];
  cudaStream_t early, late;
  CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  CHECK(can == 1 && cudaDeviceCanAccessPeer(&can, 0, 0) == cudaSuccess && can == 0);
  CUDA(cudaSetDevice(0));
  if (!is("peer")) CUDA(cudaDeviceEnablePeerAccess(1, 0));
  CUDA(cudaMalloc(&first, sizeof found));
  CUDA(cudaSetDevice(1));
  CUDA(cudaDeviceEnablePeerAccess(0, 0));
  CUDA(cudaMalloc(&second, sizeof found));
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&early, cudaStreamNonBlocking));
  fill<<<1, 32, 0, early>>>(first, 1);
  CUDA(cudaSetDevice(1));
  CUDA(cudaMemcpyPeer(second, 1, first, 0, sizeof found));  // in order with all work of both GPUs
  twice<<<1, 32>>>(second, second);
  if (!is("copy")) CUDA(cudaMemcpy(first, second, sizeof found, cudaMemcpyDefault));
  if (is("copy")) CUDA(cudaMemcpyPeerAsync(first, 0, second, 1, sizeof found, 0));
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&late, cudaStreamNonBlocking));
  twice<<<1, 32, 0, late>>>(first, second);
  if (!is("synchronize")) CUDA(cudaDeviceSynchronize());
  CUDA(cudaSetDevice(1));
  twice<<<1, 32>>>(second, first);
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaMemcpy(found, first, sizeof found, cudaMemcpyDeviceToHost));
  CHECK(!is("right") || (found[0] == 8 && found[31] == 8 * 32));
  CUDA(cudaFree(first));
  CUDA(cudaFree(second));
  return 0;
}

// ---- an all-reduce of kernels that run side by side and wait for flags of each other ----

constexpr int kMost = 8, kCount = 64;
struct Peers {
  int *data[kMost], *sums[kMost], *flags[kMost];  // of each GPU; a flag of each other one
};
__device__ void meet(const Peers& peers, int mine, int gpus, int epoch) {
  __syncthreads();
  if (int(threadIdx.x) < gpus) {
    asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(peers.flags[threadIdx.x] + mine), "r"(epoch) : "memory");
    int found;
    do {
      asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(found) : "l"(peers.flags[mine] + threadIdx.x) : "memory");
    } while (found < epoch);
  }
  __syncthreads();
}
__global__ void all_reduce(Peers peers, int mine, int gpus, int epoch, bool waits) {
  if (waits) meet(peers, mine, gpus, 2 * epoch - 1);
  int sum = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) sum += peers.data[gpu][threadIdx.x];
  peers.sums[mine][threadIdx.x] = sum;
  meet(peers, mine, gpus, 2 * epoch);  // others have read
}

int flags(int gpus) {
  Peers peers{};
  for (int i = 0; i < gpus; ++i) {
    CUDA(cudaSetDevice(i));
    for (int peer = 0; peer < gpus; ++peer) {
      if (peer != i) CUDA(cudaDeviceEnablePeerAccess(peer, 0));
    }
    CUDA(cudaMalloc(&peers.data[i], kCount * sizeof(int)));
    CUDA(cudaMalloc(&peers.sums[i], kCount * sizeof(int)));
    CUDA(cudaMalloc(&peers.flags[i], kMost * sizeof(int)));
    CUDA(cudaMemset(peers.flags[i], 0, kMost * sizeof(int)));
  }
  CHECK(gpus < 2 || cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
  cudaGetLastError();
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (int i = 0; i < gpus; ++i) {
      CUDA(cudaSetDevice(i));
      fill<<<1, kCount>>>(peers.data[i], 10 * i + epoch);
      all_reduce<<<1, kCount>>>(peers, i, gpus, epoch, !is("flag"));
      CUDA(cudaGetLastError());
    }
  }
  for (int i = 0; i < gpus; ++i) {
    int found[kCount];
    CUDA(cudaSetDevice(i));
    CUDA(cudaMemcpy(found, peers.sums[i], sizeof found, cudaMemcpyDeviceToHost));
    CHECK(!is("right") || found[5] == 5 * gpus * (gpus - 1) + 7 * gpus);
  }
  return 0;
}

// ---- memory of a pool, which a second GPU gets access to ----

int pool(int) {
  int *first, *second, found[32];
  cudaMemPool_t of_first;
  cudaStream_t streams[2];
  cudaEvent_t filled, used;
  CUDA(cudaDeviceGetDefaultMemPool(&of_first, 0));
  const cudaMemAccessDesc access = {{cudaMemLocationTypeDevice, {1}}, cudaMemAccessFlagsProtReadWrite};
  if (!is("access")) CUDA(cudaMemPoolSetAccess(of_first, &access, 1));
  for (int i = 0; i < 2; ++i) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    CUDA(cudaEventCreate(i ? &used : &filled));
  }
  CUDA(cudaSetDevice(0));
  CUDA(cudaMallocAsync(&first, sizeof found, streams[0]));
  fill<<<1, 32, 0, streams[0]>>>(first, 5);
  CUDA(cudaEventRecord(filled, streams[0]));
  CHECK(cudaEventRecord(used, streams[0]) == cudaErrorInvalidResourceHandle);  // an event of the other GPU
  fill<<<1, 32, 0, streams[1]>>>(first, 5);                                    // a stream of the other GPU
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CUDA(cudaSetDevice(1));
  if (!is("event")) CUDA(cudaStreamWaitEvent(streams[1], filled, 0));
  CUDA(cudaMallocAsync(&second, sizeof found, streams[1]));
  twice<<<1, 32, 0, streams[1]>>>(first, second);
  CUDA(cudaEventRecord(used, streams[1]));
  CUDA(cudaStreamWaitEvent(streams[0], used, 0));
  CUDA(cudaFreeAsync(first, streams[0]));
  CUDA(cudaMemcpyAsync(found, second, sizeof found, cudaMemcpyDeviceToHost, streams[1]));
  CUDA(cudaStreamSynchronize(streams[1]));
  CUDA(cudaStreamSynchronize(streams[0]));
  CHECK(!is("right") || found[31] == 2 * 36);
  return 0;
}

// ---- grids of all GPUs that meet by a counter in managed memory ----

__device__ int partial;
__global__ void sum_of_all(int* counter, int* sums, const int* data, int mine, int gpus, bool meets) {
  const auto grid = cooperative_groups::this_grid();
  atomicAdd(&partial, data[grid.thread_rank()]);
  grid.sync();
  if (grid.thread_rank() == 0) sums[mine] = partial;
  if (meets && grid.thread_rank() == 0) {
    __threadfence_system();
    atomicAdd_system(counter, 1);
    while (atomicAdd_system(counter, 0) < gpus) {}
    __threadfence_system();
  }
  grid.sync();
  if (grid.thread_rank() != 0) return;
  int sum = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) sum += sums[gpu];
  partial = sum;
}

int cooperative(int gpus) {
  int *counter, *sums, *data[kMost];
  CUDA(cudaMallocManaged(&counter, sizeof(int)));
  CUDA(cudaMallocManaged(&sums, kMost * sizeof(int)));
  *counter = 0;
  for (int i = 0; i < gpus; ++i) {
    CUDA(cudaSetDevice(i));
    const int zero = 0;
    CUDA(cudaMemcpyToSymbol(partial, &zero, sizeof zero));
    CUDA(cudaMalloc(&data[i], 64 * sizeof(int)));
    fill<<<1, 64>>>(data[i], i);
    CUDA(cudaDeviceSynchronize());
  }
  for (int i = 0; i < gpus; ++i) {
    bool meets = !is("meeting");
    void* arguments[] = {&counter, &sums, &data[i], &i, &gpus, &meets};
    CUDA(cudaSetDevice(i));
    CUDA(cudaLaunchCooperativeKernel(sum_of_all, dim3(2), dim3(32), arguments, 0, nullptr));
  }
  for (int i = 0; i < gpus; ++i) {
    int found;
    CUDA(cudaSetDevice(i));
    CUDA(cudaMemcpyFromSymbol(&found, partial, sizeof found));  // each GPU has a variable of its own
    CHECK(!is("right") || found == gpus * 63 * 32 + 32 * gpus * (gpus - 1));
  }
  return 0;
}

// ---- what belongs to one GPU, or to another process ----

int refused(int) {
  int* memory;
  CUcontext first;
  CHECK(cuDevicePrimaryCtxRetain(&first, 0) == CUDA_SUCCESS && cuCtxSetCurrent(first) == CUDA_SUCCESS);
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
  CUDA(cudaMalloc(&memory, 4));
  cudaPointerAttributes attributes;
  cudaIpcMemHandle_t handle;
  void* opened;
  CUDA(cudaIpcGetMemHandle(&handle, memory));
  CUDA(cudaSetDevice(1));
  CHECK(cudaPointerGetAttributes(&attributes, memory) == cudaSuccess && attributes.device == 0);
  CHECK(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
  CHECK(cudaDeviceDisablePeerAccess(0) == cudaErrorPeerAccessNotEnabled && cudaDeviceEnablePeerAccess(1, 0) == cudaErrorInvalidDevice);
  return 0;
}

// ---- NCCL ----

int nccl(int gpus) {
  ncclComm_t comms[kMost];
  cudaStream_t streams[kMost], sides[kMost];
  int* data[kMost];
  if (is("init")) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    return cudaSetDevice(0) || ncclCommInitRank(&comms[0], gpus, id, 0);  // waits for the others, whom this thread is to be
  }
  if (is("right")) {
    ncclUniqueId id;
    CHECK(!ncclGetUniqueId(&id) && !ncclGroupStart());
    for (int i = 0; i < gpus; ++i) CHECK(!cudaSetDevice(i) && !ncclCommInitRank(&comms[i], gpus, id, i));
    CHECK(!ncclGroupEnd());
    for (int i = 0; i < gpus; ++i) CHECK(!ncclCommDestroy(comms[i]));
  }
  CHECK(ncclCommInitAll(comms, gpus, nullptr) == ncclSuccess);
  for (int i = 0; i < gpus; ++i) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaMalloc(&data[i], kCount * sizeof(int)));
    CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&sides[i], cudaStreamNonBlocking));
    fill<<<1, kCount, 0, is("stream") ? sides[i] : streams[i]>>>(data[i], i);
  }
  if (!is("group")) ncclGroupStart();
  for (int i = 0; i < gpus; ++i) CHECK(ncclAllReduce(data[i], data[i], kCount, ncclInt, ncclSum, comms[i], streams[i]) == ncclSuccess);
  if (!is("group")) CHECK(ncclGroupEnd() == ncclSuccess);
  ncclGroupStart();
  for (int i = 0; i < gpus; ++i) {
    ncclSend(data[i], 8, ncclInt, (i + 1) % gpus, comms[i], streams[i]);
    ncclRecv(data[i] + 16, 8, ncclInt, (i + gpus - 1) % gpus, comms[i], streams[i]);
  }
  CHECK(ncclGroupEnd() == ncclSuccess);
  for (int i = 0; i < gpus; ++i) {
    int found[kCount], device = -1;
    CUDA(cudaSetDevice(i));
    CUDA(cudaMemcpyAsync(found, data[i], sizeof found, cudaMemcpyDeviceToHost, streams[i]));
    CUDA(cudaStreamSynchronize(streams[i]));
    CUDA(cudaDeviceSynchronize());
    CHECK(!is("right") || (found[3] == 3 * gpus + gpus * (gpus - 1) / 2 && found[19] == found[3]));
    CHECK(!ncclCommCuDevice(comms[i], &device) && device == i && !ncclCommDestroy(comms[i]));
  }
  return 0;
}

int main(int count, char** arguments) {
  int gpus = 0;
  CUDA(cudaGetDeviceCount(&gpus));
  mistake = arguments[2];
  CHECK(count == 3 && cudaSetDevice(gpus) == cudaErrorInvalidDevice && cudaSetDevice(-1) == cudaErrorInvalidDevice);
  cudaGetLastError();
  const std::pair<const char*, int (*)(int)> programs[] = {{"stencil", stencil}, {"ping_pong", ping_pong}, {"flags", flags}, {"pool", pool}, {"cooperative", cooperative}, {"refused", refused}, {"nccl", nccl}};
  for (const auto& [name, program] : programs) {
    if (std::strcmp(arguments[1], name) == 0) return program(gpus);
  }
  return 250;
}
