// Graphs over several GPUs, their nodes, what programs ask of them, copies of boxes, and the driver. The first argument names a
// program, the second its mistake ("right": none).
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define CHECK(condition) if (!(condition)) std::printf("line %d: %s\n", __LINE__, cudaGetErrorName(cudaGetLastError())), std::exit(__LINE__ % 200 + 1)
#define CUDA(call) CHECK((call) == cudaSuccess)
#define DRIVER(call) CHECK((call) == CUDA_SUCCESS)

const char* mistake = "right";
bool is(const char* name) { return std::strcmp(mistake, name) == 0; }

constexpr int kCount = 32;
constexpr size_t kBytes = kCount * sizeof(int);
using Values = int[kCount];

__global__ void fill(int* to, int value) { to[threadIdx.x] = value; }
__global__ void add(const int* from, int* to, int more) { to[threadIdx.x] = from[threadIdx.x] + more; }
extern "C" __global__ void scale(int* to, int factor) { to[threadIdx.x] *= factor; }

int* allocate() {
  int* memory;
  CUDA(cudaMalloc(&memory, kBytes));
  return memory;
}
bool holds(const int* memory, int value) {
  Values host;
  CUDA(cudaMemcpy(host, memory, kBytes, cudaMemcpyDeviceToHost));
  for (const int each : host) {
    if (each != value) return false;
  }
  return true;
}
cudaKernelNodeParams kernel(void* function, void** arguments) {
  cudaKernelNodeParams node{};
  node.func = function;
  node.gridDim = dim3(1);
  node.blockDim = dim3(kCount);
  node.kernelParams = arguments;
  return node;
}
void run(cudaGraphExec_t executable, cudaStream_t stream = nullptr) {
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
}

// ---- one capture whose branches are on all GPUs ----

int capture(int gpus) {
  std::vector<cudaStream_t> streams(gpus);
  std::vector<cudaEvent_t> events(gpus);
  std::vector<int*> memory(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CUDA(cudaSetDevice(gpu));
    CUDA(cudaStreamCreate(&streams[gpu]));
    CUDA(cudaEventCreateWithFlags(&events[gpu], cudaEventDisableTiming));
    memory[gpu] = allocate();
    for (int peer = 0; peer < gpus; ++peer) {
      if (peer != gpu) CUDA(cudaDeviceEnablePeerAccess(peer, 0));
    }
  }
  int* const sum = memory[0];
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
  CUDA(cudaEventRecord(events[0], streams[0]));
  fill<<<1, kCount, 0, streams[0]>>>(sum, 0);
  for (int gpu = 1; gpu < gpus; ++gpu) {
    CUDA(cudaSetDevice(gpu));
    CUDA(cudaStreamWaitEvent(streams[gpu], events[0], 0));
    cudaStreamCaptureStatus status;
    CUDA(cudaStreamIsCapturing(streams[gpu], &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    fill<<<1, kCount, 0, streams[gpu]>>>(memory[gpu], gpu);
    CUDA(cudaEventRecord(events[gpu], streams[gpu]));
  }
  CUDA(cudaSetDevice(0));
  if (!is("event")) {
    for (int gpu = 1; gpu < gpus; ++gpu) CUDA(cudaStreamWaitEvent(streams[0], events[gpu], 0));
  }
  add<<<1, kCount, 0, streams[0]>>>(memory[1], sum, 100);
  if (is("event")) {
    for (int gpu = 1; gpu < gpus; ++gpu) CUDA(cudaStreamWaitEvent(streams[0], events[gpu], 0));
  }
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(streams[0], &graph));
  size_t count;
  CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  CHECK(count == size_t(gpus) + 1);
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) run(executable, streams[0]);
  CHECK(is("event") || holds(sum, 101));
  for (int gpu = 1; gpu < gpus; ++gpu) CHECK(holds(memory[gpu], gpu));
  return 0;
}

// Two captures at a time, of different streams.
int captures(int) {
  cudaStream_t streams[2];
  cudaGraph_t graphs[2];
  unsigned long long ids[2];
  int* memory[2];
  for (int i = 0; i < 2; ++i) {
    memory[i] = allocate();
    CUDA(cudaStreamCreate(&streams[i]));
    CUDA(cudaStreamBeginCapture(streams[i], cudaStreamCaptureModeRelaxed));
  }
  for (int i = 0; i < 2; ++i) {
    cudaStreamCaptureStatus status;
    fill<<<1, kCount, 0, streams[i]>>>(memory[i], i);
    CUDA(cudaStreamGetCaptureInfo(streams[i], &status, &ids[i], nullptr, nullptr, nullptr, nullptr));
    CHECK(status == cudaStreamCaptureStatusActive);
    CUDA(cudaStreamEndCapture(streams[i], &graphs[i]));
    cudaGraphExec_t executable;
    CUDA(cudaGraphInstantiate(&executable, graphs[i], 0));
    run(executable);
    CHECK(holds(memory[i], i));
  }
  return ids[0] == ids[1];
}

