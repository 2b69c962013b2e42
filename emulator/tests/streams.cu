// Programs of host code for test_streams.py, each a function of a rank's words, its peer's, its number and its stream.
// It returns 0, or the line of a check that failed.
#include <cuda.h>
#include <cuda_profiler_api.h>

#include <cstdint>
#include <cstring>
#include <vector>

#define CHECK(condition) \
  if (!(condition)) return __LINE__
#define CUDA(call) CHECK((call) == cudaSuccess)
#define PROGRAM(name) extern "C" int name([[maybe_unused]] int* own, [[maybe_unused]] int* peer, [[maybe_unused]] int rank, [[maybe_unused]] cudaStream_t s)

__global__ void put(int* to, int value) { *to = value; }
__global__ void move(int* to, const int* from) { *to = *from; }
__device__ void idle(int iterations) {
#pragma unroll 1
  for (int i = 0; i < iterations; ++i) asm volatile("nanosleep.u32 1;" ::: "memory");
}
__global__ void put_slowly(int* to, int value) {
  idle(3000);
  *to = value;
}

static int word(const int* at, cudaStream_t s) {
  int value = -1;
  cudaMemcpyAsync(&value, at, 4, cudaMemcpyDeviceToHost, s);
  return value;
}

// ---- memory of the host ----

PROGRAM(pageable_source_is_reused) {
  int value = 7;
  put_slowly<<<1, 1, 0, s>>>(own + 1, 1);
  CUDA(cudaMemcpyAsync(own, &value, 4, cudaMemcpyHostToDevice, s));
  value = 8;
  CHECK(word(own, s) == 7);
  return 0;
}
PROGRAM(large_pageable_source_is_reused) {
  std::vector<int> values(1 << 18, 7);
  int* device;
  CUDA(cudaMalloc(&device, 4 * values.size()));
  CUDA(cudaMemcpyAsync(device, values.data(), 4 * values.size(), cudaMemcpyHostToDevice, s));
  std::memset(values.data(), 0, 4 * values.size());
  move<<<1, 1, 0, s>>>(own, device + values.size() - 1);
  CHECK(word(own, s) == 7);
  return 0;
}
PROGRAM(rows_of_pageable_source_are_reused) {
  int values[4] = {1, 2, 3, 4};
  CUDA(cudaMemcpy2DAsync(own, 4, values, 8, 4, 2, cudaMemcpyHostToDevice, s));
  values[2] = 9;
  CHECK(word(own + 1, s) == 3);
  return 0;
}
PROGRAM(pageable_target_is_complete) {
  int value = -1;
  put_slowly<<<1, 1, 0, s>>>(own, 5);
  CUDA(cudaMemcpyAsync(&value, own, 4, cudaMemcpyDeviceToHost, s));
  CHECK(value == 5);
  return 0;
}
PROGRAM(kernels_read_what_the_host_has_written) {
  int *pinned, *managed;
  CUDA(cudaMallocHost(&pinned, 4));
  CUDA(cudaMallocManaged(&managed, 4));
  *pinned = 3;
  *managed = 4;
  move<<<1, 1, 0, s>>>(own, pinned);
  move<<<1, 1, 0, s>>>(own + 1, managed);
  CHECK(word(own, s) == 3);
  CHECK(word(own + 1, s) == 4);
  return 0;
}
PROGRAM(pinned_source_is_read_later) {
  int* pinned;
  CUDA(cudaMallocHost(&pinned, 4));
  *pinned = 7;
  put_slowly<<<1, 1, 0, s>>>(own + 1, 1);
  CUDA(cudaMemcpyAsync(own, pinned, 4, cudaMemcpyHostToDevice, s));
  *pinned = 8;  // too early: what GPUs copy is either
  CHECK(word(own, s) == 8);
  return 0;
}
PROGRAM(pinned_target_needs_a_wait) {
  int* pinned;
  CUDA(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault));
  *pinned = -1;
  put_slowly<<<1, 1, 0, s>>>(own, 5);
  CUDA(cudaMemcpyAsync(pinned, own, 4, cudaMemcpyDeviceToHost, s));
  CHECK(*pinned == -1);
  CUDA(cudaStreamSynchronize(s));
  CHECK(*pinned == 5);
  return 0;
}
PROGRAM(registered_memory_is_pinned) {
  alignas(4096) static int values[1024];
  values[0] = -1;
  CUDA(cudaHostRegister(values, 4096, cudaHostRegisterDefault));
  put_slowly<<<1, 1, 0, s>>>(own, 5);
  CUDA(cudaMemcpyAsync(values, own, 4, cudaMemcpyDeviceToHost, s));
  CHECK(values[0] == -1);
  CUDA(cudaStreamSynchronize(s));
  CHECK(values[0] == 5);
  CUDA(cudaHostUnregister(values));
  return 0;
}
PROGRAM(synchronous_copies_to_the_host_wait) {
  int *pinned, *managed, *device;
  CUDA(cudaMallocHost(&pinned, 4));
  CUDA(cudaMallocManaged(&managed, 4));
  CUDA(cudaMalloc(&device, 4));
  put_slowly<<<1, 1>>>(device, 6);
  CUDA(cudaMemcpy(pinned, device, 4, cudaMemcpyDeviceToHost));
  CHECK(*pinned == 6);
  put_slowly<<<1, 1>>>(device, 7);
  CUDA(cudaMemcpy(managed, device, 4, cudaMemcpyDeviceToDevice));
  CHECK(*managed == 7);
  put_slowly<<<1, 1>>>(managed, 8);
  CUDA(cudaMemset(managed, 0, 4));
  CHECK(*managed == 0);
  return 0;
}
PROGRAM(pointers_have_kinds) {
  int *pinned, *managed, *device, local = 0;
  CUDA(cudaMallocHost(&pinned, 4));
  CUDA(cudaMallocManaged(&managed, 4));
  CUDA(cudaMalloc(&device, 4));
  const auto type = [](const void* pointer) {
    cudaPointerAttributes attributes;
    cudaPointerGetAttributes(&attributes, pointer);
    return attributes.type;
  };
  CHECK(type(pinned) == cudaMemoryTypeHost && type(managed) == cudaMemoryTypeManaged);
  CHECK(type(device) == cudaMemoryTypeDevice && type(own) == cudaMemoryTypeDevice && type(&local) == cudaMemoryTypeUnregistered);
  return 0;
}
PROGRAM(device_copy_does_not_wait) {
  cudaStream_t other;
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaMemcpy(own + 1, own, 4, cudaMemcpyDeviceToDevice));
  move<<<1, 1, 0, other>>>(own + 2, own + 1);
  return 0;
}
PROGRAM(fill_ahead_of_other_streams) {
  int* counter;
  CUDA(cudaMalloc(&counter, 4));
  CUDA(cudaMemset(counter, 0, 4));
  move<<<1, 1, 0, s>>>(own, counter);
  CHECK(word(own, s) == 0);
  return 0;
}
PROGRAM(device_copy_and_a_wait) {
  CUDA(cudaMemcpy(own + 1, own, 4, cudaMemcpyDeviceToDevice));
  CUDA(cudaDeviceSynchronize());
  move<<<1, 1, 0, s>>>(own + 2, own + 1);
  return 0;
}

