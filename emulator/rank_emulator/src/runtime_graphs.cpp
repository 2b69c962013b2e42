#include "runtime_graphs.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace pkb::emulator {
namespace {

int type_of(const Work& work) {
  switch (work.kind) {
    case StreamOperationKind::kCopy: return cudaGraphNodeTypeMemcpy;
    case StreamOperationKind::kFill: return cudaGraphNodeTypeMemset;
    case StreamOperationKind::kHostFunction: return cudaGraphNodeTypeHost;
    case StreamOperationKind::kEventRecord: return cudaGraphNodeTypeEventRecord;
    case StreamOperationKind::kEventWait: return cudaGraphNodeTypeWaitEvent;
    default: return cudaGraphNodeTypeKernel;
  }
}

// ---- launches ----

// A node of a graph, or of one in its nodes, behind others.
struct GraphStep {
  GraphNode* node;
  std::vector<size_t> needs;
  bool has_works;
};

// Adds the steps of a graph, whose first nodes need `before`; returns those that nothing of it needs.
std::vector<size_t> add_steps(const Graph& graph, const std::vector<size_t>& before, std::vector<GraphStep>& steps) {
  std::map<const GraphNode*, size_t> step_of;
  std::vector<size_t> sinks;
  const auto visit = [&](auto& self, GraphNode* node) -> void {
    if (step_of.count(node)) return;
    step_of[node] = 0;  // a graph with a cycle has an end, too
    for (GraphNode* const needed : node->needs) self(self, needed);
    std::vector<size_t> needs;
    for (const GraphNode* const needed : node->needs) needs.push_back(step_of[needed]);
    if (needs.empty()) needs = before;
    if (node->type == cudaGraphNodeTypeGraph && node->is_enabled) {
      const std::vector<size_t> ends = add_steps(*node->graphs[0], needs, steps);
      if (!ends.empty()) needs = ends;
    }
    std::sort(needs.begin(), needs.end());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    for (const size_t need : needs) std::erase(sinks, need);
    step_of[node] = steps.size();
    sinks.push_back(steps.size());
    steps.push_back({node, std::move(needs), node->is_enabled});
  };
  for (const auto& node : graph.nodes) visit(visit, node.get());
  return sinks;
}

std::shared_ptr<EventRecord> make_record(World& world) { return std::make_shared<EventRecord>(EventRecord{world.engine.next_id++, world.engine.next_id++}); }

class GraphLaunch {
 public:
  // `of_host`: whether a thread of the host enqueues it, and not a node that runs.
  GraphLaunch(RankState& rank, Stream& stream, std::shared_ptr<Graph> graph, bool of_host) : rank_(rank), stream_(stream), graph_(std::move(graph)), of_host_(of_host) {}

  void run() {
    const std::vector<size_t> sinks = add_steps(*graph_, {}, steps_);
    choose_branches();
    std::vector<bool> is_recorded(steps_.size());
    for (const GraphStep& step : steps_) {
      for (const size_t need : step.needs) is_recorded[need] = is_recorded[need] || branch_[need] != branch_[size_t(&step - steps_.data())];
    }
    for (const size_t sink : sinks) is_recorded[sink] = is_recorded[sink] || branch_[sink] != 0;
    std::shared_ptr<EventRecord> begin;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (branch_[i] == 0 || !steps_[i].needs.empty()) continue;
      if (!begin) enqueue(stream_, record_work(begin = make_record(world())));
    }
    std::vector<std::shared_ptr<EventRecord>> ends(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i) {
      Stream& to = stream_of(branch_[i], steps_[i]);
      if (branch_[i] && steps_[i].needs.empty()) enqueue(to, wait_work(begin));
      for (const size_t need : steps_[i].needs) {
        if (branch_[need] != branch_[i]) enqueue(to, wait_work(ends[need]));
      }
      if (steps_[i].has_works) enqueue_node(to, *steps_[i].node);
      if (is_recorded[i]) enqueue(to, record_work(ends[i] = make_record(world())));
    }
    for (const size_t sink : sinks) {
      if (branch_[sink]) enqueue(stream_, wait_work(ends[sink]));
    }
  }

 private:
  World& world() { return *rank_.world; }
  void enqueue(Stream& to, Work work) {
    if (of_host_) world().enqueue(to, std::move(work));
    else world().enqueue_of_node(to, std::move(work));
  }

  // A node goes on in the stream of one that it needs, where no other has done so.
  void choose_branches() {
    std::vector<bool> is_continued(steps_.size());
    bool is_stream_free = true;
    size_t branches = 1;
    for (const GraphStep& step : steps_) {
      const auto free = std::find_if(step.needs.begin(), step.needs.end(), [&](size_t need) { return !is_continued[need] && gpu_of(steps_[need]) == gpu_of(step); });
      if (free != step.needs.end()) {
        is_continued[*free] = true;
        branch_.push_back(branch_[*free]);
      } else if (step.needs.empty() && gpu_of(step) == stream_.rank && std::exchange(is_stream_free, false)) {
        branch_.push_back(0);
      } else {
        branch_.push_back(branches++);
      }
    }
  }

