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

// ---- updates ----

// A graph whose shape differs is refused, and the executable graph stays as it was.
// wrong: value: line
PAIR_OF_HOST(update_to_another_shape) {
  unsigned* data = r.data();
  const auto capture = [&](int kernels, bool fills) {
    cudaGraph_t graph;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    if (fills) cudaMemsetAsync(data, 0, 128, stream);
    else put<<<1, 32, 0, stream>>>(data, 1);
    for (int i = 0; i < kernels; ++i) put<<<1, 32, 0, stream>>>(data, 10);
    cudaStreamEndCapture(stream, &graph);
    return graph;
  };
  cudaGraphExec_t executable;
  cudaGraphExecUpdateResultInfo info;
  cudaMemsetAsync(data, 0, 128, stream);
  cudaGraphInstantiate(&executable, capture(1, false), 0);
  const bool longer = cudaGraphExecUpdate(executable, capture(2, false), &info) == cudaErrorGraphExecUpdateFailure && info.result == cudaGraphExecUpdateErrorTopologyChanged;
  const bool other = cudaGraphExecUpdate(executable, capture(1, true), &info) == cudaErrorGraphExecUpdateFailure && info.result == cudaGraphExecUpdateErrorNodeTypeChanged;
  cudaGetLastError();
  WRONG(cudaGraphInstantiate(&executable, capture(2, false), 0))
  cudaGraphLaunch(executable, stream);
  look<<<1, 32, 0, stream>>>(r, data, longer && other ? 11 : 0);
}

// A node keeps its handle through an update by another graph; handles of nodes of other graphs and types are refused.
// wrong: value: line
PAIR_OF_HOST(handles_of_nodes) {
  unsigned *data = r.data(), value = 1;
  void* arguments[] = {&data, &value};
  auto adds = kernel_node(reinterpret_cast<void*>(put), arguments);
  const auto fills = fill_node(data, 5);
  const auto make = [&](cudaGraphNode_t* kernel) {
    cudaGraph_t graph;
    cudaGraphNode_t fill;
    cudaGraphCreate(&graph, 0);
    cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &fills);
    cudaGraphAddKernelNode(kernel, graph, &fill, 1, &adds);
    return graph;
  };
  cudaGraphNode_t first, second;
  cudaGraphExec_t executable;
  cudaGraphInstantiate(&executable, make(&first), 0);
  const bool is_updated = cudaGraphExecUpdate(executable, make(&second), nullptr) == cudaSuccess;
  value = right ? 20 : 2;
  const bool is_set = cudaGraphExecKernelNodeSetParams(executable, first, &adds) == cudaSuccess;
  value = 300;
  const bool is_refused = cudaGraphExecKernelNodeSetParams(executable, second, &adds) == cudaErrorInvalidValue &&
                          cudaGraphExecMemsetNodeSetParams(executable, first, &fills) == cudaErrorInvalidValue;
  cudaGetLastError();
  cudaGraphLaunch(executable, stream);
  look<<<1, 32, 0, stream>>>(r, data, is_updated && is_set && is_refused ? 25 : 0);
}

// A launch of a graph comes after its launches before, on whatever streams; two graphs have no such order.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(launches_of_a_graph) {
  unsigned* data = r.data();
  cudaGraph_t graph;
  cudaGraphExec_t executable, other;
  cudaStream_t side;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaMemsetAsync(data, 0, 128, stream);
  cudaStreamSynchronize(stream);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  put<<<1, 32, 0, stream>>>(data, 1);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphInstantiate(&other, graph, 0);
  cudaGraphLaunch(executable, side);
  cudaGraphLaunch(right ? executable : other, stream);
  cudaStreamSynchronize(side);
  look<<<1, 32, 0, stream>>>(r, data, 2);
}

// ---- conditional nodes ----

__global__ void count_down(unsigned* left, cudaGraphConditionalHandle handle) {
  cudaGraphSetConditional(handle, --*left != 0);
}
__global__ void decide(cudaGraphConditionalHandle handle, unsigned value) { cudaGraphSetConditional(handle, value); }

