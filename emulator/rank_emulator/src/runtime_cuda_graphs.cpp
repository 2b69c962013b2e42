// libcudart: graphs. What a node does is captured; a launch gives each node a stream of its own, which waits for the nodes
// before it, and the stream of the launch waits for all.
#include <algorithm>
#include <utility>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

Graph& graph_of(cudaGraph_t handle) { return *reinterpret_cast<Graph*>(handle); }
GraphNode* node_of(cudaGraphNode_t handle) { return reinterpret_cast<GraphNode*>(handle); }
cudaGraphNode_t handle_of(GraphNode* node) { return reinterpret_cast<cudaGraphNode_t>(node); }

// The key of a node's stream among the branches of a graph.
Stream* branch_of(GraphNode* node) { return reinterpret_cast<Stream*>(node); }

// What a call would enqueue on the legacy stream.
template <class Call>
cudaError_t capture(std::vector<Work>& works, Call call) {
  return with_rank([&](RankState& rank) {
    if (rank.capturing) return cudaErrorStreamCaptureUnsupported;
    rank.capturing = rank.streams[1].get();
    const cudaError_t error = call();
    rank.capturing = nullptr;
    works = std::exchange(rank.captured, {});
    return error;
  });
}

template <class Call>
cudaError_t add_node(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type, Call call) {
  auto node = std::make_unique<GraphNode>();
  node->type = type;
  const cudaError_t error = capture(node->works, call);
  if (error != cudaSuccess) return error;
  for (size_t i = 0; i < count; ++i) node->needs.push_back(node_of(needs[i]));
  *made = handle_of(graph_of(graph).nodes.emplace_back(std::move(node)).get());
  return cudaSuccess;
}

// A copy of a graph, whose records and branches are its own.
std::unique_ptr<Graph> copy_of_graph(RankState& rank, const Graph& graph) {
  auto copy = std::make_unique<Graph>();
  std::map<EventRecord*, std::shared_ptr<EventRecord>> records;
  for (Work work : graph.works) {
    if (work.record && !work.event) {
      auto& record = records[work.record.get()];
      if (!record && work.kind == StreamOperationKind::kEventRecord) record = std::make_shared<EventRecord>(EventRecord{work.record->event, rank.world->engine.next_id++});
      if (record) work.record = record;
    }
    if (work.branch) {
      Stream*& branch = copy->branches[work.branch];
      if (!branch) branch = branch_of(copy->nodes.emplace_back(std::make_unique<GraphNode>()).get());
      work.branch = branch;
    }
    copy->works.push_back(std::move(work));
  }
  return copy;
}

// The works of all nodes, each behind those that it needs.
std::vector<Work> ordered(RankState& rank, const Graph& graph) {
  if (graph.nodes.empty()) return graph.works;
  std::vector<Work> works;
  const auto add = [&](Work work, Stream* branch) {
    work.branch = branch;
    works.push_back(std::move(work));
  };
  const auto make_record = [&] { return std::make_shared<EventRecord>(EventRecord{rank.world->engine.next_id++}); };
  const auto begin = make_record();
  std::map<const GraphNode*, std::shared_ptr<EventRecord>> ends;
  add(record_work(begin), nullptr);
  const auto visit = [&](auto& self, GraphNode* node) -> void {
    if (ends.count(node)) return;
    const auto end = ends[node] = make_record();
    for (GraphNode* const needed : node->needs) self(self, needed);
    Stream* const branch = branch_of(node);
    add(wait_work(begin), branch);
    for (const GraphNode* const needed : node->needs) add(wait_work(ends[needed]), branch);
    for (const Work& work : node->works) add(work, branch);
    if (node->child) {
      for (const Work& work : node->child->works) add(work, work.branch ? work.branch : branch);
    }
    add(record_work(end), branch);
  };
  for (const auto& node : graph.nodes) visit(visit, node.get());
  for (const auto& node : graph.nodes) add(wait_work(ends[node.get()]), nullptr);
  return works;
}

