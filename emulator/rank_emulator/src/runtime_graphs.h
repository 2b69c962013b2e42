// Graphs of CUDA: nodes with their works, copies that are executed, and their launches.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime_cuda.h"

namespace pkb::emulator {

struct Graph;

struct GraphNode {
  int type;                                    // cudaGraphNodeType
  Graph* graph = nullptr;                      // that it is of
  RankState* gpu = nullptr;                    // where it runs; null: on that of the launch
  std::vector<Work> works;
  std::vector<GraphNode*> needs;               // nodes that come before it
  std::vector<std::unique_ptr<Graph>> graphs;  // of a child graph: a copy of it; of a conditional node: its bodies
  std::vector<Graph*> handles;                 // the same, for the program
  void* condition = nullptr;                   // of a conditional node: the word that cudaGraphSetConditional writes
  int condition_type = 0;                      // cudaGraphConditionalNodeType
  Stream* body = nullptr;                      // of a conditional node: the stream of its bodies
  const GraphNode* origin = nullptr;           // of a copied graph: the node that it is a copy of
  bool is_enabled = true;
  std::shared_ptr<void> parameters;            // as they were given, of the structure that belongs to the type; null: it was captured
  std::vector<void*> arguments;                // of a kernel: what a program that asks for its parameters gets
};

// A word that decides, and the value that a launch gives it.
struct GraphCondition {
  void* word;
  uint32_t initial;
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;
  std::vector<GraphCondition> conditions;      // that a launch resets
  std::map<std::pair<RankState*, size_t>, Stream*> branches;  // of its launches, beside the stream that it is launched on
  std::shared_ptr<EventRecord> last;           // end of its last launch

  GraphNode& add(int type, std::vector<GraphNode*> needs);
};

// An executable graph lives as long as a launch of it.
struct ExecutableGraph {
  std::shared_ptr<Graph> graph;
};

// Handles, as programs have them.
inline Graph& graph_of(cudaGraph_t handle) { return *reinterpret_cast<Graph*>(handle); }
inline GraphNode* node_of(cudaGraphNode_t handle) { return reinterpret_cast<GraphNode*>(handle); }
inline cudaGraph_t handle_of(Graph* graph) { return reinterpret_cast<cudaGraph_t>(graph); }
inline cudaGraphNode_t handle_of(GraphNode* node) { return reinterpret_cast<cudaGraphNode_t>(node); }

std::unique_ptr<Graph> copy_of_graph(const Graph& graph);
// The node of a copy, or of the graphs in its nodes; null: it has none.
GraphNode* find_copy(Graph& copy, const GraphNode* origin);

// Adds captured works as nodes; the first of the stream that captures needs these.
void add_captured(Graph& graph, const std::vector<Work>& captured, const std::vector<GraphNode*>& needs);

enum class GraphMatch : uint8_t { kSame, kOtherTopology, kOtherTypes };
// Gives the nodes of an executable graph the works of those of another, if there is one for each.
GraphMatch update_graph(Graph& executable, const Graph& graph);

void launch_graph(RankState& rank, Stream& stream, const std::shared_ptr<Graph>& graph);

}  // namespace pkb::emulator
