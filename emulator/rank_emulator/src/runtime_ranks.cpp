// Functions of include/rank_emulator.h: exchanges between the hosts of ranks, and the symmetric heap.
#include "runtime_ranks.h"

#include <cstring>
#include <utility>

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
  World& world = *rank.world;
  world.fail(Fault{outcome, world.one_process ? -1 : rank.rank, world.name_of(*World::current) + ": " + text});
  return -1;
}

// The calling thread is a member of those that meet: of `members`, the one of this number.
int meet(Exchange& state, int members, int member, const char* name, const void* mine, void* all, size_t bytes) {
  RankState& rank = *calling_rank();
  World& world = *rank.world;
  if (world.failed()) return -1;
  if (state.given.empty()) state.given.resize(size_t(members));
  if (state.given.size() != size_t(members) || member < 0 || member >= members) {
    return refuse(rank, Outcome::kBodyFailed, std::string(name) + " as member " + std::to_string(member) + " of " + std::to_string(members) + ", where others have " + std::to_string(state.given.size()));
  }
  if (state.arrived == 0) {
    state.name = name;
    state.object = world.engine.next_id++;
  } else if (state.name != name) {
    return refuse(rank, Outcome::kBodyFailed, std::string("calls ") + name + ", while another rank is in " + state.name + "; all ranks make these calls in the same order");
  }
  const uint64_t round = state.round;
  const auto* const begin = static_cast<const char*>(mine);
  state.given[size_t(member)].assign(begin, begin + bytes);
  world.release(state.object);
  const std::string why = name;
  if (++state.arrived == members) {
    for (size_t other = 0; other < state.given.size(); ++other) {
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
  if (!world.block(why, [&state, round] { return state.round > round; })) return -1;
  for (size_t other = 0; other < state.given.size(); ++other) {
    if (bytes) std::memcpy(static_cast<char*>(all) + other * bytes, state.given[other].data(), bytes);
  }
  world.acquire(state.object);
  if (++state.left < members) {
    return world.block(why, [&state, round] { return state.round > round + 1; }) ? 0 : -1;
  }
  state.left = 0;
  ++state.round;
  ++world.engine.progress;
  ++world.engine.effects;
  return 0;
}

int exchange(RankState& rank, const char* name, const void* mine, void* all, size_t bytes) {
  World& world = *rank.world;
  return meet(shared_state(world).exchange, world.processes(), world.one_process ? 0 : rank.rank, name, mine, all, bytes);
}

}  // namespace

PKB_RANKS int pkb_emu_my_rank() { return !calling_rank() ? -1 : calling_rank()->world->one_process ? 0 : calling_rank()->rank; }
PKB_RANKS int pkb_emu_rank_count() { return calling_rank() ? calling_rank()->world->processes() : 0; }
PKB_RANKS int pkb_emu_gpu_count() { return calling_rank() ? int(calling_rank()->world->visible()) : 0; }

PKB_RANKS int pkb_emu_meet(unsigned long long group, int members, int member, const char* name, const void* mine, void* all, size_t bytes) {
  RankState* const rank = calling_rank();
  return rank ? meet(shared_state(*rank->world).groups[group], members, member, name, mine, all, bytes) : -1;
}

PKB_RANKS int pkb_emu_await(unsigned long long group, int members, const char* why) {
  RankState* const rank = calling_rank();
  if (!rank) return -1;
  uint64_t& come = shared_state(*rank->world).awaited[group];
  const uint64_t all = (come++ / uint64_t(members) + 1) * uint64_t(members);
  return rank->world->block(why, [&come, all] { return come >= all; }) ? 0 : -1;
}

PKB_RANKS unsigned long long pkb_emu_unique(void) { return calling_rank() ? calling_rank()->world->engine.next_id++ : 0; }

PKB_RANKS int pkb_emu_reach_peers(int reaches) {
  return World::current ? std::exchange(World::current->reaches_peers, reaches != 0) : 0;
}

PKB_RANKS int pkb_emu_exchange(const char* name, const void* mine, void* all, size_t bytes) {
  RankState* const rank = calling_rank();
  return rank ? exchange(*rank, name, mine, all, bytes) : -1;
}

PKB_RANKS void pkb_emu_quiet(void) {
  RankState* const rank = calling_rank();
  if (!rank) return;
  Engine& engine = rank->world->engine;
  engine.took_effect(engine.late_puts.complete(rank->rank, true));
  if (engine.observer) engine.observer->host_quiet(World::current->number, rank->rank);
}

PKB_RANKS void* pkb_emu_symmetric_base(int number) {
  RankState* const rank = calling_rank();
  if (!rank || number < 0 || size_t(number) >= rank->world->ranks.size()) return nullptr;
  const RankState& of = *rank->world->ranks[size_t(number)];
  return reinterpret_cast<void*>(of.segment.address() + heap_offset(of));
}

PKB_RANKS void* pkb_emu_multicast(char* const* of_ranks, size_t bytes) {
  RankState* const rank = calling_rank();
  if (!rank || bytes == 0) return nullptr;
  std::vector<uint64_t> members;
  for (size_t i = 0; i < rank->world->ranks.size(); ++i) members.push_back(own_address(reinterpret_cast<uint64_t>(of_ranks[i])));
  constexpr uint64_t kPage = 4096;
  const uint64_t inside = members.front() % kPage;  // as aligned as the memory
  Mapping range(inside + bytes);
  const uint64_t begin = reinterpret_cast<uint64_t>(range.data()) + inside;
  rank->world->engine.memory.add_multicast(begin, bytes, std::move(members));
  shared_state(*rank->world).multicasts.emplace(begin, std::move(range));
  return reinterpret_cast<void*>(gpu_address(begin));
}

PKB_RANKS void pkb_emu_end_multicast(void* address) {
  RankState* const rank = calling_rank();
  if (!rank) return;
  const uint64_t begin = own_address(reinterpret_cast<uint64_t>(address));
  rank->world->engine.memory.remove_multicasts(begin, begin + 1);
  shared_state(*rank->world).multicasts.erase(begin);
}

PKB_RANKS size_t pkb_emu_symmetric_bytes() {
  RankState* const rank = calling_rank();
  return rank ? rank->segment.bytes() - heap_offset(*rank) : 0;
}

PKB_RANKS void* pkb_emu_symmetric_allocate(const char* name, size_t bytes, size_t alignment) {
  RankState* const rank = calling_rank();
  if (!rank) return nullptr;
  std::vector<uint64_t> sizes(size_t(rank->world->processes()));
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