static cudaGraphNode_t add_condition(cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type, cudaGraph_t* bodies, unsigned size) {
  cudaGraphNodeParams node{};
  node.type = cudaGraphNodeTypeConditional;
  node.conditional.handle = handle;
  node.conditional.type = type;
  node.conditional.size = size;
  cudaGraphNode_t made;
#if CUDART_VERSION >= 13000
  cudaGraphAddNode(&made, graph, needs, nullptr, count, &node);
#else
  cudaGraphAddNode(&made, graph, needs, count, &node);
#endif
  for (unsigned i = 0; i < size; ++i) bodies[i] = node.conditional.phGraph_out[i];
  return made;
}

// A body runs as long as its kernels say; what reads its sums stands behind the node.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(while_of_a_graph) {
  unsigned *data = r.data(), *left = data + 64, *out = r.out();
  cudaGraph_t graph, body;
  cudaGraphExec_t executable;
  cudaGraphNode_t copy;
  cudaGraphConditionalHandle handle;
  cudaGraphCreate(&graph, 0);
  cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault);
  const cudaGraphNode_t loop = add_condition(graph, nullptr, 0, handle, cudaGraphCondTypeWhile, &body, 1);
  cudaGraphAddMemcpyNode1D(&copy, graph, &loop, right, out, data, 128, cudaMemcpyDeviceToDevice);
  cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal);
  put<<<1, 32, 0, stream>>>(data, 2);
  count_down<<<1, 1, 0, stream>>>(left, handle);
  cudaStreamEndCapture(stream, &body);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaMemsetAsync(data, 0, 128, stream);
  for (unsigned turns = 3; turns <= 4; ++turns) {
    cudaMemcpyAsync(left, &turns, 4, cudaMemcpyHostToDevice, stream);
    cudaGraphLaunch(executable, stream);
  }
  if (right) look<<<1, 32, 0, stream>>>(r, out, 14);
}

// Two branches and a switch, whose conditions a kernel before them sets: it comes before the node that looks.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(branches_of_a_graph) {
  unsigned *data = r.data(), ones = 1, tens = 10, hundreds = 100, choice = 0, number = 1;
  void *add_one[] = {&data, &ones}, *add_ten[] = {&data, &tens}, *add_hundred[] = {&data, &hundreds};
  cudaGraph_t graph, sides[2], cases[2];
  cudaGraphExec_t executable;
  cudaGraphNode_t decides, chooses, node;
  cudaGraphConditionalHandle either, which;
  cudaGraphCreate(&graph, 0);
  cudaGraphConditionalHandleCreate(&either, graph, 1, cudaGraphCondAssignDefault);
  cudaGraphConditionalHandleCreate(&which, graph, 0, 0);
  void *of_decision[] = {&either, &choice}, *of_choice[] = {&which, &number};
  auto deciding = kernel_node(reinterpret_cast<void*>(decide), of_decision), choosing = kernel_node(reinterpret_cast<void*>(decide), of_choice);
  deciding.blockDim = choosing.blockDim = 1;
  cudaGraphAddKernelNode(&decides, graph, nullptr, 0, &deciding);
  cudaGraphAddKernelNode(&chooses, graph, &decides, 1, &choosing);
  const cudaGraphNode_t condition = add_condition(graph, &chooses, right, either, cudaGraphCondTypeIf, sides, 2);
  add_condition(graph, &condition, 1, which, cudaGraphCondTypeSwitch, cases, 2);
  const auto one = kernel_node(reinterpret_cast<void*>(put), add_one), ten = kernel_node(reinterpret_cast<void*>(put), add_ten), hundred = kernel_node(reinterpret_cast<void*>(put), add_hundred);
  cudaGraphAddKernelNode(&node, sides[0], nullptr, 0, &one);
  cudaGraphAddKernelNode(&node, sides[1], nullptr, 0, &ten);
  cudaGraphAddKernelNode(&node, cases[1], nullptr, 0, &hundred);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaMemsetAsync(data, 0, 128, stream);
  cudaGraphLaunch(executable, stream);
  if (right) look<<<1, 32, 0, stream>>>(r, data, 110);
}
