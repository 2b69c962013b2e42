// libcudart: graphs, their nodes and their executable copies.
#include <algorithm>
#include <utility>

#include "runtime_cuda.h"
#include "runtime_graphs.h"

using namespace pkb::emulator;

namespace {

ExecutableGraph& executable_of(cudaGraphExec_t handle) { return *reinterpret_cast<ExecutableGraph*>(handle); }

// What a call would enqueue on the legacy stream.
template <class Call>
cudaError_t capture(std::vector<Work>& works, Call call) {
  return with_rank([&](RankState& rank) {
    Stream& legacy = *rank.streams[1];
    if (rank.world->capture_of(legacy)) return cudaErrorStreamCaptureUnsupported;
    auto& captures = rank.world->captures_of(rank);
    Capture* const own = captures.emplace_back(std::make_unique<Capture>(Capture{&legacy, 0, {}, {}, nullptr, {}})).get();
    const cudaError_t error = call();
    if (error == cudaSuccess) works = std::move(own->works);
    for (Work& work : works) work.gpu = nullptr;
    std::erase_if(captures, [&](const auto& each) { return each.get() == own; });
    return error;
  });
}

std::vector<GraphNode*> nodes_of(const cudaGraphNode_t* handles, size_t count) {
  std::vector<GraphNode*> nodes;
  for (size_t i = 0; i < count; ++i) nodes.push_back(node_of(handles[i]));
  return nodes;
}

template <class Call>
cudaError_t add_node(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type, Call call, std::shared_ptr<void> parameters = nullptr) {
  std::vector<Work> works;
  const cudaError_t error = capture(works, call);
  if (error != cudaSuccess) return error;
  GraphNode& node = graph_of(graph).add(type, nodes_of(needs, count));
  node.gpu = calling_rank();
  node.works = std::move(works);
  node.parameters = std::move(parameters);
  *made = handle_of(&node);
  return cudaSuccess;
}

// Of a node, and of the node of an executable graph that is its copy.
template <class Call>
cudaError_t replace_works(GraphNode* node, cudaGraphNodeType type, Call call, std::shared_ptr<void> parameters = nullptr) {
  if (!node || node->type != type) return finish(cudaErrorInvalidValue);
  node->parameters = std::move(parameters);
  return capture(node->works, call);
}
template <class T>
std::shared_ptr<void> kept(const T& parameters) {
  return std::make_shared<T>(parameters);
}
template <class Call>
cudaError_t replace_works(cudaGraphExec_t executable, cudaGraphNode_t handle, cudaGraphNodeType type, Call call) {
  return replace_works(find_copy(*executable_of(executable).graph, node_of(handle)), type, call);
}

auto launch_of(const cudaKernelNodeParams& node) {
  return [node] {
    return node.kernelParams ? cudaLaunchKernel(node.func, node.gridDim, node.blockDim, node.kernelParams, node.sharedMemBytes, cudaStreamLegacy) : cudaErrorNotSupported;
  };
}
auto fill_of(const cudaMemsetParams& node) {
  return [node] {
    return fill_rows(node.dst, node.pitch, node.value, node.width * node.elementSize, node.height, cudaStreamLegacy, true, "a memset node", node.elementSize);
  };
}
auto copy_of(void* to, const void* from, size_t bytes) {
  return [=] { return copy(to, from, bytes, cudaStreamLegacy, true, "a memcpy node"); };
}
auto copy_of(const cudaMemcpy3DParms& node) {
  return [node] {
    return copy_box(node, cudaStreamLegacy, true, "a memcpy node");
  };
}
auto function_of(cudaHostFn_t function, void* user) {
  return [=] { return cudaLaunchHostFunc(cudaStreamLegacy, function, user); };
}
constexpr auto kNothing = [] { return cudaSuccess; };

// Records an event, or waits for it as it is known when the graph is launched.
cudaError_t set_event(GraphNode* node, cudaGraphNodeType type, cudaEvent_t handle) {
  return with_rank([&](RankState& rank) {
    Event* const event = event_of(rank, handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (!node || node->type != type) return cudaErrorInvalidValue;
    const auto record = std::make_shared<EventRecord>(EventRecord{event->id, rank.world->engine.next_id++});
    Work work = type == cudaGraphNodeTypeEventRecord ? record_work(record) : wait_work(record);
    work.event = event;
    node->works = {std::move(work)};
    return cudaSuccess;
  });
}
cudaError_t add_event_node(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaEvent_t handle, cudaGraphNodeType type) {
  GraphNode node{};
  node.type = type;
  const cudaError_t error = set_event(&node, type, handle);
  if (error != cudaSuccess) return error;
  GraphNode& added = graph_of(graph).add(type, nodes_of(needs, count));
  added.works = std::move(node.works);
  *made = handle_of(&added);
  return cudaSuccess;
}

cudaError_t add_condition(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaConditionalNodeParams& wanted) {
  const bool is_while = wanted.type == cudaGraphCondTypeWhile;
  if (wanted.size == 0 || (is_while && wanted.size > 1) || (wanted.type == cudaGraphCondTypeIf && wanted.size > 2)) return finish(cudaErrorInvalidValue);
  GraphNode& node = graph_of(graph).add(cudaGraphNodeTypeConditional, nodes_of(needs, count));
  node.condition = reinterpret_cast<void*>(wanted.handle);
  node.condition_type = wanted.type;
  for (unsigned i = 0; i < wanted.size; ++i) node.handles.push_back(node.graphs.emplace_back(std::make_unique<Graph>()).get());
  wanted.phGraph_out = reinterpret_cast<cudaGraph_t*>(node.handles.data());
  *made = handle_of(&node);
  return cudaSuccess;
}

cudaError_t add_edges(const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) node_of(to[i])->needs.push_back(node_of(from[i]));
  return cudaSuccess;
}

cudaError_t add_any(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeParams& node) {
  switch (node.type) {
    case cudaGraphNodeTypeKernel: {
      const cudaKernelNodeParams kernel{node.kernel.func, node.kernel.gridDim, node.kernel.blockDim, node.kernel.sharedMemBytes, node.kernel.kernelParams, node.kernel.extra};
      return cudaGraphAddKernelNode(made, graph, needs, count, &kernel);
    }
    case cudaGraphNodeTypeMemcpy: return cudaGraphAddMemcpyNode(made, graph, needs, count, &node.memcpy.copyParams);
    case cudaGraphNodeTypeMemset: return add_node(made, graph, needs, count, node.type, fill_of({node.memset.dst, node.memset.pitch, node.memset.value, node.memset.elementSize, node.memset.width, node.memset.height}));
    case cudaGraphNodeTypeHost: return add_node(made, graph, needs, count, node.type, function_of(node.host.fn, node.host.userData));
    case cudaGraphNodeTypeGraph: return cudaGraphAddChildGraphNode(made, graph, needs, count, node.graph.graph);
    case cudaGraphNodeTypeWaitEvent: return cudaGraphAddEventWaitNode(made, graph, needs, count, node.eventWait.event);
    case cudaGraphNodeTypeEventRecord: return cudaGraphAddEventRecordNode(made, graph, needs, count, node.eventRecord.event);
    case cudaGraphNodeTypeEmpty: return cudaGraphAddEmptyNode(made, graph, needs, count);
    case cudaGraphNodeTypeMemAlloc: {
      cudaMemAllocNodeParams allocation{node.alloc.poolProps, node.alloc.accessDescs, node.alloc.accessDescCount, node.alloc.bytesize, nullptr};
      const cudaError_t error = cudaGraphAddMemAllocNode(made, graph, needs, count, &allocation);
      node.alloc.dptr = allocation.dptr;
      return error;
    }
    case cudaGraphNodeTypeMemFree: return cudaGraphAddMemFreeNode(made, graph, needs, count, node.free.dptr);
    case cudaGraphNodeTypeConditional: return add_condition(made, graph, needs, count, node.conditional);
    default: return finish(cudaErrorNotSupported);
  }
}

cudaError_t update(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  const GraphMatch match = update_graph(*executable_of(executable).graph, graph_of(graph));
  const auto result = match == GraphMatch::kSame          ? cudaGraphExecUpdateSuccess
                      : match == GraphMatch::kOtherTypes ? cudaGraphExecUpdateErrorNodeTypeChanged
                                                         : cudaGraphExecUpdateErrorTopologyChanged;
  if (info) *info = {result, nullptr, nullptr};
  return match == GraphMatch::kSame ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
}

}  // namespace