// ---- the default stream ----

PROGRAM(blocking_stream_and_default_stream) {
  cudaStream_t other;
  CUDA(cudaStreamCreate(&other));
  put_slowly<<<1, 1, 0, other>>>(own, 3);
  move<<<1, 1>>>(own + 1, own);
  move<<<1, 1, 0, other>>>(own + 2, own + 1);
  CHECK(word(own + 2, other) == 3);
  return 0;
}
PROGRAM(default_stream_beside_that_of_the_call) {
  put<<<1, 1, 0, s>>>(own, 3);
  move<<<1, 1>>>(own + 1, own);
  return 0;
}
PROGRAM(default_stream_after_a_wait) {
  put<<<1, 1, 0, s>>>(own, 3);
  CUDA(cudaStreamSynchronize(s));
  move<<<1, 1>>>(own + 1, own);
  return 0;
}
PROGRAM(waits_for_the_default_stream) {
  cudaStream_t other;
  CUDA(cudaStreamCreate(&other));
  put_slowly<<<1, 1, 0, other>>>(own, 3);
  CUDA(cudaStreamSynchronize(nullptr));
  move<<<1, 1, 0, s>>>(own + 1, own);
  return 0;
}

// ---- events ----

PROGRAM(event_recorded_again_elsewhere) {
  cudaStream_t busy, idle;
  cudaEvent_t event;
  CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  put_slowly<<<1, 1, 0, busy>>>(own, 3);
  CUDA(cudaEventRecord(event, busy));
  CUDA(cudaStreamWaitEvent(s, event, 0));
  CUDA(cudaEventRecord(event, idle));
  CUDA(cudaEventSynchronize(event));
  move<<<1, 1, 0, s>>>(own + 1, own);
  CHECK(word(own + 1, s) == 3);
  return 0;
}
PROGRAM(event_of_the_wrong_record) {
  cudaStream_t busy, idle;
  cudaEvent_t event;
  CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  put_slowly<<<1, 1, 0, busy>>>(own, 3);
  CUDA(cudaEventRecord(event, busy));
  CUDA(cudaEventRecord(event, idle));
  CUDA(cudaStreamWaitEvent(s, event, 0));
  move<<<1, 1, 0, s>>>(own + 1, own);
  return 0;
}
PROGRAM(event_never_recorded) {
  cudaEvent_t event;
  CUDA(cudaEventCreate(&event));
  CUDA(cudaStreamWaitEvent(s, event, 0));
  CUDA(cudaEventSynchronize(event));
  CUDA(cudaEventQuery(event));
  return 0;
}
PROGRAM(fork_and_join_in_a_graph) {
  cudaStream_t other;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&fork));
  CUDA(cudaEventCreate(&join));
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  put<<<1, 1, 0, s>>>(own, 3);
  CUDA(cudaEventRecord(fork, s));
  CUDA(cudaStreamWaitEvent(other, fork, 0));
  move<<<1, 1, 0, other>>>(own + 1, own);
  CUDA(cudaEventRecord(join, other));
  CUDA(cudaStreamWaitEvent(s, join, 0));
  CUDA(cudaStreamEndCapture(s, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) CUDA(cudaGraphLaunch(executable, s));
  CHECK(word(own + 1, s) == 3);
  return 0;
}
PROGRAM(graph_reads_beside_its_branch) {
  cudaStream_t other;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&fork));
  CUDA(cudaEventCreate(&join));
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  CUDA(cudaEventRecord(fork, s));
  CUDA(cudaStreamWaitEvent(other, fork, 0));
  put<<<1, 1, 0, other>>>(own, 3);
  CUDA(cudaEventRecord(join, other));
  move<<<1, 1, 0, s>>>(own + 1, own);
  CUDA(cudaStreamWaitEvent(s, join, 0));
  CUDA(cudaStreamEndCapture(s, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, s));
  return 0;
}
PROGRAM(fork_that_is_not_joined) {
  cudaStream_t other;
  cudaEvent_t fork;
  cudaGraph_t graph;
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&fork));
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  CUDA(cudaEventRecord(fork, s));
  CUDA(cudaStreamWaitEvent(other, fork, 0));
  put<<<1, 1, 0, other>>>(own, 3);
  CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureUnjoined && !graph);
  return 0;
}
PROGRAM(stream_beside_a_capture) {
  cudaStream_t other;
  cudaStreamCaptureStatus of_stream, of_other;
  cudaGraph_t graph;
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  put<<<1, 1, 0, s>>>(own, 3);
  put<<<1, 1, 0, other>>>(own + 1, 4);
  CUDA(cudaStreamIsCapturing(s, &of_stream));
  CUDA(cudaStreamIsCapturing(other, &of_other));
  CHECK(of_stream == cudaStreamCaptureStatusActive && of_other == cudaStreamCaptureStatusNone);
  CUDA(cudaStreamEndCapture(s, &graph));
  CHECK(word(own + 1, other) == 4);
  return 0;
}
PROGRAM(host_sees_an_event_by_query) {
  cudaEvent_t event;
  CUDA(cudaEventCreate(&event));
  put_slowly<<<1, 1, 0, s>>>(own, 3);
  CUDA(cudaEventRecord(event, s));
  while (cudaEventQuery(event) == cudaErrorNotReady) {
  }
  move<<<1, 1>>>(own + 1, own);
  return 0;
}

