// Plays a trace of events, written by hand, to an observer. One event a line; `#` begins a comment.
//
//   region KIND RANK NAME ADDRESS BYTES ELEMENT_BYTES WRITTEN      KIND: segment argument output scratch signals allocation shared
//   unregion ADDRESS
//   launch ID RANK STREAM GRID BLOCK [CLUSTER]                      begins all of its blocks, of one dimension each
//   finish ID
//   arrive|depart RANK STREAM CALL
//   copy RANK STREAM TO FROM BYTES [WHAT]    record|await RANK STREAM EVENT GENERATION    sync RANK STREAM
//   LAUNCH BLOCK THREADS OPCODE ARGUMENTS :LINE                     THREADS: 3, 0-31, or *
//
// ld.volatile.data and the like decide no branch. cp.async.bulk.load.late takes effect at its `complete`. Addresses of accesses may have a step for each thread: 0x1000+4.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "events.h"

namespace {

using namespace pkb::emulator;
using std::string;

bool has(const string& opcode, const string& part) {
  return ("." + opcode + ".").find("." + part + ".") != string::npos;
}

Order order_of(const string& opcode) {
  const std::pair<const char*, Order> orders[] = {
      {"volatile", Order::kVolatile}, {"relaxed", Order::kRelaxed}, {"acquire", Order::kAcquire},
      {"release", Order::kRelease},   {"acq_rel", Order::kAcquireRelease}, {"sc", Order::kSequential}};
  for (const auto& [name, order] : orders) {
    if (has(opcode, name)) return order;
  }
  return opcode.rfind("atom", 0) == 0 || opcode.rfind("red", 0) == 0 ? Order::kRelaxed : Order::kWeak;
}

Scope scope_of(const string& opcode) {
  const std::pair<const char*, Scope> scopes[] = {
      {"cta", Scope::kCta}, {"cluster", Scope::kCluster}, {"gpu", Scope::kGpu}, {"sys", Scope::kSys}};
  for (const auto& [name, scope] : scopes) {
    if (has(opcode, name)) return scope;
  }
  return Scope::kNone;
}

uint32_t element_of(const string& opcode) {
  for (const uint32_t bits : {128u, 64u, 32u, 16u, 8u}) {
    for (const char* type : {"u", "b", "f", "s"}) {
      if (has(opcode, type + std::to_string(bits))) return bits / 8;
    }
  }
  throw std::runtime_error("no type in " + opcode);
}

struct Player {
  Observer& observer;
  std::map<uint64_t, Launch> launches;
  std::map<uint64_t, Region> regions;
  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, uint64_t> generations;
  std::map<uint64_t, std::pair<AsyncOperation, Warp>> operations;
  std::map<uint64_t, std::vector<RangeAccess>> late;  // of bulk copies that take effect when they complete
  std::map<int, SourceLine> lines;
  std::set<string> texts;
  uint64_t next_id = 1;

  const char* keep(const string& text) { return texts.insert(text).first->c_str(); }