// ---- nodes: what they are given, what they are asked for, clones, nodes that are left out ----

int nodes(int) {
  int *first = allocate(), *second = allocate(), one = 1, five = 5;
  cudaGraph_t graph, clone;
  CUDA(cudaGraphCreate(&graph, 0));
  cudaMemsetParams zero{};
  zero.dst = first;
  zero.elementSize = 4;
  zero.width = kCount;
  zero.height = 1;
  void* adds[] = {&first, &second, &one};
  void* scales[] = {&second, &five};
  cudaGraphNode_t clear, more, times, found[3], from[3], to[3];
  cudaKernelNodeParams adding = kernel(reinterpret_cast<void*>(add), adds), scaling = kernel(reinterpret_cast<void*>(scale), scales), got;
  CUDA(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &zero));
  CUDA(cudaGraphAddKernelNode(&more, graph, &clear, 1, &adding));
  CUDA(cudaGraphAddKernelNode(&times, graph, nullptr, 0, &scaling));
  if (!is("edge")) CUDA(cudaGraphAddDependencies(graph, &more, &times, nullptr, 1));
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  run(executable);
  if (is("edge")) return 0;
  CHECK(holds(second, 5));

  size_t count = 3;
  CUDA(cudaGraphGetRootNodes(graph, found, &count));
  CHECK(count == 1 && found[0] == clear);
  count = 3;
  CUDA(cudaGraphGetEdges(graph, from, to, nullptr, &count));
  CHECK(count == 2 && from[0] == clear && to[0] == more && from[1] == more && to[1] == times);
  count = 3;
  CUDA(cudaGraphNodeGetDependencies(times, found, nullptr, &count));
  CHECK(count == 1 && found[0] == more);
  count = 3;
  CUDA(cudaGraphNodeGetDependentNodes(more, found, nullptr, &count));
  CHECK(count == 1 && found[0] == times);
  cudaMemsetParams fills;
  CUDA(cudaGraphMemsetNodeGetParams(clear, &fills));
  CHECK(fills.dst == first && fills.width == kCount);

  CUDA(cudaGraphKernelNodeGetParams(more, &got));
  CHECK(got.func == adding.func && got.blockDim.x == kCount && *static_cast<int*>(got.kernelParams[2]) == 1);
  int twenty = 20;
  void* changed[] = {got.kernelParams[0], got.kernelParams[1], &twenty};
  got.kernelParams = changed;
  CUDA(cudaGraphExecKernelNodeSetParams(executable, more, &got));
  run(executable);
  CHECK(holds(second, 100));
  CUDA(cudaGraphNodeSetEnabled(executable, times, 0));
  unsigned is_enabled = 1;
  CUDA(cudaGraphNodeGetEnabled(executable, times, &is_enabled));
  run(executable);
  CHECK(is_enabled == 0 && holds(second, 20));

  CUDA(cudaGraphClone(&clone, graph));
  CUDA(cudaGraphNodeFindInClone(&found[0], more, clone));
  fills.value = 3;
  cudaGraphNode_t cloned_clear;
  CUDA(cudaGraphNodeFindInClone(&cloned_clear, clear, clone));
  CUDA(cudaGraphMemsetNodeSetParams(cloned_clear, &fills));
  CUDA(cudaGraphNodeFindInClone(&found[1], times, clone));
  CUDA(cudaGraphDestroyNode(found[1]));
  cudaGraphExec_t of_clone;
  CUDA(cudaGraphInstantiate(&of_clone, clone, 0));
  CUDA(cudaGraphDestroy(graph));
  run(of_clone);
  CHECK(found[0] != more && holds(second, 4));
  return 0;
}

// Captured kernels are nodes as well.
int captured(int) {
  int* const memory = allocate();
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  fill<<<1, kCount, 0, stream>>>(memory, 2);
  scale<<<1, kCount, 0, stream>>>(memory, 3);
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphNode_t all[2];
  size_t count = 2;
  CUDA(cudaGraphGetNodes(graph, all, &count));
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (cudaGraphNode_t node : all) {
    cudaGraphNodeType type;
    cudaKernelNodeParams parameters;
    CUDA(cudaGraphNodeGetType(node, &type));
    CHECK(type == cudaGraphNodeTypeKernel);
    CUDA(cudaGraphKernelNodeGetParams(node, &parameters));
    if (parameters.func != reinterpret_cast<void*>(scale)) continue;
    int ten = 10;
    void* arguments[] = {parameters.kernelParams[0], &ten};
    parameters.kernelParams = arguments;
    CUDA(cudaGraphExecKernelNodeSetParams(executable, node, &parameters));
  }
  run(executable, stream);
  return !(count == 2 && holds(memory, 20));
}