// ---- programmatic dependent launches ----

__global__ void first(int* words, int value) {
  cudaTriggerProgrammaticLaunchCompletion();
  idle(1000);
  words[threadIdx.x] = value + int(threadIdx.x);
}
__global__ void without_wait(int* words) { words[256 + threadIdx.x] = words[63 - threadIdx.x]; }
__global__ void with_wait(int* words) {
  cudaGridDependencySynchronize();
  words[256 + threadIdx.x] = words[63 - threadIdx.x];
}
__global__ void wait_after_read(int* words) {
  const int value = words[63 - threadIdx.x];
  cudaGridDependencySynchronize();
  words[256 + threadIdx.x] = value;
}
__global__ void wait_of_one_thread(int* words) {
  if (threadIdx.x == 0) cudaGridDependencySynchronize();
  __syncthreads();
  words[256 + threadIdx.x] = words[63 - threadIdx.x];
}
__global__ void reads_earlier_data(int* words) {
  const int value = words[512 + threadIdx.x];
  cudaGridDependencySynchronize();
  words[256 + threadIdx.x] = value + words[threadIdx.x];
}
__global__ void waits_for_its_dependent(int* flag, bool triggers) {
  if (triggers) cudaTriggerProgrammaticLaunchCompletion();
  int seen = 0;
  while (!seen) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
}
__global__ void signals_its_prerequisite(int* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}