// The works of one node of a graph that has been instantiated.
template <class Call>
cudaError_t replace_works(cudaGraphExec_t executable, cudaGraphNode_t handle, Call call) {
  std::vector<Work> works;
  const cudaError_t error = capture(works, call);
  if (error != cudaSuccess) return error;
  auto& all = reinterpret_cast<Graph*>(executable)->works;
  const auto is_of_node = [&](const Work& work) { return work.branch == branch_of(node_of(handle)) && !work.record; };
  const auto first = std::find_if(all.begin(), all.end(), is_of_node);
  if (first == all.end()) return finish(cudaErrorInvalidValue);
  const auto at = first - all.begin();
  std::erase_if(all, is_of_node);
  for (Work& work : works) work.branch = branch_of(node_of(handle));
  all.insert(all.begin() + at, std::make_move_iterator(works.begin()), std::make_move_iterator(works.end()));
  return cudaSuccess;
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
    if (node.srcArray || node.dstArray || node.extent.depth > 1) return cudaErrorNotSupported;
    char* const to = static_cast<char*>(node.dstPtr.ptr) + node.dstPos.y * node.dstPtr.pitch + node.dstPos.x;
    const char* const from = static_cast<const char*>(node.srcPtr.ptr) + node.srcPos.y * node.srcPtr.pitch + node.srcPos.x;
    return copy_rows(to, node.dstPtr.pitch, from, node.srcPtr.pitch, node.extent.width, node.extent.height, cudaStreamLegacy, true, "a memcpy node");
  };
}
auto function_of(cudaHostFn_t function, void* user) {
  return [=] { return cudaLaunchHostFunc(cudaStreamLegacy, function, user); };
}
constexpr auto kNothing = [] { return cudaSuccess; };

// The child of a node, whose works are those of a graph by now.
cudaError_t set_child(RankState& rank, GraphNode& node, cudaGraph_t graph) {
  node.child = copy_of_graph(rank, Graph{ordered(rank, graph_of(graph)), {}, {}});
  return cudaSuccess;
}

// Records an event, or waits for it as it is known when the graph is launched.
cudaError_t add_event_node(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaEvent_t handle, cudaGraphNodeType type) {
  return with_rank([&](RankState& rank) {
    Event* const event = event_of(rank, handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    const cudaError_t error = add_node(made, graph, needs, count, type, kNothing);
    if (error != cudaSuccess) return error;
    const auto record = std::make_shared<EventRecord>(EventRecord{event->id, rank.world->engine.next_id++});
    Work work = type == cudaGraphNodeTypeEventRecord ? record_work(record) : wait_work(record);
    work.event = event;
    node_of(*made)->works.push_back(std::move(work));
    return cudaSuccess;
  });
}

cudaError_t add_edges(const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) node_of(to[i])->needs.push_back(node_of(from[i]));
  return cudaSuccess;
}

cudaError_t add_any(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaGraphNodeParams& node) {
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
    default: return finish(cudaErrorNotSupported);
  }
}

}  // namespace

