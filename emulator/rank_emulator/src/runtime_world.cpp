#include "runtime_world.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "host_faults.h"

namespace pkb::emulator {
namespace {

enum PolicyKind { kFair, kPriorities, kHoldArrival, kHoldDeparture, kOneAhead, kMixed, kLateStores };

}  // namespace

World::World(int count, uint64_t segment_bytes, const Device& device, const Policy& policy, bool one_process) : engine(device, count), one_process(one_process) {
  engine.one_process = one_process;
  for (int rank = 0; rank < count; ++rank) {
    auto& state = *ranks.emplace_back(std::make_unique<RankState>());
    state.world = this;
    state.rank = rank;
    state.reached_by = 1u << rank;
    state.callbacks = engine.next_id++;
    if (segment_bytes) {
      state.segment = Mapping(segment_bytes, true);
      engine.memory.add_on_gpu(RegionKind::kSegment, rank, "", state.segment, reinterpret_cast<uint64_t>(state.segment.data()), segment_bytes, Space::kGlobal);
    }
    for (const auto kind : {StreamKind::kCall, StreamKind::kLegacy, StreamKind::kPerThread}) {
      state.streams.push_back(std::make_unique<Stream>(Stream{engine.next_id++, &state, kind}));
    }
    rank_order_.push_back(rank);
  }
  if (segment_bytes) {
    std::vector<uint64_t> members;
    for (const auto& rank : ranks) members.push_back(reinterpret_cast<uint64_t>(rank->segment.data()));
    multicast = Mapping(segment_bytes);
    engine.memory.add_multicast(reinterpret_cast<uint64_t>(multicast.data()), segment_bytes, std::move(members));
  }
  choose_policy(policy);
}

World::~World() {
  bool are_done = true;
  for (auto& host : hosts) {
    if (host->state == HostThread::kDone) {
      if (host->thread.joinable()) host->thread.join();
    } else {  // it waits for its turn for ever
      are_done = false;
      host->thread.detach();
      static_cast<void>(host.release());
    }
  }
  if (!are_done) static_cast<void>(turn_.release());
}

void World::choose_policy(const Policy& policy) {
  held_arrival_ = early_departure_ = -1;
  std::sort(rank_order_.begin(), rank_order_.end());
  std::mt19937_64 random(policy.seed * 0x9e3779b97f4a7c15ull + 12345);
  const auto count = int(ranks.size());
  int kind = policy.kind;
  if (kind == kMixed) kind = int(random() % 5);
  Choice choice;
  choice.seed = random();
  const auto one = int(random() % uint64_t(count));
  switch (kind) {
    case kPriorities:
    case kLateStores:
      choice.by_priority = true;
      choice.delays_copies = true;
      choice.preempts = random() % 2;
      choice.holds_readers = random() % 2 ? 8 : 0;
      choice.change_points = 1 + uint32_t(random() % 5);
      choice.change_range = 1000ull << (random() % 10);
      if (random() % 2) {
        for (int rank = 0; rank < count; ++rank) choice.rank_priority.push_back(1 + random() % 16);
      }
      choice.late_stores = kind == kLateStores;
      choice.preempts |= choice.late_stores;  // others go on while a flag is there and its data are not
      break;
    case kHoldArrival:
      held_arrival_ = one;
      choice.by_priority = true;  // the others depart as soon as they can, while it is still within its call
      choice.change_points = 0;
      choice.rank_priority.assign(size_t(count), 2);
      choice.rank_priority[size_t(one)] = 1;
      choice.delays_copies = random() % 2;
      break;
    case kHoldDeparture:
      early_departure_ = one;
      choice.by_priority = true;  // it departs while the others are still within their calls
      choice.change_points = 0;
      choice.rank_priority.assign(size_t(count), 1);
      choice.rank_priority[size_t(one)] = 2;
      choice.delays_copies = random() % 2;
      break;
    case kOneAhead:
      choice.by_priority = true;
      choice.change_points = 0;
      choice.rank_priority.assign(size_t(count), 1);
      choice.rank_priority[size_t(one)] = 2;
      choice.preempts = true;  // it goes on as soon as it may, while those whom it has waited for still have things to read
      choice.holds_readers = random() % 2 ? 4 : 0;
      break;
    default: break;
  }
  has_order_ = kind != kFair;
  if (has_order_) std::shuffle(rank_order_.begin(), rank_order_.end(), random);
  if (kind == kOneAhead) std::swap(rank_order_[0], *std::find(rank_order_.begin(), rank_order_.end(), one));
  thread_random_.seed(choice.seed);
  late_random_.seed(choice.seed);
  has_late_work_ = kind == kPriorities;
  engine.choose(choice);
}

void World::fail(const Fault& fault) {
  if (!fault_) fault_ = fault;
}

void World::stop(const std::string& message) {
  const std::lock_guard lock(stop_mutex_);
  stop_ = message.empty() ? "stopped" : message;
}

// ---- runs ----

bool World::finished() const {
  for (const auto& host : hosts) {
    if (host->state != HostThread::kDone) return false;
  }
  for (const auto& rank : ranks) {
    for (const auto& stream : rank->streams) {
      if (!stream->empty()) return false;
    }
  }
  return engine.idle();
}

std::optional<Fault> World::run(const std::function<int(int)>& body) {
  for (const auto& host : hosts) {
    if (host->state == HostThread::kLost) return fault_;  // it has no thread that could run a body
  }
  fault_.reset();
  watch_host_accesses();
  const auto end = [](HostThread& host) {
    if (host.thread.joinable()) host.thread.join();
  };
  const auto earlier = std::exchange(hosts, {});
  for (size_t i = size_t(processes()); i < earlier.size(); ++i) end(*earlier[i]);
  host_order_.clear();
  for (const int rank : rank_order_) {
    if (rank < processes()) host_order_.push_back(rank);
  }
  for (int number = 0; number < processes(); ++number) {
    HostThread& host = *hosts.emplace_back(std::make_unique<HostThread>());
    host.world = this;
    host.number = number;
    host.device = ranks[size_t(number)].get();
  }
  for (const auto& started : hosts) {
    // One by one, so that each rank goes on with the stack that it had: those of processes are their own.
    if (size_t(started->number) < earlier.size()) end(*earlier[size_t(started->number)]);
    started->thread = std::thread([this, &host = *started, &body] {
      await_turn(host);
      end_thread(host, body(host.number));
    });
  }
  try {
    loop();
  } catch (const Fault& fault) {
    fail(fault);
  }
  if (fault_) end_hosts();
  return fault_;
}

void World::loop() {
  begin_ = std::chrono::steady_clock::now();
  uint64_t effects = engine.effects, early_begins = engine.early_begins;
  for (uint64_t round = 0; !finished(); ++round) {
    if (fault_) return;
    const bool hosts_ran = run_hosts();
    check_hosts();
    advance_streams(false);
    bool ran = false;
    for (int i = 0; i < 64 && engine.run_some(); ++i) {
      ran = true;
      const bool begins_early = std::exchange(early_begins, engine.early_begins) != engine.early_begins;
      if (!engine.choice().by_priority && !begins_early) continue;
      advance_streams(false);  // what a kernel's end, or its trigger, has made possible comes at once
      if (host_can_run()) break;
    }
    if (engine.max_steps && engine.steps > engine.max_steps) throw Fault{Outcome::kStepLimit, -1, std::to_string(engine.max_steps) + " warp instructions have been executed" + engine.standing()};
    if (round % 16 == 0) check_time();
    if (engine.effects != effects) {
      effects = engine.effects;
      engine.end_standstill();
      if (!engine.stuck()) continue;
    }
    if (!engine.stuck()) {
      if (ran || (hosts_ran && !engine.stands_still())) continue;
      if (engine.is_settled() && advance_streams(true)) continue;
      if (engine.stand_still(hosts_ran)) continue;
    }
    std::string message = "nobody can go on";
    for (const auto& host : hosts) {
      if (host->state == HostThread::kBlocked) message += "\n  " + name_of(*host) + (one_process ? "" : ", host") + ": waits for " + host->waits_for;
    }
    throw Fault{Outcome::kDeadlock, -1, message + waiting_streams() + engine.standing()};
  }
}

// ---- streams ----

Capture* World::capture_of(const Stream& stream) {
  for (const auto& capture : captures_of(*stream.rank)) {
    if (capture->holds(stream)) return capture.get();
  }
  return nullptr;
}

void World::enqueue(Stream& stream, Work work) {
  RankState& rank = *stream.rank;
  const auto is_of_capture = [&](const Work& other) { return other.record == work.record && other.kind == StreamOperationKind::kEventRecord; };
  Capture* capture = capture_of(stream);
  if (!capture && work.kind == StreamOperationKind::kEventWait) {
    for (const auto& other : captures_of(rank)) {
      if (std::none_of(other->works.begin(), other->works.end(), is_of_capture)) continue;
      capture = other.get();
      capture->forked.push_back(&stream);
      break;
    }
  }
  if (capture) {
    if (&stream != capture->origin) work.branch = &stream;
    work.gpu = &rank;
    capture->works.push_back(std::move(work));
    return;
  }
  // "Default Stream" of the CUDA programming guide: the legacy stream waits for blocking streams, and they for it.
  Stream& legacy = *rank.streams[1];
  if (stream.kind == StreamKind::kLegacy) {
    for (const auto& other : rank.streams) {
      if (!other->is_blocking() || other->joined == other->enqueued) continue;
      join(*other, legacy);
      other->joined = other->enqueued;
    }
  } else if (stream.is_blocking() && stream.joined_legacy != legacy.enqueued) {
    join(legacy, stream);
    stream.joined_legacy = legacy.enqueued;
  }
  push(stream, std::move(work));
}

void World::gather(RankState& rank, Stream& to) {
  for (const auto& stream : rank.streams) {
    if (stream.get() != &to && stream->enqueued) join(*stream, to);
  }
}

void World::hold(RankState& rank, Stream& until) {
  const auto record = std::make_shared<EventRecord>(EventRecord{engine.next_id++, engine.next_id++});
  push(until, record_work(record));
  for (const auto& stream : rank.streams) {
    if (stream.get() != &until) push(*stream, wait_work(record));
  }
  rank.held_until = record;
}

Stream* World::add_stream(RankState& rank, StreamKind kind) {
  Stream& stream = *rank.streams.emplace_back(std::make_unique<Stream>(Stream{engine.next_id++, &rank, kind}));
  if (rank.held_until) push(stream, wait_work(rank.held_until));
  return &stream;
}

void World::join(Stream& from, Stream& to) {
  const auto record = std::make_shared<EventRecord>(EventRecord{engine.next_id++, engine.next_id++});
  push(from, record_work(record));
  push(to, wait_work(record));
}

void World::push(Stream& stream, Work work, bool of_host) {
  const EventRecord none, *const record = work.record ? work.record.get() : &none;
  StreamOperation operation{engine.next_id++, work.kind, stream.rank->rank, stream.id, record->event, record->generation, work.launch.get(), "", stream.is_default(), current ? current->number : -1};
  ++stream.enqueued;
  stream.queue.push_back({std::move(work), operation});
  Stream::Queued& queued = stream.queue.back();
  queued.operation.what = queued.work.name.c_str();
  const bool is_copy = queued.work.kind == StreamOperationKind::kCopy || queued.work.kind == StreamOperationKind::kFill;
  constexpr uint32_t kMostLooks = 500;  // host code that polls may wait for it
  if (has_late_work_ && is_copy && late_random_() % 2 == 0) queued.late_looks = kMostLooks;
  if (engine.observer && of_host) engine.observer->stream_enqueue(queued.operation);
  if (current) guard_of(*current->device).arm();
}

bool World::holds(const Stream::Queued& queued) const {
  const int rank = queued.operation.rank;
  if (queued.late_looks && std::none_of(hosts.begin(), hosts.end(), [](const auto& host) { return host->runs_on; })) return true;
  if (queued.work.kind == StreamOperationKind::kArrival) return rank == held_arrival_;
  return queued.work.kind == StreamOperationKind::kDeparture && early_departure_ >= 0 && rank != early_departure_;
}

// Whether the turn of a stream's next operation has come.
bool World::may_begin(const Stream& stream, const Work& next) const {
  if (!stream.running.empty()) {
    const auto& before = stream.running.back()->work.launch;
    if (!before || !before->has_triggered || !next.launch || !next.launch->may_overlap) return false;
  }
  if (next.kind == StreamOperationKind::kEventWait && !next.record->is_complete) return false;
  return !next.may_start || next.may_start();
}

bool World::advance(Stream& stream, bool held) {
  if (stream.queue.empty()) return false;
  Stream::Queued& next = stream.queue.front();
  if (!may_begin(stream, next.work)) return false;
  if (next.late_looks) --next.late_looks;
  if (holds(next) != held) return false;
  ++engine.progress;
  ++engine.effects;
  const auto queued = stream.running.emplace_back(std::make_shared<Stream::Queued>(std::move(next)));
  stream.queue.pop_front();
  queued->operation.what = queued->work.name.c_str();
  const auto& launch = queued->work.launch;
  if (launch) {
    launch->stream = stream.id;  // of a graph: the one that it is launched on, and not the one that was captured
    launch->is_on_default_stream = stream.is_default();
    launch->prerequisite = launch->may_overlap ? stream.last_kernel : 0;
  }
  if (engine.observer) engine.observer->stream_begin(queued->operation);
  queued->work.start(queued->operation, [this, &stream, &over = *queued] {
    over.is_over = true;
    if (EventRecord* const record = over.work.record.get(); record && over.work.kind == StreamOperationKind::kEventRecord) {
      record->is_complete = true;
      record->time_ns = engine.now_ns();
    }
    while (!stream.running.empty() && stream.running.front()->is_over) {
      const auto first = std::move(stream.running.front());
      stream.running.pop_front();
      if (engine.observer) engine.observer->stream_end(first->operation);
    }
    ++engine.progress;
    ++engine.effects;
  });
  stream.last_kernel = launch ? launch->id : 0;
  return true;
}

// What streams stand at that can begin nothing, for a deadlock's message.
std::string World::waiting_streams() const {
  std::string text;
  for (const auto& rank : ranks) {
    for (const auto& stream : rank->streams) {
      if (stream->queue.empty() || !stream->running.empty()) continue;
      text += "\n  rank " + std::to_string(rank->rank) + ", stream: waits in " + stream->queue.front().work.name;
    }
  }
  return text;
}

MemoryKind World::kind_of_memory(const void* pointer) {
  const Extent* const extent = engine.memory.find_seen(reinterpret_cast<uint64_t>(pointer), 1);
  if (!extent) return MemoryKind::kPageable;
  if (managed.contains(extent->region)) return MemoryKind::kManaged;
  return engine.memory.region(extent->region)->kind == RegionKind::kHost ? MemoryKind::kPinned : MemoryKind::kDevice;
}

bool World::advance_streams(bool held) {
  bool any = false;
  for (const int index : rank_order_) {
    for (size_t i = 0; i < ranks[size_t(index)]->streams.size(); ++i) {
      while (advance(*ranks[size_t(index)]->streams[i], held)) {
        any = true;
        if (held) return true;
      }
    }
  }
  return any;
}

bool World::synchronize(Stream& stream) {
  if (!block("a stream", [&] { return stream.empty(); })) return false;
  learn(stream);
  return true;
}

void World::learn(Stream& stream) {
  if (engine.observer) engine.observer->host_waited_stream(current->number, stream.id);
  stream.waited = stream.enqueued;
  for (size_t i = 0; i < visible(); ++i) {
    for (const auto& each : visible(*current->device, i).streams) {
      if (each->waited != each->enqueued) return;
    }
  }
  guard_of(*current->device).disarm();
}

bool World::synchronize(RankState& rank) {
  for (size_t i = 0; i < rank.streams.size(); ++i) {
    if (!synchronize(*rank.streams[i])) return false;
  }
  return true;
}

}  // namespace pkb::emulator