template <class... Parameters, class... Arguments>
cudaError_t launch_early(cudaStream_t s, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t shape = {};
  shape.gridDim = 1, shape.blockDim = threads, shape.stream = s;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  shape.attrs = &early, shape.numAttrs = 1;
  return cudaLaunchKernelEx(&shape, kernel, arguments...);
}

PROGRAM(dependent_without_wait) {
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(launch_early(s, 64, without_wait, own));
  return 0;
}
PROGRAM(dependent_of_a_kernel_without_trigger) {
  put<<<1, 1, 0, s>>>(own + 60, 1);
  CUDA(launch_early(s, 64, without_wait, own));
  return 0;
}
PROGRAM(dependent_that_waits_too_late) {
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(launch_early(s, 64, wait_after_read, own));
  return 0;
}
PROGRAM(dependent_with_wait) {
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(launch_early(s, 64, with_wait, own));
  CHECK(word(own + 256, s) == 163);
  return 0;
}
PROGRAM(dependent_whose_first_thread_waits) {
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(launch_early(s, 64, wait_of_one_thread, own));
  CHECK(word(own + 256, s) == 163);
  return 0;
}
PROGRAM(dependent_reads_what_came_before_both) {
  put_slowly<<<1, 1, 0, s>>>(own + 512, 1);
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(launch_early(s, 64, reads_earlier_data, own));
  CHECK(word(own + 256, s) == 101);
  return 0;
}
PROGRAM(dependent_of_a_dependent_reads_the_first) {
  put_slowly<<<1, 1, 0, s>>>(own + 512, 1);
  CUDA(launch_early(s, 64, first, own, 100));
  CUDA(launch_early(s, 64, reads_earlier_data, own));
  return 0;
}
PROGRAM(kernel_after_dependents) {
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(launch_early(s, 1, put, own + 600, 2));
  without_wait<<<1, 64, 0, s>>>(own);
  move<<<1, 1, 0, s>>>(own + 601, own + 600);
  CHECK(word(own + 256, s) == 163 && word(own + 601, s) == 2);
  return 0;
}
PROGRAM(dependent_after_a_copy) {
  first<<<1, 64, 0, s>>>(own, 100);
  CUDA(cudaMemcpyAsync(own + 600, own, 4, cudaMemcpyDeviceToDevice, s));
  CUDA(launch_early(s, 64, without_wait, own));
  CHECK(word(own + 256, s) == 163);
  return 0;
}
PROGRAM(dependent_begins_at_the_trigger) {
  waits_for_its_dependent<<<1, 1, 0, s>>>(own, true);
  CUDA(launch_early(s, 1, signals_its_prerequisite, own));
  return 0;
}
PROGRAM(dependent_without_trigger_begins_at_the_end) {
  waits_for_its_dependent<<<1, 1, 0, s>>>(own, false);
  CUDA(launch_early(s, 1, signals_its_prerequisite, own));
  return 0;
}

// ---- words in a stream's order, errors, pools ----

template <class F>
F entry(const char* name) {
  F found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void**>(&found), 12000, cudaEnableDefault, &status);
  return found;
}
using Word32 = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
using Word64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

__global__ void poll_and_move(int* flag, int* to, const int* from) {
  int seen = 0;
  while (!seen) asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  *to = *from;
}
__global__ void raise_flag(int* flag, bool releases) {
  if (releases) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
  else asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}

