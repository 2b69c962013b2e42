// libcudart: streams, events, captures.
#include "runtime_cuda.h"
#include "runtime_graphs.h"

using namespace pkb::emulator;

namespace {

// Of any GPU of the process, as all functions but a few take them.
template <class F>
cudaError_t with_event(cudaEvent_t handle, F f) {
  return with_rank([&](RankState& rank) {
    Event* const event = event_of(rank, handle);
    return event ? f(rank, *event) : cudaErrorInvalidResourceHandle;
  });
}

// An operation that does nothing itself.
Work nothing() {
  return {StreamOperationKind::kHostFunction, "cudaStreamSynchronize", [](const StreamOperation&, const std::function<void()>& done) { done(); }, {}, nullptr, nullptr};
}

// The host has seen that a stream is empty, or an event complete.
cudaError_t learnt(RankState& rank, Stream& stream) {
  rank.world->learn(stream);
  return cudaSuccess;
}
cudaError_t learnt(RankState& rank, const Event& event) {
  if (Observer* const observer = rank.world->engine.observer; observer && event.last) observer->host_waited_event(World::current->number, event.id, event.last->generation);
  return cudaSuccess;
}

cudaError_t make_stream(cudaStream_t* handle, unsigned flags) {
  return with_rank([&](RankState& rank) {
    *handle = reinterpret_cast<cudaStream_t>(rank.world->add_stream(rank, flags & cudaStreamNonBlocking ? StreamKind::kNonBlocking : StreamKind::kBlocking));
    return cudaSuccess;
  });
}

// Whether another stream of a capture waits for all that a forked one has done.
bool is_joined(const std::vector<Work>& works, const Stream* branch) {
  const auto last = std::find_if(works.rbegin(), works.rend(), [&](const Work& work) { return work.branch == branch; });
  if (last == works.rend() || last->kind == StreamOperationKind::kEventWait) return true;
  return std::any_of(works.rbegin(), last, [&](const Work& work) {
    return work.kind == StreamOperationKind::kEventWait && work.record == last->record && work.branch != branch;
  });
}

}  // namespace

PKB_CUDART cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make_stream(stream, cudaStreamDefault); }
PKB_CUDART cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return make_stream(stream, flags); }
PKB_CUDART cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) { return make_stream(stream, flags); }

// What is enqueued still runs; the stream itself stays until the end.
PKB_CUDART cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return with_stream(handle, [](RankState&, Stream&) { return cudaSuccess; });
}

// The legacy default stream waits for blocking streams, as any operation on it does.
PKB_CUDART cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return with_stream(handle, [](RankState& rank, Stream& stream) {
    if (stream.kind == StreamKind::kLegacy && !rank.world->capture_of(stream)) rank.world->enqueue(stream, nothing());
    return waited(rank.world->synchronize(stream));
  });
}

// Others run between two queries, so that a loop over them ends.
PKB_CUDART cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return with_stream(handle, [](RankState& rank, Stream& stream) {
    if (stream.empty()) return learnt(rank, stream);
    Engine& engine = rank.world->engine;
    const uint64_t time = engine.now_ns(), progress = engine.progress;
    if (!rank.world->block("a stream, by cudaStreamQuery", [&, time, progress] { return stream.empty() || engine.now_ns() > time + 1000 || engine.progress > progress + 10; })) return cudaErrorLaunchFailure;
    return stream.empty() ? learnt(rank, stream) : cudaErrorNotReady;
  });
}

PKB_CUDART cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
PKB_CUDART cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return with_stream(handle, [&](RankState&, Stream& stream) {
    *flags = stream.kind == StreamKind::kCall || stream.kind == StreamKind::kNonBlocking ? cudaStreamNonBlocking : cudaStreamDefault;
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    Event* const event = event_of(rank, event_handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    const bool is_node = flags & cudaEventWaitExternal && rank.world->capture_of(stream);
    if (!event->last && !is_node) return cudaSuccess;
    Work work = wait_work(is_node ? std::make_shared<EventRecord>(EventRecord{event->id, rank.world->engine.next_id++}) : event->last);
    if (is_node) work.event = event;
    rank.world->enqueue(stream, std::move(work));
    return cudaSuccess;
  });
}

// A function of the program, whose accesses to memory that it shares with GPUs are looked at.
static Work callback_work(RankState& rank, std::function<void()> function, const char* name) {
  return function_work(*rank.world, [&rank, function = std::move(function)] {
    HostGuard& guard = rank.world->guard_of(rank);
    guard.close_for_function();
    function();
    guard.open();
    rank.world->release(rank.callbacks);
  }, name);
}

PKB_CUDART cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* user) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    rank.world->enqueue(stream, callback_work(rank, [function, user] { function(user); }, "cudaLaunchHostFunc"));
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* user, unsigned) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    rank.world->enqueue(stream, callback_work(rank, [function, user, handle] { function(handle, cudaSuccess, user); }, "cudaStreamAddCallback"));
    return cudaSuccess;
  });
}

// ---- events ----

