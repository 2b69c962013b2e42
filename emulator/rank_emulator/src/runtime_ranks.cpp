// Functions of include/rank_emulator.h: exchanges between the hosts of ranks, and the symmetric heap.
#include "runtime_ranks.h"

#include <cstring>

#include "alignment.h"
#include "runtime_cuda.h"

using namespace pkb::emulator;

#define PKB_RANKS extern "C" __attribute__((visibility("default")))

namespace pkb::emulator {

SharedState& shared_state(World& world) {
  if (!world.shared) {
    world.shared = std::make_shared<SharedState>();
    world.shared->symmetric.resize(world.ranks.size());
  }
  return *world.shared;
}

}  // namespace pkb::emulator

namespace {

// Declared buffers lie in the lower half of a segment, the symmetric heap in the upper one.
uint64_t heap_offset(const RankState& rank) { return align_up(rank.segment.bytes() / 2, 4096); }

int refuse(RankState& rank, Outcome outcome, const std::string& text) {
  rank.world->fail(Fault{outcome, rank.rank, "rank " + std::to_string(rank.rank) + ": " + text});
  return -1;
}

// Notes that a host has come, as an event that it has recorded.
EventRecord record_host(RankState& rank, const char* name) {
  Engine& engine = rank.world->engine;
  const EventRecord record{engine.next_id++, engine.next_id++, true, engine.now_ns()};
  if (Observer* const observer = engine.observer) {
    const StreamOperation operation{engine.next_id++, StreamOperationKind::kEventRecord, rank.rank, engine.next_id++, record.event, record.generation, nullptr, name, false};
    observer->stream_enqueue(operation);
    observer->stream_begin(operation);
    observer->stream_end(operation);
  }
  return record;
}

int exchange(RankState& rank, const char* name, const void* mine, void* all, size_t bytes) {
  World& world = *rank.world;
  if (world.failed()) return -1;
  Exchange& state = shared_state(world).exchange;
  if (state.given.empty()) {
    state.given.resize(world.ranks.size());
    state.arrivals.resize(world.ranks.size());
  }
  if (state.arrived == 0) {
    state.name = name;
  } else if (state.name != name) {
    return refuse(rank, Outcome::kBodyFailed, std::string("calls ") + name + ", while another rank is in " + state.name + "; all ranks make these calls in the same order");
  }
  const uint64_t round = state.round;
  const auto* const begin = static_cast<const char*>(mine);
  state.given[size_t(rank.rank)].assign(begin, begin + bytes);
  state.arrivals[size_t(rank.rank)] = record_host(rank, name);
  const std::string why = name;
  if (++state.arrived == int(world.ranks.size())) {
    for (size_t other = 0; other < world.ranks.size(); ++other) {
      if (state.given[other].size() != bytes) {
        return refuse(rank, Outcome::kBodyFailed, why + " of " + std::to_string(bytes) + " bytes, and rank " + std::to_string(other) + " has " + std::to_string(state.given[other].size()));
      }
    }
    state.arrived = 0;
    ++state.round;
    ++world.engine.progress;
    ++world.engine.effects;
  }
  // The next exchange begins once all ranks have left this one.
  if (!world.block(rank, why.c_str(), [&state, round] { return state.round > round; })) return -1;
  for (size_t other = 0; other < world.ranks.size(); ++other) {
    if (bytes) std::memcpy(static_cast<char*>(all) + other * bytes, state.given[other].data(), bytes);
    if (Observer* const observer = world.engine.observer) observer->host_waited_event(rank.rank, state.arrivals[other].event, state.arrivals[other].generation);
  }
  if (++state.left < int(world.ranks.size())) {
    return world.block(rank, why.c_str(), [&state, round] { return state.round > round + 1; }) ? 0 : -1;
  }
  state.left = 0;
  ++state.round;
  ++world.engine.progress;
  ++world.engine.effects;
  return 0;
}

}  // namespace