PKB_CUDART cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = reinterpret_cast<cudaGraph_t>(new Graph{});
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaKernelNodeParams* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeKernel, launch_of(*node));
}
PKB_CUDART cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaMemcpy3DParms* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemcpy, copy_of(*node));
}
PKB_CUDART cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemcpy, copy_of(to, from, bytes));
}
PKB_CUDART cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaMemsetParams* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeMemset, fill_of(*node));
}
PKB_CUDART cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const cudaHostNodeParams* node) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeHost, function_of(node->fn, node->userData));
}
PKB_CUDART cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count) {
  return add_node(made, graph, needs, count, cudaGraphNodeTypeEmpty, kNothing);
}
PKB_CUDART cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child) {
  const cudaError_t error = add_node(made, graph, needs, count, cudaGraphNodeTypeGraph, kNothing);
  return error != cudaSuccess ? error : with_rank([&](RankState& rank) { return set_child(rank, *node_of(*made), child); });
}
PKB_CUDART cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaEvent_t event) {
  return add_event_node(made, graph, needs, count, event, cudaGraphNodeTypeEventRecord);
}
PKB_CUDART cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* made, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaEvent_t event) {
  return add_event_node(made, graph, needs, count, event, cudaGraphNodeTypeWaitEvent);
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
// Captured operations are no nodes that a program could change.
PKB_CUDART cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const auto& all = graph_of(graph).nodes;
  if (all.empty() && nodes) return finish(cudaErrorNotSupported);
  if (!nodes) {
    const auto& works = graph_of(graph).works;
    *count = all.size() + size_t(std::count_if(works.begin(), works.end(), [](const Work& work) { return !work.record; }));
    return cudaSuccess;
  }
  *count = std::min(*count, all.size());
  for (size_t i = 0; i < *count; ++i) nodes[i] = handle_of(all[i].get());
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = cudaGraphNodeType(node_of(node)->type);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

PKB_CUDART cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t handle, const cudaKernelNodeParams* node) { return capture(node_of(handle)->works, launch_of(*node)); }
PKB_CUDART cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t handle, const cudaKernelNodeParams* node) {
  return replace_works(executable, handle, launch_of(*node));
}
PKB_CUDART cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable, cudaGraphNode_t handle, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return replace_works(executable, handle, copy_of(to, from, bytes));
}
PKB_CUDART cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t handle, const cudaMemsetParams* node) {
  return replace_works(executable, handle, fill_of(*node));
}
PKB_CUDART cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t handle, const cudaHostNodeParams* node) {
  return replace_works(executable, handle, function_of(node->fn, node->userData));
}

PKB_CUDART cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return with_rank([&](RankState& rank) {
    *executable = reinterpret_cast<cudaGraphExec_t>(new Graph{ordered(rank, graph_of(graph)), {}, {}});
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
PKB_CUDART cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphInstantiateParams* wanted) {
  wanted->result_out = cudaGraphInstantiateSuccess;
  return cudaGraphInstantiate(executable, graph, wanted->flags);
}
// Graphs of other nodes are taken as well.
PKB_CUDART cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  return with_rank([&](RankState& rank) {
    reinterpret_cast<Graph*>(executable)->works = ordered(rank, graph_of(graph));
    if (info) *info = {cudaGraphExecUpdateSuccess, nullptr, nullptr};
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t handle) {
  return with_stream(handle, [](RankState&, Stream&) { return cudaSuccess; });
}

PKB_CUDART cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    std::map<EventRecord*, std::shared_ptr<EventRecord>> records;  // of this launch
    auto& graph = *reinterpret_cast<Graph*>(executable);
    for (Work work : graph.works) {
      if (work.event) {  // known outside of the graph
        Event& event = *work.event;
        if (work.kind == StreamOperationKind::kEventRecord) event.last = std::make_shared<EventRecord>(EventRecord{event.id, rank.world->engine.next_id++});
        if (!event.last) continue;
        work.record = event.last;
      } else if (work.record) {
        auto& record = records[work.record.get()];
        if (!record && work.kind == StreamOperationKind::kEventRecord) record = std::make_shared<EventRecord>(EventRecord{work.record->event, rank.world->engine.next_id++});
        if (record) work.record = record;
      }
      Stream* to = &stream;
      if (Stream* const branch = std::exchange(work.branch, nullptr)) {
        Stream*& of_launch = graph.branches[branch];
        if (!of_launch) of_launch = rank.world->add_stream(rank, StreamKind::kNonBlocking);
        to = of_launch;
      }
      rank.world->enqueue(*to, std::move(work));
    }
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Graph*>(executable);
  return cudaSuccess;
}