PKB_CUDART cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  return with_rank([&](RankState& rank) {
    rank.events.push_back(std::make_unique<Event>(Event{rank.world->engine.next_id++, rank.rank, nullptr}));
    *handle = reinterpret_cast<cudaEvent_t>(rank.events.back().get());
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
PKB_CUDART cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return with_event(handle, [](RankState&, Event&) { return cudaSuccess; });
}

PKB_CUDART cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  return with_stream(stream_handle, [&](RankState& rank, Stream& stream) {
    Event* const event = event_of(rank, handle);
    if (!event || (event->rank != rank.rank && !rank.opened.contains(event))) return cudaErrorInvalidResourceHandle;  // rank: of the stream
    const auto record = std::make_shared<EventRecord>(EventRecord{event->id, rank.world->engine.next_id++});
    Work work = record_work(record);
    if (flags & cudaEventRecordExternal && rank.world->capture_of(stream)) {
      work.event = event;
    } else {
      event->last = record;
    }
    rank.world->enqueue(stream, std::move(work));
    return cudaSuccess;
  });
}
PKB_CUDART cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) { return cudaEventRecordWithFlags(handle, stream, cudaEventRecordDefault); }

PKB_CUDART cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return with_event(handle, [](RankState& rank, Event& event) {
    const auto record = event.last;
    if (!record) return cudaSuccess;
    if (!rank.world->block("an event", [&] { return record->is_complete; })) return cudaErrorLaunchFailure;
    if (Observer* const observer = rank.world->engine.observer) observer->host_waited_event(World::current->number, event.id, record->generation);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return with_event(handle, [](RankState& rank, Event& event) {
    if (event.is_complete()) return learnt(rank, event);
    Engine& engine = rank.world->engine;
    const uint64_t time = engine.now_ns(), progress = engine.progress;
    if (!rank.world->block("an event, by cudaEventQuery", [&, time, progress] { return event.is_complete() || engine.now_ns() > time + 1000 || engine.progress > progress + 10; })) return cudaErrorLaunchFailure;
    return event.is_complete() ? learnt(rank, event) : cudaErrorNotReady;
  });
}

PKB_CUDART cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return with_rank([&](RankState& rank) {
    const Event *const first = event_of(rank, begin), *const last = event_of(rank, end);
    if (!first || !last || !first->last || !last->last || first->rank != last->rank) return cudaErrorInvalidResourceHandle;
    if (!first->is_complete() || !last->is_complete()) return cudaErrorNotReady;
    *milliseconds = float(double(int64_t(last->last->time_ns - first->last->time_ns)) * 1e-6);
    return cudaSuccess;
  });
}

// ---- captures: graphs of the captured operations, in streams of their own where they were forked ----

PKB_CUDART cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  return with_stream(handle, [](RankState& rank, Stream& stream) {
    if (rank.world->capture_of(stream)) return cudaErrorIllegalState;
    rank.world->captures_of(rank).push_back(std::make_unique<Capture>(Capture{&stream, rank.world->engine.next_id++, {}, {}, nullptr, {}}));
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph, const cudaGraphNode_t* needs, const cudaGraphEdgeData*, size_t count, cudaStreamCaptureMode mode) {
  const cudaError_t error = cudaStreamBeginCapture(handle, mode);
  if (error != cudaSuccess) return error;
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    Capture& capture = *rank.world->capture_of(stream);
    capture.graph = reinterpret_cast<Graph*>(graph);
    for (size_t i = 0; i < count; ++i) capture.needs.push_back(reinterpret_cast<GraphNode*>(needs[i]));
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    *graph = nullptr;
    if (!rank.world->capture_of(stream)) return cudaErrorIllegalState;
    if (rank.world->capture_of(stream)->origin != &stream) return cudaErrorStreamCaptureUnmatched;
    auto& captures = rank.world->captures_of(rank);
    const auto found = std::find_if(captures.begin(), captures.end(), [&](const auto& each) { return each->origin == &stream; });
    const std::unique_ptr<Capture> capture = std::move(*found);
    captures.erase(found);
    const auto& forked = capture->forked;
    if (!std::all_of(forked.begin(), forked.end(), [&](const Stream* branch) { return is_joined(capture->works, branch); })) return cudaErrorStreamCaptureUnjoined;
    Graph* const filled = capture->graph ? capture->graph : new Graph{};
    add_captured(*filled, capture->works, capture->needs);
    *graph = reinterpret_cast<cudaGraph_t>(filled);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    *status = rank.world->capture_of(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

namespace {

// The graph is known once the capture has ended: programs that would add nodes of their own to it get null.
cudaError_t capture_info(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** needs, size_t* count) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    const Capture* const capture = rank.world->capture_of(stream);
    *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id && capture) *id = capture->id;
    if (graph) *graph = nullptr;
    if (needs) *needs = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
  });
}

}  // namespace

#if CUDART_VERSION >= 13000
PKB_CUDART cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** needs, const cudaGraphEdgeData** edges, size_t* count) {
  if (edges) *edges = nullptr;
  return capture_info(stream, status, id, graph, needs, count);
}
#else
PKB_CUDART cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** needs, size_t* count) {
  return capture_info(stream, status, id, graph, needs, count);
}
#endif

// Calls that a capture forbids are made all the same.
PKB_CUDART cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
