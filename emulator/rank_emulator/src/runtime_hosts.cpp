// Threads of host code, of which one runs at a time.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "host_faults.h"
#include "runtime_world.h"

namespace pkb::emulator {

thread_local HostThread* World::current = nullptr;
thread_local World* World::in_function = nullptr;

std::string World::name_of(const HostThread& host) const {
  if (!one_process) return "rank " + std::to_string(host.device->rank) + (host.is_started ? ", thread " + std::to_string(host.number) : "");
  return host.is_started ? "thread " + std::to_string(host.number) : "the main thread";
}

const SourceLine* World::call_site() {
  if (!notes_call_sites || !engine.observer || !current) return nullptr;
  void* frames[32];
  Dl_info own, of_frame;
  if (!dladdr(reinterpret_cast<void*>(&watch_host_accesses), &own)) return nullptr;
  const int count = backtrace(frames, 32);
  for (int i = 0; i < count; ++i) {
    const char* const call = static_cast<char*>(frames[i]) - 1;
    if (!dladdr(call, &of_frame) || of_frame.dli_fbase == own.dli_fbase) continue;
    const auto offset = uint64_t(call - static_cast<char*>(of_frame.dli_fbase));
    return &call_sites_.try_emplace(offset, SourceLine{"+host", int(offset), nullptr, 0}).first->second;
  }
  return nullptr;
}

// Code that runs on is interrupted where others can go on meanwhile: it may wait for them without a call of CUDA.
void World::resume(HostThread& host) {
  constexpr std::chrono::milliseconds kFirst{300}, kLater{5};
  host_writes.begin();
  std::unique_lock lock(turn_->mutex);
  turn_->give(host.number);
  while (!turn_->await(-1, lock, host.runs_on ? kLater : kFirst)) {
    host.interrupt = HostThread::kGoOn;
    if (others_can_go_on(host)) host.interrupt = HostThread::kYield;
    try {
      if (!failed()) check_time();
    } catch (const Fault& fault) {
      fail(fault);
    }
    if (failed()) host.interrupt = HostThread::kStop;
    if (host.interrupt != HostThread::kGoOn) pthread_kill(host.thread.native_handle(), kHostInterrupt);
  }
  host.interrupt = HostThread::kGoOn;
  host_writes.end(engine.memory);
}

bool World::others_can_go_on(const HostThread& host) const {
  if (engine.stands_still()) return false;
  const auto is_busy = [](const auto& rank) { return std::any_of(rank->streams.begin(), rank->streams.end(), [](const auto& stream) { return !stream->empty(); }); };
  return std::any_of(ranks.begin(), ranks.end(), is_busy) || std::any_of(hosts.begin(), hosts.end(), [&](const auto& other) { return other.get() != &host && can_run(*other); });
}

void World::interrupted(HostThread& host, uint64_t instruction) {
  if (turn_->holder != host.number || !is_program_code(instruction)) return;
  const int wanted = host.interrupt.exchange(HostThread::kGoOn);
  if (wanted == HostThread::kStop) {
    if (fault_->outcome == Outcome::kStopped && fault_->rank < 0) {
      fault_->rank = host.device->rank;
      fault_->message += "; the host code of " + name_of(host) + " runs on without a call of CUDA" + (notes_call_sites ? place_of_host_code(instruction) : "");
    }
    lose_host(host, 0);
    for (;;) pause();
  }
  if (wanted != HostThread::kYield) return;
  host.runs_on = true;
  constexpr int kLooks = 20000;
  block("others, in a loop without a call of CUDA", [this, looks = 0]() mutable { return ++looks > kLooks || (looks > 2 && (engine.stands_still() || engine.idle())); });
}

void World::let_others_go_on(const char* why, bool until_progress) {
  const auto may_return = [this, until_progress, before = engine.progress, turn = 0]() mutable {
    return turn++ > 0 && (!until_progress || engine.progress != before || engine.stands_still());
  };
  if (block(why, may_return)) return;
  constexpr int kMostVain = 1000;
  HostThread& host = *current;
  if (++host.vain_waits < kMostVain) return;
  lose_host(host, 0);
  for (;;) pause();
}

// Throws the fault of a run that takes too long.
void World::check_time() const {
  const std::lock_guard lock(stop_mutex_);
  if (!stop_.empty()) throw Fault{Outcome::kStopped, -1, stop_};
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (max_seconds && seconds > double(max_seconds)) throw Fault{Outcome::kStopped, -1, "time limit of " + std::to_string(max_seconds) + " s" + engine.standing()};
}

void World::hand_over(HostThread& host, std::unique_lock<std::mutex>& lock) {
  std::fflush(stdout);  // while it is this thread's
  guard_of(*host.device).open();
  turn_->give(-1);
  turn_->await(host.number, lock);
  host.state = HostThread::kRunnable;
  guard_of(*host.device).close();
}

bool World::block(const std::string& why, std::function<bool()> ready) {
  if (failed()) return false;
  if (ready()) return true;
  HostThread& host = *current;
  std::unique_lock lock(turn_->mutex);
  host.state = HostThread::kBlocked;
  host.ready = std::move(ready);
  host.waits_for = why;
  hand_over(host, lock);
  return !failed();
}

void World::pass(const std::string& why) {
  HostThread& host = *current;
  std::unique_lock lock(turn_->mutex);
  host.state = HostThread::kBlocked;
  host.ready = [turn = 0]() mutable { return turn++ > 0; };
  host.waits_for = why;
  hand_over(host, lock);
}

void World::release(uint64_t object) {
  if (!engine.observer) return;
  if (current) return engine.observer->host_released(current->number, object);
  engine.observer->stream_released(host_operation->stream, object);
}

void World::acquire(uint64_t object) {
  if (!engine.observer) return;
  if (current) return engine.observer->host_acquired(current->number, object);
  engine.observer->stream_acquired(host_operation->stream, object);
}

void World::acquire_all() {
  if (!engine.observer) return;
  for (const auto& other : hosts) {
    if (one_process || other->device == current->device) engine.observer->host_joined(current->number, other->number);
  }
  for (size_t i = 0; i < visible(); ++i) acquire(visible(*current->device, i).callbacks);
}

void World::await_turn(HostThread& host) {
  current = &host;
  std::unique_lock lock(turn_->mutex);
  turn_->await(host.number, lock);
  guard_of(*host.device).close();
}

void World::end_thread(HostThread& host, int status) {
  std::fflush(stdout);
  guard_of(*host.device).open();
  const std::lock_guard lock(turn_->mutex);
  host.body_status = status;
  host.state = HostThread::kDone;
  turn_->give(-1);
}

HostThread& World::start_thread(std::function<void()> function) {
  HostThread& host = *hosts.emplace_back(std::make_unique<HostThread>());
  host.world = this;
  host.number = int(hosts.size()) - 1;
  host.device = one_process ? ranks.front().get() : current->device;
  host.is_started = true;
  host.begin = engine.next_id++;
  host.end = engine.next_id++;
  release(host.begin);
  const size_t place = has_order_ ? thread_random_() % (host_order_.size() + 1) : host_order_.size();
  host_order_.insert(host_order_.begin() + long(place), host.number);
  ++engine.progress;
  ++engine.effects;
  host.thread = std::thread([this, &host, function = std::move(function)] {
    await_turn(host);
    acquire(host.begin);
    function();
    release(host.end);
    end_thread(host, 0);
  });
  return host;
}

void World::forget(HostThread& host) {
  host.thread.join();
  std::erase(host_order_, host.number);
}

void World::lose_host(HostThread& host, uint64_t address) {
  const std::lock_guard lock(turn_->mutex);
  guard_of(*host.device).disarm();
  host.touched = address;
  host.state = HostThread::kLost;
  turn_->give(-1);
}

// Throws the fault of a thread whose body has failed.
void World::check_hosts() const {
  for (const auto& host : hosts) {
    const std::string name = name_of(*host);
    const int rank = one_process ? -1 : host->device->rank;
    if (host->state == HostThread::kDone && host->body_status) {
      throw Fault{Outcome::kBodyFailed, rank, name + " ended with status " + std::to_string(host->body_status)};
    }
    if (host->state == HostThread::kLost) {
      const std::string place = host->touched ? " at " + engine.memory.describe(host->touched) : "";
      throw Fault{Outcome::kIllegalAddress, rank, name + ": host code touched device memory" + place + "; use a kernel or cudaMemcpy"};
    }
  }
}

bool World::can_run(const HostThread& host) const {
  return host.state == HostThread::kRunnable || (host.state == HostThread::kBlocked && (failed() || host.ready()));
}

bool World::host_can_run() const {
  return std::any_of(hosts.begin(), hosts.end(), [&](const auto& host) { return can_run(*host); });
}

bool World::run_hosts() {
  bool any = false;
  const std::vector<int> order = host_order_;  // threads that are started meanwhile come in the next round
  for (const int number : order) {
    HostThread& host = *hosts[size_t(number)];
    if (!can_run(host)) continue;
    resume(host);
    any = true;
  }
  return any;
}

// After a fault calls of the runtime fail, so that bodies return.
void World::end_hosts() {
  engine.clear();
  for (auto& rank : ranks) {
    for (auto& stream : rank->streams) {
      stream->queue.clear();
      stream->running.clear();
    }
  }
  for (int round = 0; round < 10000; ++round) {
    if (!run_hosts()) return;
  }
}

}  // namespace pkb::emulator
