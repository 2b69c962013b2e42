// Programs of host code for test_driver.py, which call the driver; as those of streams.cu. CUDA_API_PER_THREAD_DEFAULT_STREAM
// makes a null stream that of the thread.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#define CHECK(condition) \
  if (!(condition)) return __LINE__
#define CUDA(call) CHECK((call) == cudaSuccess)
#define DRIVER(call) CHECK((call) == CUDA_SUCCESS)
#define PROGRAM(name) extern "C" int name([[maybe_unused]] int* own, [[maybe_unused]] int* peer, [[maybe_unused]] int rank, [[maybe_unused]] cudaStream_t s)

static CUdeviceptr at(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
__global__ void put_slowly(int* to, int value) {
#pragma unroll 1
  for (int i = 0; i < 3000; ++i) asm volatile("nanosleep.u32 1;" ::: "memory");
  *to = value;
}

PROGRAM(copies_of_all_kinds) {
  const int numbers[4] = {3, 4, 5, 6};
  int got[4] = {};
  int* device;
  CUDA(cudaMalloc(&device, 64));
  DRIVER(cuMemcpyHtoD(at(device), numbers, 16));
  DRIVER(cuMemcpyDtoD(at(device + 4), at(device), 16));
  DRIVER(cuStreamSynchronize(0));  // a copy between device memories does not wait
  DRIVER(cuMemcpyDtoDAsync(at(device + 8), at(device + 4), 16, s));
  DRIVER(cuMemcpyDtoHAsync(got, at(device + 8), 16, s));
  CHECK(std::memcmp(got, numbers, 16) == 0);
  DRIVER(cuMemcpyHtoDAsync(at(device), numbers + 2, 8, s));
  DRIVER(cuMemcpyAsync(at(device + 2), at(device), 8, s));
  DRIVER(cuStreamSynchronize(s));
  DRIVER(cuMemcpyDtoH(got, at(device), 16));
  CHECK(got[0] == 5 && got[2] == 5 && got[3] == 6);
  DRIVER(cuMemcpy(at(device + 1), at(device + 3), 4));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE, rows.srcDevice = at(device), rows.srcPitch = 8;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST, rows.dstHost = got, rows.dstPitch = 4;
  rows.WidthInBytes = 4, rows.Height = 2;
  DRIVER(cuMemcpy2D(&rows));
  CHECK(got[0] == 5 && got[1] == 5);
  CHECK(cuMemcpyDtoD(0, at(device), 4) == CUDA_ERROR_INVALID_VALUE);
  CUDA(cudaFree(device));
  return 0;
}

PROGRAM(copies_between_contexts) {
  CUcontext mine, its;
  DRIVER(cuDevicePrimaryCtxRetain(&mine, rank));
  DRIVER(cuDevicePrimaryCtxRetain(&its, 1 - rank));
  CHECK(mine != its && cuDevicePrimaryCtxRetain(&its, 9) == CUDA_ERROR_INVALID_DEVICE);
  DRIVER(cuCtxSetCurrent(mine));
  unsigned flags;
  int is_active = 0;
  DRIVER(cuDevicePrimaryCtxGetState(rank, &flags, &is_active));
  CHECK(is_active == 1);
  const int number = 40 + rank;
  DRIVER(cuMemcpyHtoD(at(own + 1), &number, 4));
  DRIVER(cuMemcpyPeer(at(peer + 2 + rank), its, at(own + 1), mine, 4));
  DRIVER(cuMemcpyPeerAsync(at(peer + 4 + rank), its, at(own + 1), mine, 4, s));
  DRIVER(cuStreamSynchronize(s));
  int got = 0;
  DRIVER(cuMemcpyDtoH(&got, at(peer + 4 + rank), 4));
  CHECK(got == number);
  DRIVER(cuDevicePrimaryCtxRelease(rank));
  return 0;
}

PROGRAM(fills_of_words) {
  unsigned got[4];
  DRIVER(cuMemsetD32(at(own), 0x01020304u, 4));
  DRIVER(cuMemsetD16Async(at(own + 1), 0x0506, 2, s));
  DRIVER(cuMemsetD8Async(at(own + 2), 7, 3, s));
  DRIVER(cuStreamSynchronize(s));
  DRIVER(cuMemsetD2D32(at(own), 12, 9, 1, 2));
  DRIVER(cuMemcpyDtoH(got, at(own), 16));
  CHECK(got[0] == 9 && got[1] == 0x05060506u && got[2] == 0x01070707u && got[3] == 9);
  CHECK(cuMemsetD32(at(own) + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  return 0;
}

PROGRAM(attributes_of_pointers) {
  int* device;
  CUDA(cudaMalloc(&device, 256));
  unsigned kind = 0;
  int ordinal = -1;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  DRIVER(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(device + 3)));
  DRIVER(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at(device)));
  CHECK(kind == CU_MEMORYTYPE_DEVICE && ordinal == rank);
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* host = &kind;
  void* values[] = {&begin, &bytes, &host};
  DRIVER(cuPointerGetAttributes(3, attributes, values, at(device + 3)));
  CHECK(begin == at(device) && bytes == 256 && !host);
  CHECK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(&kind)) == CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuPointerGetAttributes(1, attributes, values, at(&kind)));
  CHECK(begin == 0);
  CUDA(cudaFree(device));
  return 0;
}

// A stream that does not wait for the legacy default stream, but for itself.
PROGRAM(null_stream) {
  int number = 5, got = 0;
  put_slowly<<<1, 1>>>(own, 1);
  CUDA(cudaMemcpyAsync(own, &number, 4, cudaMemcpyHostToDevice, 0));
  CUDA(cudaMemcpyAsync(&got, own, 4, cudaMemcpyDeviceToHost, 0));
  CHECK(got == 5);
  DRIVER(cuMemsetD32Async(at(own), 6, 1, 0));
  DRIVER(cuStreamSynchronize(0));
  CUDA(cudaMemcpy(&got, own, 4, cudaMemcpyDeviceToHost));
  CHECK(got == 6);
  return 0;
}

// The legacy default stream waits for blocking streams; that of a thread does not.
PROGRAM(null_stream_behind_a_blocking_one) {
  cudaStream_t blocking;
  CUDA(cudaStreamCreate(&blocking));
  put_slowly<<<1, 1, 0, blocking>>>(own, 1);
  put_slowly<<<1, 1>>>(own, 2);
  CUDA(cudaDeviceSynchronize());
  return 0;
}

// Null is the same stream by the name of the driver's function, and by a look-up of it.
PROGRAM(functions_by_name) {
  cudaDriverEntryPointQueryResult status;
  CUresult (*fill)(CUdeviceptr, unsigned, size_t, CUstream);
  CUDA(cudaGetDriverEntryPoint("cuMemsetD32Async", reinterpret_cast<void**>(&fill), cudaEnableDefault, &status));
  CHECK(status == cudaDriverEntryPointSuccess);
  put_slowly<<<1, 1>>>(own, 1);
  DRIVER(fill(at(own), 3, 1, 0));
  int got = 0;
  CUDA(cudaMemcpy(&got, own, 4, cudaMemcpyDeviceToHost));
  CHECK(got == 3);
  void* copy;
  CUDA(cudaGetDriverEntryPoint("cuMemcpyDtoD", &copy, cudaEnableLegacyStream, &status));
  CUDA(cudaGetDriverEntryPoint("cuMemcpyDtoD", reinterpret_cast<void**>(&fill), cudaEnablePerThreadDefaultStream, &status));
  CHECK(copy && fill && copy != reinterpret_cast<void*>(fill));
  return 0;
}