  RankState* gpu_of(const GraphStep& step) const { return step.node->gpu ? step.node->gpu : stream_.rank; }

  Stream& stream_of(size_t branch, const GraphStep& step) {
    if (branch == 0) return stream_;
    Stream*& found = graph_->branches[{gpu_of(step), branch}];
    if (!found) found = world().add_stream(*gpu_of(step), StreamKind::kNonBlocking);
    return *found;
  }

  void enqueue_node(Stream& to, GraphNode& node) {
    if (node.type == cudaGraphNodeTypeConditional) return enqueue_condition(to, node);
    for (Work work : node.works) {
      if (work.event) {  // known outside of the graph
        Event& event = *work.event;
        if (work.kind == StreamOperationKind::kEventRecord) event.last = std::make_shared<EventRecord>(EventRecord{event.id, world().engine.next_id++});
        if (!event.last) continue;
        work.record = event.last;
      }
      enqueue(to, std::move(work));
    }
  }

  void enqueue_condition(Stream& to, GraphNode& node);

  RankState& rank_;
  Stream& stream_;
  const std::shared_ptr<Graph> graph_;
  const bool of_host_;
  std::vector<GraphStep> steps_;
  std::vector<size_t> branch_;  // of each step; 0: the stream of the launch
};

// Runs the body of a conditional node as often as its word says, in a stream of its own.
struct ConditionRun : std::enable_shared_from_this<ConditionRun> {
  ConditionRun(RankState& rank, std::shared_ptr<Graph> owner, const GraphNode& node, Stream& body, std::shared_ptr<EventRecord> end)
      : rank(rank), owner(std::move(owner)), node(node), body(body), end(std::move(end)) {}

  Graph* chosen(uint32_t value) const {
    const auto& bodies = node.graphs;
    size_t index = value;
    if (node.condition_type != cudaGraphCondTypeSwitch) index = value ? 0 : node.condition_type == cudaGraphCondTypeIf ? 1 : bodies.size();
    return index < bodies.size() ? bodies[index].get() : nullptr;
  }

  void decide(uint32_t value) {
    World& world = *rank.world;
    Graph* const graph = chosen(value);
    if (graph) GraphLaunch(rank, body, std::shared_ptr<Graph>(owner, graph), false).run();
    if (!graph || node.condition_type != cudaGraphCondTypeWhile) return world.enqueue_of_node(body, record_work(end));
    world.enqueue_of_node(body, look());
  }

  // The work that begins: behind the last turn of the launch before.
  Work started(const std::shared_ptr<EventRecord>& begin) {
    Work work{StreamOperationKind::kHostFunction, "a conditional node", {}, {}, nullptr, nullptr};
    work.start = [self = shared_from_this(), begin](const StreamOperation&, const std::function<void()>& done) {
      self->rank.world->enqueue_of_node(self->body, wait_work(begin));
      self->rank.world->enqueue_of_node(self->body, self->look());
      done();
    };
    return work;
  }

  // The work that reads the word and decides.
  Work look() {
    return read_word_work(*rank.world, node.condition, "a conditional node", [self = shared_from_this()](uint32_t value) { self->decide(value); });
  }

  RankState& rank;
  const std::shared_ptr<Graph> owner;
  const GraphNode& node;
  Stream& body;
  const std::shared_ptr<EventRecord> end;
};

void GraphLaunch::enqueue_condition(Stream& to, GraphNode& node) {
  if (!node.body) node.body = world().add_stream(rank_, StreamKind::kNonBlocking);
  Stream& body = *node.body;
  const auto begin = make_record(world()), end = make_record(world());
  const auto run = std::make_shared<ConditionRun>(rank_, graph_, node, body, end);
  enqueue(to, record_work(begin));
  enqueue(to, run->started(begin));
  enqueue(to, wait_work(end));
}

void reset_conditions(RankState& rank, Stream& stream, const Graph& graph) {
  for (const GraphCondition& condition : graph.conditions) {
    rank.world->enqueue(stream, fill_work(*rank.world, condition.word, condition.initial, 4, "the default of a conditional node", 4));
  }
  for (const auto& node : graph.nodes) {
    for (const auto& inner : node->graphs) reset_conditions(rank, stream, *inner);
  }
}

// ---- updates ----