PKB_CUDART cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = handle_of(new Graph{});
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphClone(cudaGraph_t* copy, cudaGraph_t graph) {
  *copy = handle_of(copy_of_graph(graph_of(graph)).release());
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* found, cudaGraphNode_t origin, cudaGraph_t copy) {
  *found = handle_of(find_copy(graph_of(copy), node_of(origin)));
  return *found ? cudaSuccess : finish(cudaErrorInvalidValue);
}
PKB_CUDART cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaKernelNodeParams* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeKernel, launch_of(*node));
}
PKB_CUDART cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaMemcpy3DParms* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemcpy, copy_of(*node), kept(*node));
}
PKB_CUDART cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemcpy, copy_of(to, from, bytes));
}
PKB_CUDART cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaMemsetParams* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemset, fill_of(*node), kept(*node));
}
PKB_CUDART cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaHostNodeParams* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeHost, function_of(node->fn, node->userData), kept(*node));
}
PKB_CUDART cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeEmpty, kNothing);
}
PKB_CUDART cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child) {
  GraphNode& node = graph_of(graph).add(cudaGraphNodeTypeGraph, nodes_of(needs, count));
  node.handles.push_back(node.graphs.emplace_back(copy_of_graph(graph_of(child))).get());
  *made = handle_of(&node);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t handle, cudaGraph_t* graph) {
  const GraphNode& node = *node_of(handle);
  if (node.type != cudaGraphNodeTypeGraph) return finish(cudaErrorInvalidValue);
  *graph = handle_of(node.handles[0]);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaEvent_t event) {
  return add_event_node(made, graph, needs, count, event, cudaGraphNodeTypeEventRecord);
}
PKB_CUDART cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaEvent_t event) {
  return add_event_node(made, graph, needs, count, event, cudaGraphNodeTypeWaitEvent);
}
// Memory that stays where it is, whatever becomes of the graph.
PKB_CUDART cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaMemAllocNodeParams* node) {
  return with_rank([&](RankState& rank) {
    const int device = node->poolProps.location.id;
    if (node->poolProps.location.type != cudaMemLocationTypeDevice || device < 0 || size_t(device) >= rank.world->ranks.size()) return cudaErrorInvalidValue;
    RankState& of = rank.world->visible(rank, size_t(device));
    const cudaError_t error = allocate(of, &node->dptr, node->bytesize);
    if (error != cudaSuccess) return error;
    const auto found = of.allocations.find(reinterpret_cast<uint64_t>(node->dptr));
    if (found != of.allocations.end()) found->second.is_of_graph = true;
    return add_node(made, graph, needs, count, cudaGraphNodeTypeMemAlloc, kNothing, kept(*node));
  });
}
PKB_CUDART cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, void* memory) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemFree, [memory] { return cudaFreeAsync(memory, cudaStreamLegacy); }, kept(memory));
}
#if CUDART_VERSION >= 13000
PKB_CUDART cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) { return add_edges(from, to, count); }
PKB_CUDART cudaError_t cudaGraphAddNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, const cudaGraphEdgeData*, size_t count, cudaGraphNodeParams* node) {
  return add_any(made, graph, needs, count, *node);
}
#else
PKB_CUDART cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) { return add_edges(from, to, count); }
PKB_CUDART cudaError_t cudaGraphAddNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeParams* node) {
  return add_any(made, graph, needs, count, *node);
}
#endif
// The handle is the address of the word that kernels set.
PKB_CUDART cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph, unsigned value, unsigned flags) {
  return with_rank([&](RankState& rank) {
    void* word = nullptr;
    const cudaError_t error = allocate(rank, &word, sizeof value);
    if (error != cudaSuccess) return error;
    *handle = reinterpret_cast<cudaGraphConditionalHandle>(word);
    if (flags & cudaGraphCondAssignDefault) graph_of(graph).conditions.push_back({word, value});
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const auto& all = graph_of(graph).nodes;
  if (nodes) {
    for (size_t i = 0; i < *count; ++i) nodes[i] = i < all.size() ? handle_of(all[i].get()) : nullptr;
  }
  *count = nodes ? std::min(*count, all.size()) : all.size();
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = cudaGraphNodeType(node_of(node)->type);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

// ---- nodes that change ----

PKB_CUDART cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* wanted) { return replace_works(node_of(node), cudaGraphNodeTypeKernel, launch_of(*wanted)); }
PKB_CUDART cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* wanted) { return replace_works(node_of(node), cudaGraphNodeTypeMemcpy, copy_of(*wanted), kept(*wanted)); }
PKB_CUDART cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return replace_works(node_of(node), cudaGraphNodeTypeMemcpy, copy_of(to, from, bytes));
}
PKB_CUDART cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* wanted) { return replace_works(node_of(node), cudaGraphNodeTypeMemset, fill_of(*wanted), kept(*wanted)); }
PKB_CUDART cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* wanted) { return replace_works(node_of(node), cudaGraphNodeTypeHost, function_of(wanted->fn, wanted->userData), kept(*wanted)); }
PKB_CUDART cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) { return set_event(node_of(node), cudaGraphNodeTypeEventRecord, event); }
PKB_CUDART cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) { return set_event(node_of(node), cudaGraphNodeTypeWaitEvent, event); }

