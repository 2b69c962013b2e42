// Graphs that are built node by node, and changed, and a mistake of each.
#include "pairs.cuh"

__global__ void put(unsigned* to, unsigned value) { to[threadIdx.x] += value; }
__global__ void look(Rank r, const unsigned* from, unsigned expected) { CHECK(from[threadIdx.x] == expected); }

static cudaKernelNodeParams kernel_node(void* function, void** arguments) {
  cudaKernelNodeParams node{};
  node.func = function;
  node.gridDim = 1;
  node.blockDim = 32;
  node.kernelParams = arguments;
  return node;
}
static cudaMemsetParams fill_node(unsigned* to, unsigned value) {
  cudaMemsetParams node{};
  node.dst = to;
  node.value = value;
  node.elementSize = 4;
  node.width = 32;
  node.height = 1;
  return node;
}

// A fill, a kernel, a copy and a function of the host: each node waits for those that it names.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(nodes_in_order) {
  unsigned *data = r.data(), value = 3;
  void* arguments[] = {&data, &value};
  const auto adds = kernel_node(reinterpret_cast<void*>(put), arguments);
  const auto fills = fill_node(data, 5);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaGraphNode_t fill, kernel, copy, calls;
  int runs = 0;
  cudaHostNodeParams counts{};
  counts.fn = [](void* count) { ++*static_cast<int*>(count); };
  counts.userData = &runs;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &fills);
  cudaGraphAddKernelNode(&kernel, graph, &fill, right, &adds);
  cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, r.out(), data, 128, cudaMemcpyDeviceToDevice);
  cudaGraphAddHostNode(&calls, graph, &copy, 1, &counts);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  for (int i = 0; i < 2; ++i) cudaGraphLaunch(executable, stream);
  look<<<1, 32, 0, stream>>>(r, r.out(), 8);
  cudaStreamSynchronize(stream);
  if (runs != 2) look<<<1, 32, 0, stream>>>(r, r.out(), 0);
}

// A graph is updated from another capture, and one of its nodes gets other arguments; what follows waits for the launch.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(graph_is_updated) {
  unsigned *data = r.data(), value = 1;
  void* arguments[] = {&data, &value};
  auto adds = kernel_node(reinterpret_cast<void*>(put), arguments);
  cudaGraph_t graph, captured;
  cudaGraphExec_t executable;
  cudaGraphNode_t kernel;
  cudaStream_t side;
  cudaGraphExecUpdateResultInfo info;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaMemsetAsync(data, 0, 128, stream);
  cudaGraphCreate(&graph, 0);
  cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &adds);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, stream);
  value = 10;
  cudaGraphExecKernelNodeSetParams(executable, kernel, &adds);
  cudaGraphLaunch(executable, stream);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  put<<<1, 32, 0, stream>>>(data, 100);
  cudaStreamEndCapture(stream, &captured);
  if (cudaGraphExecUpdate(executable, captured, &info) != cudaSuccess) return;
  cudaGraphLaunch(executable, right ? stream : side);
  look<<<1, 32, 0, stream>>>(r, data, 111);
}

// A child graph fills and adds behind a node of its parent, and a node behind it reads what it has written.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(child_graph_in_its_place) {
  unsigned *data = r.data(), *out = r.out(), value = 5;
  void* arguments[] = {&data, &value};
  const auto adds = kernel_node(reinterpret_cast<void*>(put), arguments);
  const cudaMemsetParams fills = {data, 0, 0, 4, 32, 1};
  cudaGraph_t graph, child;
  cudaGraphExec_t executable;
  cudaGraphNode_t fill, kernel, first, second, copy;
  cudaGraphCreate(&child, 0);
  cudaGraphAddMemsetNode(&fill, child, nullptr, 0, &fills);
  cudaGraphAddKernelNode(&kernel, child, &fill, 1, &adds);
  cudaGraphCreate(&graph, 0);
  cudaGraphAddChildGraphNode(&first, graph, nullptr, 0, child);
  cudaGraphAddChildGraphNode(&second, graph, &first, right, child);
  cudaGraphDestroy(child);
  cudaGraphAddMemcpyNode1D(&copy, graph, &second, 1, out, data, 128, cudaMemcpyDeviceToDevice);
  cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < 2; ++i) cudaGraphLaunch(executable, stream);
  look<<<1, 32, 0, stream>>>(r, out, 5);
}

// A graph waits for an event of another stream, and records one that the other stream waits for.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(graph_waits_for_an_event) {
  unsigned *data = r.data(), value = 5;
  void* arguments[] = {&data, &value};
  const auto adds = kernel_node(reinterpret_cast<void*>(put), arguments);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaGraphNode_t waits, kernel, records;
  cudaEvent_t filled, added;
  cudaStream_t side;
  cudaEventCreate(&filled);
  cudaEventCreate(&added);
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaGraphCreate(&graph, 0);
  cudaGraphAddEventWaitNode(&waits, graph, nullptr, 0, filled);
  cudaGraphAddKernelNode(&kernel, graph, &waits, right, &adds);
  cudaGraphAddEventRecordNode(&records, graph, &kernel, 1, added);
  cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < 2; ++i) {
    cudaMemsetAsync(data, 0, 128, side);
    cudaEventRecord(filled, side);
    cudaGraphLaunch(executable, stream);
    cudaStreamWaitEvent(side, added, 0);
  }
  look<<<1, 32, 0, side>>>(r, data, 5);
}