  void line(const string& text);
  void stream_line(const string& verb, std::istringstream& in);
  void warp_line(uint64_t launch, std::istringstream& in);
  void warp_event(Warp warp, const string& opcode, std::istringstream& in, uint32_t first_thread);
  void barrier(const std::vector<Warp>& warps, uint32_t number, bool waits);
};

uint64_t number(std::istringstream& in) {
  string text;
  if (!(in >> text)) throw std::runtime_error("a number is missing");
  return std::stoull(text, nullptr, 0);
}

string word(std::istringstream& in) {
  string text;
  in >> text;
  return text;
}

void Player::stream_line(const string& verb, std::istringstream& in) {
  StreamOperation operation{};
  operation.id = next_id++;
  operation.rank = int(number(in));
  operation.stream = number(in);
  if (verb == "sync") return observer.host_waited_stream(operation.rank, operation.stream);
  operation.what = keep(verb);
  const auto kind = std::map<string, StreamOperationKind>{
      {"arrive", StreamOperationKind::kArrival},    {"depart", StreamOperationKind::kDeparture},
      {"copy", StreamOperationKind::kCopy},         {"record", StreamOperationKind::kEventRecord},
      {"await", StreamOperationKind::kEventWait}};
  operation.kind = kind.at(verb);
  if (verb == "record" || verb == "await") {
    operation.event = number(in);
    operation.event_generation = number(in);
  }
  observer.stream_enqueue(operation);
  observer.stream_begin(operation);
  if (verb == "arrive") observer.arrival(operation.rank, number(in));
  if (verb == "depart") observer.departure(operation.rank, number(in));
  if (verb == "copy") {
    const uint64_t to = number(in), from = number(in), bytes = number(in);
    const string what = word(in);
    const char* name = keep(what.empty() ? "cudaMemcpyAsync" : what);
    observer.range_access({operation.id, operation.rank, Operation::kRead, Proxy::kHost, Space::kGlobal, from, bytes, name, nullptr});
    observer.range_access({operation.id, operation.rank, Operation::kWrite, Proxy::kHost, Space::kGlobal, to, bytes, name, nullptr});
  }
  observer.stream_end(operation);
}

void Player::line(const string& text) {
  std::istringstream in(text.substr(0, text.find('#')));
  string verb;
  if (!(in >> verb)) return;
  if (verb == "region") {
    const std::map<string, RegionKind> kinds = {
        {"segment", RegionKind::kSegment}, {"argument", RegionKind::kArgument}, {"output", RegionKind::kOutput},
        {"scratch", RegionKind::kScratch}, {"signals", RegionKind::kSignals},   {"allocation", RegionKind::kAllocation},
        {"shared", RegionKind::kShared}};
    Region region{};
    region.id = next_id++;
    region.kind = kinds.at(word(in));
    region.rank = int(number(in));
    region.name = keep(word(in));
    region.address = number(in);
    region.bytes = number(in);
    region.element_bytes = uint32_t(number(in));
    region.initialised = number(in) != 0;
    regions[region.address] = region;
    observer.region_added(region);
  } else if (verb == "unregion") {
    observer.region_removed(regions.at(number(in)));
  } else if (verb == "launch") {
    const uint64_t id = number(in);
    Launch& launch = launches[id];
    launch = Launch{};
    launch.id = id;
    launch.rank = int(number(in));
    launch.stream = number(in);
    launch.kernel = keep("kernel" + std::to_string(id));
    const auto grid = uint32_t(number(in)), block = uint32_t(number(in));
    uint32_t cluster = 1;
    in >> cluster;
    for (int d = 0; d < 3; ++d) launch.grid[d] = launch.block[d] = launch.cluster[d] = 1;
    launch.grid[0] = grid;
    launch.block[0] = block;
    launch.cluster[0] = cluster;
    StreamOperation operation{};
    operation.id = id << 32;
    operation.kind = StreamOperationKind::kKernel;
    operation.rank = launch.rank;
    operation.stream = launch.stream;
    operation.launch = &launch;
    observer.stream_enqueue(operation);
    observer.stream_begin(operation);
    observer.launch_begin(launch);
    for (uint32_t b = 0; b < grid; ++b) observer.block_begin(launch, b, block);
  } else if (verb == "finish") {
    const Launch& launch = launches.at(number(in));
    for (uint32_t b = 0; b < launch.grid[0]; ++b) observer.block_end(launch, b);
    observer.launch_end(launch);
    StreamOperation operation{};
    operation.id = launch.id << 32;
    operation.kind = StreamOperationKind::kKernel;
    operation.rank = launch.rank;
    operation.stream = launch.stream;
    operation.launch = &launch;
    observer.stream_end(operation);
  } else if (verb == "mbarrier.complete") {
    const uint64_t address = number(in);
    observer.mbarrier_complete(address, number(in));
  } else if (verb == "complete") {
    auto& [operation, warp] = operations.at(number(in));
    for (const RangeAccess& access : late[operation.id]) observer.range_access(access);
    late.erase(operation.id);
    operation.mbarrier = number(in);
    observer.async_complete(operation, number(in));
  } else if (verb[0] >= '0' && verb[0] <= '9') {
    warp_line(std::stoull(verb), in);
  } else {
    stream_line(verb, in);
  }
}

void Player::warp_line(uint64_t id, std::istringstream& in) {
  const Launch& launch = launches.at(id);
  const auto block = uint32_t(number(in));
  const string threads = word(in), opcode = word(in);
  uint32_t first = 0, last = launch.block[0] - 1;
  if (threads != "*") {
    const size_t dash = threads.find('-');
    first = last = uint32_t(std::stoul(threads));
    if (dash != string::npos) last = uint32_t(std::stoul(threads.substr(dash + 1)));
  }
  string rest;
  std::getline(in, rest);
  const size_t colon = rest.rfind(':');
  if (colon == string::npos) throw std::runtime_error("no :LINE");
  const int at = std::stoi(rest.substr(colon + 1));
  SourceLine& source = lines[at];
  source = {"kernel.cu", at, nullptr, 0};
  std::vector<Warp> warps;
  for (uint32_t w = first / 32; w <= last / 32; ++w) {
    uint32_t lanes = 0, full = 0;
    for (uint32_t t = w * 32; t < w * 32 + 32 && t < launch.block[0]; ++t) {
      full |= 1u << t % 32;
      if (t >= first && t <= last) lanes |= 1u << t % 32;
    }
    const uint32_t per_cluster = launch.cluster[0];
    warps.push_back({&launch, launch.rank, block, block / per_cluster, block % per_cluster, w, lanes, full, keep(opcode), &source});
  }
  const string arguments = rest.substr(0, colon);
  if (opcode.rfind("bar.sync", 0) == 0 || opcode.rfind("bar.arrive", 0) == 0) {
    std::istringstream own(arguments);
    return barrier(warps, uint32_t(number(own)), opcode.rfind("bar.sync", 0) == 0);
  }
  for (const Warp& warp : warps) {
    std::istringstream own(arguments);
    warp_event(warp, opcode, own, first);
  }
}

void Player::barrier(const std::vector<Warp>& warps, uint32_t number, bool waits) {
  uint64_t& generation = generations[{warps[0].launch->id, warps[0].block, number}];
  for (const Warp& warp : warps) observer.barrier_arrive(warp, number, generation);
  if (!waits) return;
  for (const Warp& warp : warps) observer.barrier_leave(warp, number, generation);
  ++generation;
}

void Player::warp_event(Warp warp, const string& opcode, std::istringstream& in, uint32_t first_thread) {
  const string kind = opcode.substr(0, opcode.find('.'));
  const auto is = [&](const char* begin) { return opcode.rfind(begin, 0) == 0; };
  if (kind == "ld" || kind == "st" || kind == "atom" || kind == "red") {
    uint64_t addresses[kLanes] = {};
    const string address = word(in);
    const size_t plus = address.find('+');
    const uint64_t base = std::stoull(address, nullptr, 0);
    const uint64_t step = plus == string::npos ? 0 : std::stoull(address.substr(plus + 1), nullptr, 0);
    for (uint32_t lane = 0; lane < uint32_t(kLanes); ++lane) {
      addresses[lane] = base + step * (warp.warp * 32 + lane - first_thread);
    }
    Access access{};
    access.warp = warp;
    access.operation = kind == "ld" ? Operation::kRead : kind == "st" ? Operation::kWrite : Operation::kAtomic;
    access.order = order_of(opcode);
    access.scope = scope_of(opcode);
    access.space = has(opcode, "shared") ? Space::kShared : Space::kGlobal;
    access.element_bytes = element_of(opcode);
    access.bytes = access.element_bytes * (has(opcode, "v2") ? 2 : has(opcode, "v4") ? 4 : 1);
    access.wrote = has(opcode, "failed") || has(opcode, "same") ? 0 : warp.lanes;
    access.addresses = addresses;
    access.aligned = base % access.bytes == 0;
    access.decides = !has(opcode, "data");
    observer.access(access);
  } else if (is("fence.proxy")) {
    observer.proxy_fence(warp, has(opcode, "global") ? ProxyFence::kAsyncGlobal
                               : has(opcode, "shared") ? ProxyFence::kAsyncShared : ProxyFence::kAsync);
  } else if (is("fence.mbarrier_init")) {
    observer.mbarrier_init_fence(warp);
  } else if (kind == "fence") {
    observer.fence(warp, order_of(opcode), scope_of(opcode));
  } else if (is("bar.warp.sync")) {
    observer.warp_barrier(warp);
  } else if (is("barrier.cluster.arrive")) {
    observer.cluster_arrive(warp, !has(opcode, "relaxed"), number(in));
  } else if (is("barrier.cluster.wait")) {
    observer.cluster_leave(warp, true, number(in));
  } else if (kind == "mbarrier") {
    const uint64_t address = number(in), value = number(in);
    if (is("mbarrier.init")) observer.mbarrier_init(warp, address, uint32_t(value));
    if (is("mbarrier.arrive")) {
      observer.mbarrier_arrive(warp, address, value, has(opcode, "relaxed") ? Order::kRelaxed : Order::kRelease, Scope::kCta);
    }
    if (is("mbarrier.expect")) observer.mbarrier_expect(warp, address, value, uint32_t(number(in)));
    if (is("mbarrier.wait")) {
      observer.mbarrier_wait(warp, address, value, has(opcode, "relaxed") ? Order::kRelaxed : Order::kAcquire, Scope::kCta);
    }
  } else if (is("cp.async.bulk.load") || is("cp.async.bulk.store")) {
    const bool loads = is("cp.async.bulk.load");
    AsyncOperation operation{number(in), warp, loads ? Completion::kMbarrier : Completion::kBulkGroup, 0};
    if (loads) operation.mbarrier = number(in);
    const uint64_t to = number(in), from = number(in), bytes = number(in);
    operations[operation.id] = {operation, warp};
    observer.async_issue(operation);
    const Space of_from = loads ? Space::kGlobal : Space::kShared, of_to = loads ? Space::kShared : Space::kGlobal;
    const RangeAccess accesses[] = {{operation.id, warp.rank, Operation::kRead, Proxy::kAsync, of_from, from, bytes, "cp.async.bulk", warp.line},
                                    {operation.id, warp.rank, Operation::kWrite, Proxy::kAsync, of_to, to, bytes, "cp.async.bulk", warp.line}};
    for (const RangeAccess& access : accesses) {
      if (has(opcode, "late")) late[operation.id].push_back(access);
      else observer.range_access(access);
    }
  } else if (is("cp.async.plain")) {
    const AsyncOperation operation{number(in), warp, Completion::kCopyGroup, 0};
    const uint64_t to = number(in), from = number(in), bytes = number(in);
    observer.async_issue(operation);
    observer.range_access({operation.id, warp.rank, Operation::kRead, Proxy::kGeneric, Space::kGlobal, from, bytes, "cp.async", warp.line});
    observer.range_access({operation.id, warp.rank, Operation::kWrite, Proxy::kGeneric, Space::kShared, to, bytes, "cp.async", warp.line});
    observer.async_complete(operation, 0);
  } else if (is("cp.async.arrive")) {
    observer.async_arrive(warp, Completion::kCopyGroup, number(in));
  } else if (is("wgmma.mma")) {
    const AsyncOperation operation{number(in), warp, Completion::kWgmmaGroup, 0};
    const uint64_t from = number(in), bytes = number(in);
    observer.async_issue(operation);
    observer.range_access({operation.id, warp.rank, Operation::kRead, Proxy::kAsync, Space::kShared, from, bytes, "wgmma", warp.line});
  } else if (is("commit") || is("wait")) {
    const Completion completion = has(opcode, "wgmma") ? Completion::kWgmmaGroup : Completion::kBulkGroup;
    if (is("commit")) observer.async_commit(warp, completion);
    else observer.async_wait(warp, completion, uint32_t(number(in)), has(opcode, "read"));
  } else {
    throw std::runtime_error("no event is called " + opcode);
  }
}

}  // namespace

// Returns 0; or the number of the line that is wrong, and says why.
extern "C" int play_trace(void* observer, const char* trace, char* error, int error_bytes) {
  Player player{*static_cast<Observer*>(observer), {}, {}, {}, {}, {}, {}};
  // Texts and lines live as long as the detector, as the emulator's do.
  static std::deque<Player>* const players = new std::deque<Player>;
  players->push_back(std::move(player));
  std::istringstream in(trace);
  string line;
  for (int at = 1; std::getline(in, line); ++at) {
    try {
      players->back().line(line);
    } catch (const std::exception& problem) {
      std::snprintf(error, size_t(error_bytes), "%s: %s", line.c_str(), problem.what());
      return at;
    }
  }
  return 0;
}
