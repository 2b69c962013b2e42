// Threads of host code, of which one runs at a time.
#include <dlfcn.h>
#include <execinfo.h>

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

void World::resume(HostThread& host) {
  std::unique_lock lock(turn_->mutex);
  turn_->give(host.number);
  turn_->await(-1, lock);
}

void World::hand_over(HostThread& host, std::unique_lock<std::mutex>& lock) {
  std::fflush(stdout);  // while it is this thread's
  turn_->give(-1);
  turn_->await(host.number, lock);
  host.state = HostThread::kRunnable;
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
}

void World::end_thread(HostThread& host, int status) {
  std::fflush(stdout);
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