// ---- memory that a graph allocates and frees at each launch ----

int memory(int) {
  int* const result = allocate();
  int one = 1;
  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  cudaMemAllocNodeParams scratch{};
  scratch.bytesize = kBytes;
  scratch.poolProps.allocType = cudaMemAllocationTypePinned;
  scratch.poolProps.location = {cudaMemLocationTypeDevice, {0}};
  cudaGraphNode_t allocated, filled, added, freed;
  CUDA(cudaGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &scratch));
  void* fills[] = {&scratch.dptr, &one};
  void* adds[] = {&scratch.dptr, const_cast<int**>(&result), &one};
  cudaKernelNodeParams filling = kernel(reinterpret_cast<void*>(fill), fills), adding = kernel(reinterpret_cast<void*>(add), adds);
  if (!is("unfilled")) CUDA(cudaGraphAddKernelNode(&filled, graph, &allocated, 1, &filling));
  CUDA(cudaGraphAddKernelNode(&added, graph, is("unfilled") ? &allocated : &filled, 1, &adding));
  CUDA(cudaGraphAddMemFreeNode(&freed, graph, &added, 1, scratch.dptr));
  cudaGraphExec_t executable;
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) run(executable);
  CHECK(is("unfilled") || holds(result, 2));

  cudaStream_t stream;
  int* temporary;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(cudaMallocAsync(&temporary, kBytes, stream));
  fill<<<1, kCount, 0, stream>>>(temporary, 6);
  add<<<1, kCount, 0, stream>>>(temporary, result, 1);
  CUDA(cudaFreeAsync(temporary, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) run(executable, stream);
  return !(is("unfilled") || holds(result, 7));
}

// ---- an event that is recorded within a captured graph and waited for outside of it ----

int external(int) {
  int *const memory = allocate(), *const copy = allocate();
  cudaStream_t stream, other;
  cudaEvent_t event;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamCreate(&other));
  CUDA(cudaEventCreate(&event));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  fill<<<1, kCount, 0, stream>>>(memory, 8);
  if (!is("event")) CUDA(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamWaitEvent(other, event, 0));
  add<<<1, kCount, 0, other>>>(memory, copy, 1);
  CUDA(cudaDeviceSynchronize());
  return !(is("event") || holds(copy, 9));
}

// ---- copies of boxes ----

int boxes(int) {
  constexpr size_t kWidth = 5, kHeight = 3, kDepth = 2;
  unsigned char host[kDepth][kHeight][kWidth], back[kDepth][kHeight][kWidth] = {};
  for (size_t i = 0; i < sizeof host; ++i) (&host[0][0][0])[i] = static_cast<unsigned char>(i);
  cudaPitchedPtr device;
  const cudaExtent extent = make_cudaExtent(kWidth, kHeight, kDepth);
  CUDA(cudaMalloc3D(&device, extent));
  CHECK(device.pitch >= kWidth && device.ysize == kHeight);
  CUDA(cudaMemset3D(device, 99, extent));
  cudaMemcpy3DParms box{};
  box.srcPtr = make_cudaPitchedPtr(host, kWidth, kWidth, kHeight);
  box.dstPtr = device;
  box.srcPos = make_cudaPos(0, 1, 0);
  box.dstPos = make_cudaPos(1, 1, 0);
  box.extent = make_cudaExtent(4, 2, 2);
  box.kind = cudaMemcpyHostToDevice;
  CUDA(cudaMemcpy3D(&box));
  cudaMemcpy3DParms whole{};
  whole.srcPtr = device;
  whole.dstPtr = make_cudaPitchedPtr(back, kWidth, kWidth, kHeight);
  whole.extent = extent;
  whole.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaMemcpy3D(&whole));
  for (size_t z = 0; z < kDepth; ++z) {
    for (size_t y = 0; y < kHeight; ++y) {
      for (size_t x = 0; x < kWidth; ++x) CHECK(back[z][y][x] == (y < 1 || x < 1 ? 99 : host[z][y][x - 1]));
    }
  }
  int *const a = allocate(), *const b = allocate(), values[2][kCount] = {{1}, {2}};
  void* to[] = {a, b};
  const void* from[] = {values[0], values[1]};
  size_t bytes[] = {kBytes, kBytes}, first = 0;
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  CUDA(cudaMemcpyBatchAsync(to, from, bytes, 2, &attributes, &first, 1, cudaStreamPerThread));
  CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  Values got;
  CUDA(cudaMemcpy(got, b, kBytes, cudaMemcpyDeviceToHost));
  return got[0] != 2;
}

// ---- the driver: contexts, a module, launches ----