PKB_CUDART cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node, const cudaKernelNodeParams* wanted) {
  return replace_works(executable, node, cudaGraphNodeTypeKernel, launch_of(*wanted));
}
PKB_CUDART cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node, const cudaMemcpy3DParms* wanted) {
  return replace_works(executable, node, cudaGraphNodeTypeMemcpy, copy_of(*wanted));
}
PKB_CUDART cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable, cudaGraphNode_t node, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return replace_works(executable, node, cudaGraphNodeTypeMemcpy, copy_of(to, from, bytes));
}
PKB_CUDART cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node, const cudaMemsetParams* wanted) {
  return replace_works(executable, node, cudaGraphNodeTypeMemset, fill_of(*wanted));
}
PKB_CUDART cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node, const cudaHostNodeParams* wanted) {
  return replace_works(executable, node, cudaGraphNodeTypeHost, function_of(wanted->fn, wanted->userData));
}
PKB_CUDART cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t executable, cudaGraphNode_t node, cudaEvent_t event) {
  return set_event(find_copy(*executable_of(executable).graph, node_of(node)), cudaGraphNodeTypeEventRecord, event);
}
PKB_CUDART cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t executable, cudaGraphNode_t node, cudaEvent_t event) {
  return set_event(find_copy(*executable_of(executable).graph, node_of(node)), cudaGraphNodeTypeWaitEvent, event);
}
PKB_CUDART cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t handle, cudaGraph_t child) {
  GraphNode* const node = find_copy(*executable_of(executable).graph, node_of(handle));
  if (!node || node->type != cudaGraphNodeTypeGraph) return finish(cudaErrorInvalidValue);
  return update_graph(*node->graphs[0], graph_of(child)) == GraphMatch::kSame ? cudaSuccess : finish(cudaErrorInvalidValue);
}
PKB_CUDART cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t executable, cudaGraphNode_t handle, unsigned is_enabled) {
  GraphNode* const node = find_copy(*executable_of(executable).graph, node_of(handle));
  if (!node || node->type > cudaGraphNodeTypeMemset) return finish(cudaErrorInvalidValue);  // of kernels, copies and fills
  node->is_enabled = is_enabled != 0;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t executable, cudaGraphNode_t handle, unsigned* is_enabled) {
  const GraphNode* const node = find_copy(*executable_of(executable).graph, node_of(handle));
  if (!node || node->type > cudaGraphNodeTypeMemset) return finish(cudaErrorInvalidValue);
  *is_enabled = node->is_enabled;
  return cudaSuccess;
}

// ---- executable graphs ----

PKB_CUDART cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new ExecutableGraph{copy_of_graph(graph_of(graph))});
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
PKB_CUDART cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphInstantiateParams* wanted) {
  wanted->result_out = cudaGraphInstantiateSuccess;
  return cudaGraphInstantiate(executable, graph, wanted->flags);
}
PKB_CUDART cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) { return finish(update(executable, graph, info)); }
PKB_CUDART cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t handle) {
  return with_stream(handle, [](RankState&, Stream&) { return cudaSuccess; });
}
PKB_CUDART cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    if (rank.world->capture_of(stream)) return cudaErrorStreamCaptureUnsupported;
    launch_graph(rank, stream, executable_of(executable).graph);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete &executable_of(executable);
  return cudaSuccess;
}
