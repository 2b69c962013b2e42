// Multicast objects of one process with several GPUs, and each kind of multimem instruction. One argument: the mode.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      printf("line %d: not %s\n", __LINE__, #condition);      \
      return 1;                                               \
    }                                                         \
  } while (0)
#define FINE(call) CHECK((call) == CUDA_SUCCESS)

constexpr int kGpus = 3;
constexpr size_t kBytes = 2 << 20;

#define LD_REDUCE(modifiers, letter, result, at) \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." modifiers " %0, [%1];" : "=" letter(result) : "l"(at) : "memory")
#define RED(modifiers, letter, at, value) \
  asm volatile("multimem.red.relaxed.sys.global." modifiers " [%0], %1;" ::"l"(at), letter(value) : "memory")
#define ST(modifiers, letter, at, value) \
  asm volatile("multimem.st.relaxed.sys.global." modifiers " [%0], %1;" ::"l"(at), letter(value) : "memory")

// A number at 16 i of each GPU, which differs from GPU to GPU.
__global__ void fill(char* own, int gpu) {
  *reinterpret_cast<float*>(own) = 0.5f + gpu;
  *reinterpret_cast<int*>(own + 16) = gpu - 1;
  *reinterpret_cast<unsigned long long*>(own + 32) = 1ull << (40 + gpu);
  *reinterpret_cast<__half2*>(own + 48) = __floats2half2_rn(1.0f + gpu, 2048.0f);
  *reinterpret_cast<__nv_bfloat162*>(own + 64) = __floats2bfloat162_rn(256.0f, gpu == 0 ? 256.0f : 1.0f);
  *reinterpret_cast<unsigned*>(own + 80) = 0xf0u | 1u << gpu;
  *reinterpret_cast<double*>(own + 96) = 0.25 * gpu;
  *reinterpret_cast<unsigned*>(own + 112) = 10 * gpu;
}

struct Results {
  float sum;
  int least, most;
  unsigned long long bits;
  unsigned half_sums, wide_sums, narrow_sums, both;
};

__global__ void reduce(char* all, Results* results) {
  Results r{};
  LD_REDUCE("add.f32", "f", r.sum, all);
  LD_REDUCE("min.s32", "r", r.least, all + 16);
  LD_REDUCE("max.s32", "r", r.most, all + 16);
  LD_REDUCE("or.b64", "l", r.bits, all + 32);
  LD_REDUCE("add.f16x2", "r", r.half_sums, all + 48);
  LD_REDUCE("add.acc::f32.bf16x2", "r", r.wide_sums, all + 64);
  LD_REDUCE("add.bf16x2", "r", r.narrow_sums, all + 64);
  LD_REDUCE("and.b32", "r", r.both, all + 80);
  *results = r;
}

__global__ void change(char* all) {
  ST("u32", "r", all + 80, 77u);
  RED("add.u32", "r", all + 112, 5u);
  RED("add.f64", "d", all + 96, 1.0);
  RED("max.s32", "r", all + 16, 0);
}

__global__ void load_plainly(unsigned* all, unsigned* out) { *out = *all; }

struct Team {
  CUmemGenericAllocationHandle object, memory[kGpus];
  CUdeviceptr all, own[kGpus];
};

