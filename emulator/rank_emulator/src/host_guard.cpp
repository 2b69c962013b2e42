#include "host_guard.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include "findings.h"
#include "runtime_world.h"

namespace pkb::emulator {
namespace {

#if defined(__x86_64__) && defined(__linux__)
constexpr bool kWatches = true;
constexpr greg_t kTrapFlag = 0x100;
constexpr greg_t kWrites = 2;  // of a page fault's error code
uint64_t instruction_in(const ucontext_t& context) { return uint64_t(context.uc_mcontext.gregs[REG_RIP]); }
bool writes(const ucontext_t& context) { return context.uc_mcontext.gregs[REG_ERR] & kWrites; }
uint64_t registers_of(const ucontext_t& context) {
  uint64_t digest = 0;
  for (const greg_t each : context.uc_mcontext.gregs) digest = (digest ^ uint64_t(each)) * 0x9e3779b97f4a7c15ull;
  return digest;
}
void step(ucontext_t& context, bool is_on) {
  greg_t& flags = context.uc_mcontext.gregs[REG_EFL];
  flags = is_on ? flags | kTrapFlag : flags & ~kTrapFlag;
}
#else
constexpr bool kWatches = false;
uint64_t instruction_in(const ucontext_t&) { return 0; }
bool writes(const ucontext_t&) { return false; }
uint64_t registers_of(const ucontext_t&) { return 0; }
void step(ucontext_t&, bool) {}
#endif

constexpr uint32_t kMostOfTurn = 2048;    // accesses that are looked at one by one; then the first of each page
constexpr uint64_t kMostOfRun = 40000;

const uint64_t kPage = uint64_t(sysconf(_SC_PAGESIZE));

constexpr size_t kMostStates = 512;
constexpr uint32_t kFreshOfProgress = 256; // accesses by which a loop that gets on is told from one that waits

// Handlers of signals read it: a list is never changed.
using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
std::atomic<const Ranges*> program_code{nullptr};

// Lines of instructions of host code, as `World::call_site` has them.
const SourceLine& host_line(uint64_t pc) {
  static std::mutex mutex;
  static std::map<uint64_t, SourceLine> lines;  // by offset in the library
  Dl_info info{};
  const uint64_t base = dladdr(reinterpret_cast<void*>(pc), &info) ? reinterpret_cast<uint64_t>(info.dli_fbase) : 0;
  const std::lock_guard lock(mutex);
  return lines.try_emplace(pc - base, SourceLine{"+host", int(pc - base), nullptr, 0}).first->second;
}

}  // namespace

uint64_t instruction_of(const void* context) { return instruction_in(*static_cast<const ucontext_t*>(context)); }

void add_program_code(const void* within) {
  static std::mutex mutex;
  Dl_info info{};
  if (!dladdr(within, &info)) return;
  struct Found {
    uint64_t base;
    Ranges ranges;
  } found{reinterpret_cast<uint64_t>(info.dli_fbase), {}};
  dl_iterate_phdr([](dl_phdr_info* library, size_t, void* user) {
    auto& of = *static_cast<Found*>(user);
    if (library->dlpi_addr != of.base) return 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const auto& header = library->dlpi_phdr[i];
      if (header.p_type == PT_LOAD && (header.p_flags & PF_X)) of.ranges.emplace_back(of.base + header.p_vaddr, of.base + header.p_vaddr + header.p_memsz);
    }
    return 1;
  }, &found);
  const std::lock_guard lock(mutex);
  const Ranges* const known = program_code;
  if (known) {  // without libraries that are gone, where this one lies now
    for (const auto& old : *known) {
      if (std::none_of(found.ranges.begin(), found.ranges.end(), [&](const auto& range) { return old.first < range.second && range.first < old.second; })) found.ranges.push_back(old);
    }
  }
  program_code = new Ranges(std::move(found.ranges));
}

bool is_program_code(uint64_t address) {
  const Ranges* const ranges = program_code;
  return ranges && std::any_of(ranges->begin(), ranges->end(), [&](const auto& range) { return address >= range.first && address < range.second; });
}

std::string place_of_host_code(uint64_t address) {
  const SourceLine& line = host_line(address);
  return " (" + std::string(line.file) + ":" + std::to_string(line.line) + ")";
}

// Guards of all worlds.
struct Guards {
  std::mutex mutex;
  std::set<HostGuard*> all;
};
static Guards& guards() {
  static Guards all;
  return all;
}

HostGuard::HostGuard(RankState& rank) : rank_(rank) {
  const std::lock_guard lock(guards().mutex);
  guards().all.insert(this);
}
HostGuard::~HostGuard() {
  const std::lock_guard lock(guards().mutex);
  guards().all.erase(this);
}

bool HostGuard::on_foreign_fault(uint64_t address) {
  const std::lock_guard lock(guards().mutex);
  for (HostGuard* const guard : guards().all) {
    if (!guard->holds(address)) continue;
    guard->is_shared_ = true;
    for (const auto& [begin, end] : guard->pages_) guard->protect(begin, end, true);
    return true;
  }
  return false;
}

bool HostGuard::holds(uint64_t address) const {
  const auto after = pages_.upper_bound(address);
  return after != pages_.begin() && address < std::prev(after)->second;
}

void HostGuard::lend(const void* buffer) {
  if (is_closed_ && holds(reinterpret_cast<uint64_t>(buffer))) look_away();
}