static int write_after_data(int* own, int* peer, int rank, cudaStream_t s, unsigned flags) {
  const auto write = entry<Word32>("cuStreamWriteValue32");
  CHECK(write);
  if (rank == 0) {
    put<<<1, 1, 0, s>>>(peer + 64, 42);
    CHECK(write(s, CUdeviceptr(peer), 1, flags) == CUDA_SUCCESS);
  } else {
    poll_and_move<<<1, 1, 0, s>>>(own, own + 65, own + 64);
    CHECK(word(own + 65, s) == 42);
  }
  return 0;
}
PROGRAM(written_word_is_a_flag) { return write_after_data(own, peer, rank, s, 0); }
PROGRAM(written_word_without_barrier) { return write_after_data(own, peer, rank, s, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER); }
PROGRAM(written_word_before_the_data) {
  if (rank == 0) {
    CHECK(entry<Word32>("cuStreamWriteValue32")(s, CUdeviceptr(peer), 1, 0) == CUDA_SUCCESS);
    put<<<1, 1, 0, s>>>(peer + 64, 42);
  } else {
    poll_and_move<<<1, 1, 0, s>>>(own, own + 65, own + 64);
  }
  return 0;
}
PROGRAM(stream_waits_for_a_word) {
  const auto write = entry<Word64>("cuStreamWriteValue64");
  const auto wait = entry<Word64>("cuStreamWaitValue64");
  CHECK(write && wait);
  if (rank == 0) {
    put_slowly<<<1, 1, 0, s>>>(peer + 64, 42);
    CHECK(write(s, CUdeviceptr(peer), 1, 0) == CUDA_SUCCESS);
  } else {
    CHECK(wait(s, CUdeviceptr(own), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
    move<<<1, 1, 0, s>>>(own + 65, own + 64);
    CHECK(word(own + 65, s) == 42);
  }
  return 0;
}
PROGRAM(stream_waits_in_a_circle) {
  const auto wait = entry<Word32>("cuStreamWaitValue32");
  put<<<1, 1, 0, s>>>(own, -2);
  CHECK(wait(s, CUdeviceptr(own), 0xfffffff0u, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
  CHECK(wait(s, CUdeviceptr(own), 2, CU_STREAM_WAIT_VALUE_AND) == CUDA_SUCCESS);
  CHECK(wait(s, CUdeviceptr(own), 0, CU_STREAM_WAIT_VALUE_NOR) == CUDA_SUCCESS);
  CHECK(wait(s, CUdeviceptr(own) + 2, 0, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_ERROR_INVALID_VALUE);
  return 0;
}
PROGRAM(stream_waits_for_ever) {
  CHECK(entry<Word32>("cuStreamWaitValue32")(s, CUdeviceptr(own), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  return 0;
}
static int flag_of_a_later_kernel(int* own, int* peer, int rank, cudaStream_t s, bool releases) {
  if (rank == 0) {
    put<<<1, 1, 0, s>>>(peer + 64, 42);
    raise_flag<<<1, 1, 0, s>>>(peer, releases);
  } else {
    poll_and_move<<<1, 1, 0, s>>>(own, own + 65, own + 64);
  }
  return 0;
}
PROGRAM(relaxed_flag_of_a_later_kernel) { return flag_of_a_later_kernel(own, peer, rank, s, false); }
PROGRAM(released_flag_of_a_later_kernel) { return flag_of_a_later_kernel(own, peer, rank, s, true); }

PROGRAM(errors_have_texts) {
  const char *text = nullptr, *name = nullptr;
  const auto string_of = entry<CUresult (*)(CUresult, const char**)>("cuGetErrorString");
  const auto name_of = entry<CUresult (*)(CUresult, const char**)>("cuGetErrorName");
  CHECK(string_of && string_of(CUDA_ERROR_INVALID_VALUE, &text) == CUDA_SUCCESS && !std::strcmp(text, "invalid argument"));
  CHECK(name_of && name_of(CUDA_ERROR_INVALID_VALUE, &name) == CUDA_SUCCESS && !std::strcmp(name, "CUDA_ERROR_INVALID_VALUE"));
  return 0;
}
PROGRAM(functions_by_name_are_those_of_the_table) {
  const char* text = nullptr;
  CHECK(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text) == CUDA_SUCCESS && !std::strcmp(text, "invalid argument"));
  CHECK(cuStreamWriteValue32(s, CUdeviceptr(own), 5, 0) == CUDA_SUCCESS);
  CHECK(word(own, s) == 5);
  return 0;
}
PROGRAM(lacking_function_is_null) {
  void* found = own;
  cudaDriverEntryPointQueryResult status{};
  CUDA(cudaGetDriverEntryPointByVersion("cuTexObjectCreate", &found, 12000, cudaEnableDefault, &status));
  CHECK(!found && status == cudaDriverEntryPointSymbolNotFound);
  CHECK(cudaGetDriverEntryPointByVersion("cuTexObjectCreate", &found, 12000, cudaEnableDefault, nullptr) == cudaErrorSymbolNotFound);
  return 0;
}
PROGRAM(pools_count_bytes) {
  cudaMemPool_t of_device, own_pool;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  CUDA(cudaDeviceGetDefaultMemPool(&of_device, 0));
  uint64_t threshold = UINT64_MAX, used = 1;
  CUDA(cudaMemPoolSetAttribute(of_device, cudaMemPoolAttrReleaseThreshold, &threshold));
  CUDA(cudaMemPoolCreate(&own_pool, &properties));
  int *a, *b;
  CUDA(cudaMallocAsync(&a, 4096, s));
  CUDA(cudaMallocFromPoolAsync(&b, 8192, own_pool, s));
  CUDA(cudaMemPoolGetAttribute(own_pool, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(used == 8192);
  put<<<1, 1, 0, s>>>(b, 4);
  move<<<1, 1, 0, s>>>(a, b);
  CHECK(word(a, s) == 4);
  CUDA(cudaFreeAsync(b, s));
  CUDA(cudaFreeAsync(a, s));
  CUDA(cudaStreamSynchronize(s));
  CUDA(cudaMemPoolGetAttribute(own_pool, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(used == 0);
  CUDA(cudaMemPoolGetAttribute(of_device, cudaMemPoolAttrUsedMemHigh, &used));
  CHECK(used == 4096);
  CUDA(cudaMemPoolTrimTo(of_device, 0));
  CUDA(cudaMemPoolDestroy(own_pool));
  return 0;
}
// What programs say for speed or to a profiler is accepted; what they ask about the node has an answer.
PROGRAM(hints_change_nothing) {
  int value = 0;
  unsigned flags = 0;
  char bus[16] = "";
  cudaStreamAttrValue window = {};
  CUDA(cudaInitDevice(rank, 0, 0));
  CUDA(cudaSetDeviceFlags(cudaDeviceScheduleYield));
  CUDA(cudaGetDeviceFlags(&flags));
  CUDA(cudaProfilerStart());
  CUDA(cudaStreamSetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &window));
  CUDA(cudaCtxResetPersistingL2Cache());
  CUDA(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, rank, 1 - rank));
  CHECK(value == 1);
  CUDA(cudaDeviceGetAttribute(&value, cudaDeviceAttr(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), rank));
  CHECK(value == 1);
  CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, rank));
  CHECK(bus[6] == '1' + rank);
  int *rows, *managed;
  size_t pitch = 0;
  CUDA(cudaMallocPitch(&rows, &pitch, 100, 3));
  CUDA(cudaMemset2DAsync(rows, pitch, 7, 100, 3, s));
  CHECK(word(rows + 2 * pitch / 4 + 24, s) == 0x07070707);
  CUDA(cudaMallocManaged(&managed, 4));
  CUDA(cudaMemAdvise(managed, 4, cudaMemAdviseSetPreferredLocation, {cudaMemLocationTypeDevice, rank}));
  CUDA(cudaMemPrefetchAsync(managed, 4, {cudaMemLocationTypeDevice, rank}, 0, s));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  auto mode = cudaStreamCaptureModeRelaxed;
  CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  put<<<1, 1, 0, s>>>(rows, 5);
  CUDA(cudaStreamEndCapture(s, &graph));
  CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == cudaStreamCaptureModeRelaxed);
  CUDA(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  CUDA(cudaGraphUpload(executable, s));
  CUDA(cudaGraphLaunch(executable, s));
  CHECK(word(rows, s) == 5);
  CUDA(cudaProfilerStop());
  return 0;
}