int map(CUdeviceptr* address, CUmemGenericAllocationHandle handle) {
  CUmemAccessDesc access[kGpus] = {};
  for (int gpu = 0; gpu < kGpus; ++gpu) access[gpu] = {CU_MEM_LOCATION_TYPE_DEVICE, gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  FINE(cuMemAddressReserve(address, kBytes, 0, 0, 0));
  FINE(cuMemMap(*address, kBytes, 0, handle, 0));
  FINE(cuMemSetAccess(*address, kBytes, access, kGpus));
  return 0;
}

int make(Team& team, int bound) {
  CUmulticastObjectProp wanted{};
  wanted.numDevices = kGpus;
  wanted.size = kBytes;
  size_t unit = 0;
  FINE(cuMulticastGetGranularity(&unit, &wanted, CU_MULTICAST_GRANULARITY_RECOMMENDED));
  CHECK(kBytes % unit == 0);
  FINE(cuMulticastCreate(&team.object, &wanted));
  for (int gpu = 0; gpu < kGpus; ++gpu) FINE(cuMulticastAddDevice(team.object, gpu));
  CHECK(cuMulticastAddDevice(team.object, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(map(&team.all, team.object) == 0);
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
    FINE(cuMemCreate(&team.memory[gpu], kBytes, &kind, 0));
    CHECK(map(&team.own[gpu], team.memory[gpu]) == 0);
    if (gpu >= bound) continue;
    if (gpu == 0) FINE(cuMulticastBindAddr(team.object, 0, team.own[gpu], kBytes, 0));
    else FINE(cuMulticastBindMem(team.object, 0, team.memory[gpu], 0, kBytes, 0));
    CHECK(cuMulticastBindMem(team.object, 0, team.memory[gpu], 0, kBytes, 0) == CUDA_ERROR_INVALID_VALUE);
    if (cudaSetDevice(gpu) != cudaSuccess) return 1;
    fill<<<1, 1>>>(reinterpret_cast<char*>(team.own[gpu]), gpu);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  }
  return cudaSetDevice(0) == cudaSuccess ? 0 : 1;
}

int check_results(Team& team) {
  Results *on_gpu, r;
  if (cudaMalloc(&on_gpu, sizeof r) != cudaSuccess) return 1;
  reduce<<<1, 1>>>(reinterpret_cast<char*>(team.all), on_gpu);
  if (cudaMemcpy(&r, on_gpu, sizeof r, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  CHECK(r.sum == 4.5f && r.least == -1 && r.most == 1 && r.bits == 7ull << 40 && r.both == 0xf0u);
  const __half2 halves = __floats2half2_rn(6.0f, 6144.0f);
  CHECK(std::memcmp(&r.half_sums, &halves, 4) == 0);
  const __nv_bfloat162 wide = __floats2bfloat162_rn(768.0f, 258.0f), narrow = __floats2bfloat162_rn(768.0f, 256.0f);
  CHECK(std::memcmp(&r.wide_sums, &wide, 4) == 0);      // 256 + 1 + 1, rounded once
  CHECK(std::memcmp(&r.narrow_sums, &narrow, 4) == 0);  // each sum is rounded, to the even one
  change<<<1, 1>>>(reinterpret_cast<char*>(team.all));
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    char own[128];
    if (cudaMemcpy(own, reinterpret_cast<void*>(team.own[gpu]), sizeof own, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
    unsigned stored, counted;
    double sum;
    int most;
    std::memcpy(&stored, own + 80, 4), std::memcpy(&counted, own + 112, 4), std::memcpy(&sum, own + 96, 8), std::memcpy(&most, own + 16, 4);
    CHECK(stored == 77 && counted == unsigned(10 * gpu + 5) && sum == 1.0 + 0.25 * gpu && most == (gpu == 2 ? 1 : 0));
  }
  return 0;
}

int main(int, char** arguments) {
  const char* const mode = arguments[1];
  int has = 0;
  FINE(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
  CHECK(has == 1);
  Team team{};
  CHECK(make(team, std::strcmp(mode, "unbound") == 0 ? kGpus - 1 : kGpus) == 0);
  if (std::strcmp(mode, "plain") == 0) {
    load_plainly<<<1, 1>>>(reinterpret_cast<unsigned*>(team.all), reinterpret_cast<unsigned*>(team.own[0]));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
  }
  CHECK(check_results(team) == 0);
  if (std::strcmp(mode, "gone") == 0) {
    FINE(cuMulticastUnbind(team.object, 1, 0, kBytes));
    return check_results(team);
  }
  // The object keeps what is bound to it.
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    FINE(cuMemUnmap(team.own[gpu], kBytes));
    FINE(cuMemRelease(team.memory[gpu]));
  }
  change<<<1, 1>>>(reinterpret_cast<char*>(team.all));
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  FINE(cuMemUnmap(team.all, kBytes));
  FINE(cuMemRelease(team.object));
  return 0;
}