const char* const kModule = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .b8 offset[4] = {7, 0, 0, 0};
.visible .entry shift(.param .u64 to, .param .u32 more) {
  .reg .b32 %r<6>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [to];
  ld.param.u32 %r1, [more];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r3, [offset];
  add.u32 %r4, %r1, %r3;
  st.global.u32 [%rd4], %r4;
  ret;
})";

int driver(int gpus) {
  DRIVER(cuInit(0));
  char name[64];
  size_t bytes, total;
  std::vector<CUcontext> contexts(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CUdevice device;
    DRIVER(cuDeviceGet(&device, gpu));
    DRIVER(cuDeviceGetName(name, sizeof name, device));
    DRIVER(cuDeviceTotalMem(&total, device));
    DRIVER(cuDevicePrimaryCtxRetain(&contexts[gpu], device));
  }
  DRIVER(cuCtxPushCurrent(contexts[1]));
  CUdevice current;
  DRIVER(cuCtxGetDevice(&current));
  CHECK(current == 1 && total > 0 && name[0]);
  CUmodule module;
  CUfunction function;
  CUdeviceptr memory, offset;
  CUstream stream;
  CUevent event;
  DRIVER(cuModuleLoadData(&module, kModule));
  DRIVER(cuModuleGetFunction(&function, module, "shift"));
  DRIVER(cuModuleGetGlobal(&offset, &bytes, module, "offset"));
  CHECK(bytes == 4 && cuModuleGetFunction(&function, module, "none") == CUDA_ERROR_NOT_FOUND);
  DRIVER(cuMemAlloc(&memory, kBytes));
  DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DRIVER(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  unsigned more = 5;
  Values host;
  void* arguments[] = {&memory, &more};
  DRIVER(cuLaunchKernel(function, 1, 1, 1, kCount, 1, 1, 0, stream, arguments, nullptr));
  DRIVER(cuEventRecord(event, stream));
  if (!is("event")) DRIVER(cuEventSynchronize(event));
  DRIVER(cuMemcpyDtoH(host, memory, kBytes));
  CHECK(is("event") || host[kCount - 1] == 12);
  struct {
    CUdeviceptr to;
    unsigned more;
  } packed = {memory, 1};
  size_t packed_bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes, CU_LAUNCH_PARAM_END};
  DRIVER(cuLaunchKernel(function, 1, 1, 1, kCount, 1, 1, 0, stream, nullptr, extra));
  DRIVER(cuStreamSynchronize(stream));
  DRIVER(cuMemcpyDtoH(host, memory, kBytes));
  CHECK(host[0] == 8);
  int threads, blocks;
  DRIVER(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  DRIVER(cuOccupancyMaxPotentialBlockSize(&blocks, &threads, function, nullptr, 0, 0));
  CHECK(threads % 32 == 0 && blocks > 0);
  DRIVER(cuCtxPopCurrent(nullptr));
  DRIVER(cuCtxGetDevice(&current));
  DRIVER(cuMemFree(memory));
  return current;
}

// ---- what is asked for, or said for speed ----

int questions(int gpus) {
  char bus[16];
  int device = -1;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, gpu));
    CUDA(cudaDeviceGetByPCIBusId(&device, bus));
    CHECK(device == gpu);
  }
  cudaStream_t streams[2];
  unsigned long long ids[2];
  for (int i = 0; i < 2; ++i) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreate(&streams[i]));
    CUDA(cudaStreamGetId(streams[i], &ids[i]));
    CUDA(cudaStreamGetDevice(streams[i], &device));
    CHECK(device == i);
  }
  int *managed, read_mostly = -1;
  CUDA(cudaMallocManaged(&managed, kBytes));
  CUDA(cudaStreamAttachMemAsync(streams[1], managed, 0, cudaMemAttachSingle));
  CUDA(cudaMemRangeGetAttribute(&read_mostly, sizeof read_mostly, cudaMemRangeAttributeReadMostly, managed, kBytes));
  CHECK(cudaStreamAttachMemAsync(streams[1], allocate(), 0, cudaMemAttachSingle) == cudaErrorInvalidValue);
  CHECK(std::strcmp(cudaGetErrorString(cudaErrorNotSupported), "operation not supported") == 0);
  return ids[0] == ids[1] || read_mostly != 0;
}

int main(int, char** arguments) {
  int gpus = 0;
  CUDA(cudaGetDeviceCount(&gpus));
  mistake = arguments[2];
  const std::pair<const char*, int (*)(int)> programs[] = {{"capture", capture}, {"captures", captures}, {"nodes", nodes}, {"captured", captured}, {"memory", memory}, {"external", external}, {"boxes", boxes}, {"driver", driver}, {"questions", questions}};
  for (const auto& [name, program] : programs) {
    if (std::strcmp(arguments[1], name) == 0) return program(gpus);
  }
  return 250;
}
