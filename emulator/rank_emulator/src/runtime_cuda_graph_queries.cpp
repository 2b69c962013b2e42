// libcudart: what a graph consists of, parameters of its nodes, changes of its edges, objects that it keeps.
#include <algorithm>
#include <utility>

#include "runtime_cuda.h"
#include "runtime_graphs.h"

using namespace pkb::emulator;

namespace {

// As they were given; those of captured copies and fills are not known.
template <class T>
cudaError_t give_parameters(cudaGraphNode_t handle, cudaGraphNodeType type, T* parameters) {
  const GraphNode& node = *node_of(handle);
  if (node.type != int(type)) return finish(cudaErrorInvalidValue);
  if (!node.parameters) return finish(cudaErrorNotSupported);
  *parameters = *static_cast<const T*>(node.parameters.get());
  return cudaSuccess;
}

using Edge = std::pair<GraphNode*, GraphNode*>;

std::vector<Edge> edges_of(const Graph& graph) {
  std::vector<Edge> edges;
  for (const auto& node : graph.nodes) {
    for (GraphNode* const needed : node->needs) edges.push_back({needed, node.get()});
  }
  return edges;
}

// Gives at most *count nodes, or their number alone.
cudaError_t give(const std::vector<GraphNode*>& all, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) {
    for (size_t i = 0; i < std::min(*count, all.size()); ++i) nodes[i] = handle_of(all[i]);
    *count = std::min(*count, all.size());
  } else {
    *count = all.size();
  }
  return cudaSuccess;
}

cudaError_t give_edges(const Graph& graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
  std::vector<GraphNode*> begins, ends;
  for (const auto& [begin, end] : edges_of(graph)) {
    begins.push_back(begin);
    ends.push_back(end);
  }
  size_t again = *count;
  give(begins, from, count);
  return to ? give(ends, to, &again) : cudaSuccess;
}

std::vector<GraphNode*> dependents_of(const GraphNode* node) {
  std::vector<GraphNode*> found;
  for (const auto& each : node->graph->nodes) {
    if (std::find(each->needs.begin(), each->needs.end(), node) != each->needs.end()) found.push_back(each.get());
  }
  return found;
}

cudaError_t remove_edges(const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) std::erase(node_of(to[i])->needs, node_of(from[i]));
  return cudaSuccess;
}

struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  int references;
};

cudaError_t release(cudaUserObject_t handle, unsigned count) {
  auto* const object = reinterpret_cast<UserObject*>(handle);
  object->references -= int(count);
  if (object->references > 0) return cudaSuccess;
  object->destroy(object->pointer);
  delete object;
  return cudaSuccess;
}

}  // namespace

PKB_CUDART cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  std::vector<GraphNode*> all;
  for (const auto& node : graph_of(handle).nodes) {
    if (node->needs.empty()) all.push_back(node.get());
  }
  return give(all, nodes, count);
}

#if CUDART_VERSION >= 13000
PKB_CUDART cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* data, size_t* count) {
  const cudaError_t error = give_edges(graph_of(graph), from, to, count);
  if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
  return error;
}
PKB_CUDART cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, cudaGraphEdgeData* data, size_t* count) {
  const cudaError_t error = give(node_of(node)->needs, needs, count);
  if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
  return error;
}
PKB_CUDART cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* dependents, cudaGraphEdgeData* data, size_t* count) {
  const cudaError_t error = give(dependents_of(node_of(node)), dependents, count);
  if (data) std::fill_n(data, *count, cudaGraphEdgeData{});
  return error;
}
PKB_CUDART cudaError_t cudaGraphRemoveDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) { return remove_edges(from, to, count); }
#else
PKB_CUDART cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) { return give_edges(graph_of(graph), from, to, count); }
PKB_CUDART cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, size_t* count) { return give(node_of(node)->needs, needs, count); }
PKB_CUDART cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* dependents, size_t* count) { return give(dependents_of(node_of(node)), dependents, count); }
PKB_CUDART cudaError_t cudaGraphRemoveDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) { return remove_edges(from, to, count); }
#endif

PKB_CUDART cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle) {
  const GraphNode* const node = node_of(handle);
  for (GraphNode* const dependent : dependents_of(node)) std::erase(dependent->needs, node);
  std::erase_if(node->graph->nodes, [&](const auto& each) { return each.get() == node; });
  return cudaSuccess;
}

// The arguments lie in memory of the node until its parameters are set.
PKB_CUDART cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t handle, cudaKernelNodeParams* parameters) {
  GraphNode& node = *node_of(handle);
  const KernelLaunch* const launch = node.works.empty() ? nullptr : node.works.front().launch.get();
  if (!launch || !launch->function) return finish(cudaErrorNotSupported);
  return with_rank([&](RankState& rank) {
    RankState& gpu = node.gpu ? *node.gpu : rank;
    const Kernel* const kernel = gpu.world->kernel(gpu, launch->function);
    if (!kernel) return cudaErrorInvalidDeviceFunction;
    node.arguments.clear();
    for (const Variable& parameter : kernel->function->parameters) node.arguments.push_back(const_cast<uint8_t*>(launch->parameters.data()) + parameter.offset);
    const auto size = [](const uint32_t (&from)[3]) { return dim3(from[0], from[1], from[2]); };
    *parameters = {const_cast<void*>(launch->function), size(launch->grid), size(launch->block), launch->dynamic_shared, node.arguments.data(), nullptr};
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* parameters) { return give_parameters(node, cudaGraphNodeTypeMemcpy, parameters); }
PKB_CUDART cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* parameters) { return give_parameters(node, cudaGraphNodeTypeMemset, parameters); }
PKB_CUDART cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* parameters) { return give_parameters(node, cudaGraphNodeTypeHost, parameters); }
PKB_CUDART cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, cudaMemAllocNodeParams* parameters) { return give_parameters(node, cudaGraphNodeTypeMemAlloc, parameters); }
PKB_CUDART cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* memory) { return give_parameters(node, cudaGraphNodeTypeMemFree, static_cast<void**>(memory)); }

PKB_CUDART cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy, unsigned references, unsigned) {
  *object = reinterpret_cast<cudaUserObject_t>(new UserObject{pointer, destroy, int(references)});
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  reinterpret_cast<UserObject*>(object)->references += int(count);
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) { return release(object, count); }
// Graphs and their instances keep objects until the world ends: launches may be under way when they are destroyed.
PKB_CUDART cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t object, unsigned count, unsigned flags) {
  return flags & cudaGraphUserObjectMove ? cudaSuccess : cudaUserObjectRetain(object, count);
}
PKB_CUDART cudaError_t cudaGraphReleaseUserObject(cudaGraph_t, cudaUserObject_t object, unsigned count) { return release(object, count); }