size_t mixed(size_t a, size_t b) { return (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu; }

// Numbers of nodes that are the same for nodes at the same place of the same graph, by what leads to them and from them.
std::map<const GraphNode*, size_t> places_of(const Graph& graph, bool with_types) {
  std::map<const GraphNode*, size_t> all;
  for (const auto& node : graph.nodes) {
    size_t place = with_types ? size_t(node->type) + 1 : 1;
    if (with_types) {
      for (const auto& inner : node->graphs) {
        std::vector<size_t> of_inner;
        for (const auto& [each, number] : places_of(*inner, true)) of_inner.push_back(number);
        std::sort(of_inner.begin(), of_inner.end());
        for (const size_t number : of_inner) place = mixed(place, number);
      }
      place = mixed(place, reinterpret_cast<size_t>(node->condition));
    }
    all[node.get()] = place;
  }
  for (size_t round = 0; round < std::min<size_t>(graph.nodes.size(), 64); ++round) {
    std::map<const GraphNode*, std::vector<size_t>> before, behind;
    for (const auto& node : graph.nodes) {
      std::vector<GraphNode*> needs = node->needs;
      std::sort(needs.begin(), needs.end());
      needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
      for (const GraphNode* const need : needs) {
        before[node.get()].push_back(all[need]);
        behind[need].push_back(all[node.get()]);
      }
    }
    auto next = all;
    for (auto& [node, place] : next) {
      for (auto* const side : {&before[node], &behind[node]}) {
        std::sort(side->begin(), side->end());
        place = mixed(place, side->size());
        for (const size_t number : *side) place = mixed(place, number);
      }
    }
    all = std::move(next);
  }
  return all;
}

std::multimap<size_t, const GraphNode*> by_place(const Graph& graph, bool with_types) {
  std::multimap<size_t, const GraphNode*> found;
  const auto all = places_of(graph, with_types);
  for (const auto& node : graph.nodes) found.emplace(all.at(node.get()), node.get());  // of one place: in their order
  return found;
}

bool are_alike(const Graph& a, const Graph& b, bool with_types) {
  const auto of_a = by_place(a, with_types), of_b = by_place(b, with_types);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), [](const auto& x, const auto& y) { return x.first == y.first; });
}

void take_works(Graph& executable, const Graph& graph) {
  const auto from = by_place(graph, true), to = by_place(executable, true);
  std::map<const GraphNode*, const GraphNode*> source;
  for (auto i = to.begin(), j = from.begin(); i != to.end(); ++i, ++j) source[i->second] = j->second;
  for (const auto& node : executable.nodes) {
    const GraphNode& other = *source.at(node.get());
    node->works = other.works;
    for (size_t i = 0; i < node->graphs.size(); ++i) take_works(*node->graphs[i], *other.graphs[i]);
  }
}

}  // namespace

GraphNode& Graph::add(int type, std::vector<GraphNode*> needs) {
  GraphNode& node = *nodes.emplace_back(std::make_unique<GraphNode>());
  node.type = type;
  node.graph = this;
  node.needs = std::move(needs);
  return node;
}

std::unique_ptr<Graph> copy_of_graph(const Graph& graph) {
  auto copy = std::make_unique<Graph>();
  copy->conditions = graph.conditions;
  std::map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : graph.nodes) {
    GraphNode& made = copy->add(node->type, {});
    copies[node.get()] = &made;
    made.gpu = node->gpu;
    made.works = node->works;
    made.parameters = node->parameters;
    made.condition = node->condition;
    made.condition_type = node->condition_type;
    made.is_enabled = node->is_enabled;
    made.origin = node.get();
    for (const auto& inner : node->graphs) made.handles.push_back(made.graphs.emplace_back(copy_of_graph(*inner)).get());
  }
  for (const auto& node : graph.nodes) {
    for (const GraphNode* const need : node->needs) copies[node.get()]->needs.push_back(copies[need]);
  }
  return copy;
}

GraphNode* find_copy(Graph& copy, const GraphNode* origin) {
  for (const auto& node : copy.nodes) {
    if (node->origin == origin) return node.get();
    for (const auto& inner : node->graphs) {
      if (GraphNode* const found = find_copy(*inner, origin)) return found;
    }
  }
  return nullptr;
}

void add_captured(Graph& graph, const std::vector<Work>& captured, const std::vector<GraphNode*>& needs) {
  std::map<Stream*, std::vector<GraphNode*>> last{{nullptr, needs}};  // of each branch
  std::map<const EventRecord*, std::vector<GraphNode*>> recorded;
  for (const Work& work : captured) {
    std::vector<GraphNode*>& before = last[work.branch];
    if (work.record && !work.event && work.kind == StreamOperationKind::kEventRecord) {
      recorded[work.record.get()] = before;
      continue;
    }
    if (const auto found = recorded.find(work.record.get()); work.record && !work.event && found != recorded.end()) {
      for (GraphNode* const node : found->second) {
        if (std::find(before.begin(), before.end(), node) == before.end()) before.push_back(node);
      }
      continue;
    }
    GraphNode& node = graph.add(type_of(work), before);
    node.works.push_back(work);
    node.works.back().branch = nullptr;
    node.gpu = std::exchange(node.works.back().gpu, nullptr);
    before = {&node};
  }
}

GraphMatch update_graph(Graph& executable, const Graph& graph) {
  if (are_alike(executable, graph, true)) {
    take_works(executable, graph);
    return GraphMatch::kSame;
  }
  return are_alike(executable, graph, false) ? GraphMatch::kOtherTypes : GraphMatch::kOtherTopology;
}

void launch_graph(RankState& rank, Stream& stream, const std::shared_ptr<Graph>& graph) {
  World& world = *rank.world;
  if (graph->last) world.enqueue(stream, wait_work(graph->last));
  reset_conditions(rank, stream, *graph);
  GraphLaunch(rank, stream, graph, true).run();
  graph->last = make_record(world);
  world.enqueue(stream, record_work(graph->last));
}

}  // namespace pkb::emulator