void HostGuard::add(uint64_t address, uint64_t bytes) {
  if (!kWatches || is_blind_) return;
  is_blind_ = address % kPage || bytes % kPage;
  if (is_blind_) return look_away();
  pages_[address] = address + bytes;
  if (is_closed_) protect(address, address + bytes, false);
}

void HostGuard::remove(uint64_t address) {
  const auto found = pages_.find(address);
  if (found == pages_.end()) return;
  if (is_closed_) protect(found->first, found->second, true);
  pages_.erase(found);
}

void HostGuard::protect(uint64_t begin, uint64_t end, bool is_open) const {
  mprotect(reinterpret_cast<void*>(begin), end - begin, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void HostGuard::arm() {
  is_armed_ = true;
  close();
}

void HostGuard::disarm() {
  is_armed_ = false;
  open();
}

void HostGuard::close() {
  places_.clear();
  seen_ = 0;
  if (is_shared_ && !is_blind_) {
    is_blind_ = true;
    look_away();
  }
  if (is_armed_) hide();
}

void HostGuard::close_for_function() {
  seen_ = 0;
  if (!is_shared_ && rank_.world->engine.observer) hide();
}

void HostGuard::hide() {
  if (is_closed_ || is_blind_ || pages_.empty()) return;
  for (const auto& [begin, end] : pages_) protect(begin, end, false);
  is_closed_ = true;
}

void HostGuard::open() {
  if (!is_closed_) return;
  for (const auto& [begin, end] : pages_) protect(begin, end, true);
  is_closed_ = false;
}

void HostGuard::look_away() {
  open();
  World& world = *rank_.world;
  for (size_t i = 0; i < world.visible() && world.engine.observer; ++i) world.engine.observer->host_unseen(world.visible(rank_, i).rank);
}

bool HostGuard::on_fault(uint64_t address, void* of) {
  auto& context = *static_cast<ucontext_t*>(of);
  if (!is_closed_ || !holds(address)) return false;
  if (++all_seen_ > kMostOfRun) {
    is_blind_ = true;
    look_away();
    return true;
  }
  const uint64_t page = address / kPage * kPage;
  stepping_.push_back({page, address, instruction_in(context), writes(context), ++seen_ > kMostOfTurn});
  protect(page, page + kPage, true);
  step(context, true);
  return true;
}

bool HostGuard::on_step(void* of) {
  if (stepping_.empty()) return false;
  step(*static_cast<ucontext_t*>(of), false);
  const std::vector<Touched> all = std::exchange(stepping_, {});
  if (is_closed_) {
    for (const Touched& touched : all) protect(touched.page, touched.page + kPage, touched.stays_open);
  }
  for (const Touched& touched : all) note(touched, registers_of(*static_cast<ucontext_t*>(of)));
  return true;
}

// As of a kernel of one thread. x86 loads acquire, and its stores release.
static void report(Observer& observer, const World& world, const Launch& launch, uint64_t address, uint64_t pc, bool writes, bool decides) {
  static constexpr SourceLine kNoLine{};
  const Warp warp{&launch, launch.rank, 0, 0, 0, 0, 1, 1, detector::kHostCode, world.notes_call_sites ? &host_line(pc) : &kNoLine};
  uint64_t addresses[kLanes] = {address};
  Access access{warp, writes ? Operation::kWrite : Operation::kRead, writes ? Order::kRelease : Order::kAcquire, Scope::kSys, Space::kGlobal,
                Proxy::kHost, 1, 1, 1, addresses, true};
  access.decides = decides;
  observer.launch_begin(launch);
  observer.block_begin(launch, 0, 1);
  observer.access(access);
  observer.lanes_exit(warp);
  observer.block_end(launch, 0);
  observer.launch_end(launch);
}

// The host waits for the kernel.
void HostGuard::note(const Touched& touched, uint64_t registers) {
  World& world = *rank_.world;
  Engine& engine = world.engine;
  if (!World::current) return note_of_function(touched);
  const bool is_again = !places_.emplace(touched.address, touched.pc).second;
  if (Observer* const observer = engine.observer) {
    HostThread& host = *World::current;
    if (!host.accesses) host.accesses = engine.next_id++;
    const int rank = host.device->rank;
    const Launch launch{engine.next_id++, rank, host.accesses, detector::kHostCode, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 0, 0, false};
    const StreamOperation operation{engine.next_id++, StreamOperationKind::kKernel, rank, host.accesses, 0, 0, &launch, detector::kHostCode, false, host.number};
    observer->stream_enqueue(operation);
    observer->stream_begin(operation);
    report(*observer, world, launch, touched.address, touched.pc, touched.writes, is_again);
    observer->stream_end(operation);
    observer->host_waited_stream(host.number, host.accesses);
  }
  if (!is_again || !is_program_code(touched.pc)) return;
  if (states_.size() > kMostStates) states_.clear();
  if (states_.insert(registers).second && ++fresh_ % kFreshOfProgress == 0) {  // it computes, and does not wait
    ++engine.effects;
    ++engine.progress;
  }
  world.let_others_go_on("memory that host code looks at again and again", true);
}

// The kernel is a part of the stream's operation.
void HostGuard::note_of_function(const Touched& touched) const {
  World& world = *rank_.world;
  const StreamOperation& operation = *world.host_operation;
  const Launch launch{world.engine.next_id++, operation.rank, operation.stream, detector::kHostCode, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 0, 0, operation.is_on_default_stream};
  report(*world.engine.observer, world, launch, touched.address, touched.pc, touched.writes, false);
}

}  // namespace pkb::emulator