PKB_RANKS int pkb_emu_my_rank() { return calling_rank() ? calling_rank()->rank : -1; }
PKB_RANKS int pkb_emu_rank_count() { return calling_rank() ? int(calling_rank()->world->ranks.size()) : 0; }

PKB_RANKS int pkb_emu_exchange(const char* name, const void* mine, void* all, size_t bytes) {
  RankState* const rank = calling_rank();
  return rank ? exchange(*rank, name, mine, all, bytes) : -1;
}

PKB_RANKS void* pkb_emu_symmetric_base(int number) {
  RankState* const rank = calling_rank();
  if (!rank || number < 0 || size_t(number) >= rank->world->ranks.size()) return nullptr;
  const RankState& of = *rank->world->ranks[size_t(number)];
  return reinterpret_cast<void*>(of.segment.address() + heap_offset(of));
}

PKB_RANKS size_t pkb_emu_symmetric_bytes() {
  RankState* const rank = calling_rank();
  return rank ? rank->segment.bytes() - heap_offset(*rank) : 0;
}

PKB_RANKS void* pkb_emu_symmetric_allocate(const char* name, size_t bytes, size_t alignment) {
  RankState* const rank = calling_rank();
  if (!rank) return nullptr;
  std::vector<uint64_t> sizes(rank->world->ranks.size());
  const uint64_t mine = bytes;
  if (exchange(*rank, name, &mine, sizes.data(), sizeof mine) != 0) return nullptr;
  for (size_t other = 0; other < sizes.size(); ++other) {
    if (sizes[other] == mine) continue;
    refuse(*rank, Outcome::kBodyFailed, std::string(name) + " of " + std::to_string(mine) + " bytes, and rank " + std::to_string(other) + " asks for " + std::to_string(sizes[other]));
    return nullptr;
  }
  if (bytes == 0) return nullptr;
  auto& blocks = shared_state(*rank->world).symmetric[size_t(rank->rank)];
  const uint64_t unit = std::max<uint64_t>(alignment, 256), end = rank->segment.bytes() - heap_offset(*rank);
  uint64_t at = 0;
  for (const auto& [begin, block] : blocks) {
    if (at + bytes <= begin) break;
    at = align_up(begin + block.bytes, unit);
  }
  if (bytes > end || at > end - bytes) return nullptr;
  Memory& memory = rank->world->engine.memory;
  const uint64_t own = reinterpret_cast<uint64_t>(rank->segment.data()) + heap_offset(*rank) + at;
  std::memset(reinterpret_cast<void*>(own), kNewByte, bytes);
  const uint64_t region = memory.add(RegionKind::kScratch, rank->rank, name, own, bytes, Space::kGlobal, false, 1, false);
  memory.set_written(own, bytes, false);
  if (Observer* const observer = rank->world->engine.observer) observer->set_initialised(own, bytes, false);
  blocks[at] = {bytes, region};
  return reinterpret_cast<void*>(rank->segment.address() + heap_offset(*rank) + at);
}

PKB_RANKS int pkb_emu_symmetric_free(const char* name, void* pointer) {
  RankState* const rank = calling_rank();
  if (!rank || exchange(*rank, name, nullptr, nullptr, 0) != 0) return -1;
  if (!pointer) return 0;
  auto& blocks = shared_state(*rank->world).symmetric[size_t(rank->rank)];
  const auto found = blocks.find(reinterpret_cast<uint64_t>(pointer) - rank->segment.address() - heap_offset(*rank));
  if (found == blocks.end()) return refuse(*rank, Outcome::kBodyFailed, std::string(name) + " of a pointer that no symmetric allocation begins at");
  rank->world->engine.memory.remove(found->second.region);
  blocks.erase(found);
  return 0;
}

PKB_RANKS void pkb_emu_refuse(const char* what) {
  if (RankState* const rank = calling_rank()) refuse(*rank, Outcome::kBodyFailed, std::string(what) + " is not modelled by the emulator");
}
