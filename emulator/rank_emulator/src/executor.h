// Executes warps: lanes that run together, one instruction at a time.
#pragma once

#include <cstring>

#include "engine.h"
#include "lanes.h"

namespace pkb::emulator {

class Executor {
 public:
  static constexpr uint64_t kQuietSteps = 20'000;

  explicit Executor(Engine& engine) : engine(engine) {}

  // Runs one group of lanes of the warp after the other, for `budget` instructions or until none may go on.
  void run(WarpState& warp, uint64_t budget);

  // ---- state of the instruction that is being executed, for handlers ----
  Engine& engine;
  WarpState* warp = nullptr;
  Block* block = nullptr;
  Grid* grid = nullptr;
  Split* split = nullptr;
  const char* bases[kBases] = {};

  char* at(Ref ref) const { return const_cast<char*>(bases[ref.base]) + ref.offset; }
  const char* at(const Value& value) const { return bases[value.ref.base] + value.ref.offset; }
  // A lane of an operand; a predicate is 0 or 1.
  uint64_t value(const Value& value, int lane) const;
  uint32_t mask(const Value& value) const;
  void set(const Value& value, int lane, uint64_t bits) const;
  void set_mask(const Value& value, uint32_t mask, uint32_t lanes) const;
  // Addresses of lanes, as the emulator's own; checked, each with this many bytes, whose multiple they must be. Returns
  // where they lie; null: not all in one extent.
  // Memory at an address that a program uses, to which the kernel has access; null: there is none.
  const Extent* find_reached(uint64_t address, uint64_t bytes) const;
  const Extent* resolve(const Op& op, const Address& address, uint32_t lanes, uint32_t bytes, uint32_t alignment, uint64_t (&to)[kLanes]);
  // As they stand in the operand, as a program sees them and without the base of their space.
  void raw_addresses(const Address& address, uint32_t lanes, uint64_t (&to)[kLanes]) const;
  // Fails where a block of the cluster has ended.
  void check_lives(const Op& op, const Block& of) const;
  uint64_t shared_address(const Op& op, uint64_t offset, uint32_t bytes, uint32_t alignment) const;
  Space space_of(const Detail& detail, uint64_t address) const;
  // A place in a lane's frame of local memory.
  char* local_memory(int lane, uint32_t offset) const { return warp->local + uint64_t(lane) * grid->kernel->local_bytes + offset; }
  // An argument of a call, of at most 8 bytes.
  uint64_t argument(const Detail& detail, size_t index, int lane) const;
  // Lanes whose address lies neither in shared memory of the cluster nor in local memory.
  uint32_t outside(uint32_t lanes, const uint64_t (&addresses)[kLanes]) const;

  // ---- control ----
  void branch(const Op& op, uint32_t taken, int target);
  void exit_lanes(uint32_t lanes);
  // After the split has entered or left a function.
  void rebase() { enter(index_); }
  // Lanes of a .sync instruction: those that have come, once all of `members` have; 0: not yet (the split waits).
  uint32_t gather(uint32_t members, uint32_t lanes, bool anywhere);
  bool is_full(uint32_t lanes) const { return (lanes | ~warp->alive()) == ~0u; }
  // Notes what a strong read has found; true: nothing new, so that the split waits.
  bool polls(const Op& op, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes);
  // What a clock shows, in ns; a warp that does little else than read it waits for time to pass.
  uint64_t read_clock(const Op& op);
  // Whether weak reads are noted as well: the warp has changed nothing for long.
  bool is_quiet() const { return warp->quiet_steps > kQuietSteps; }
  // After a write that only the block (or its cluster) can see, and after one that may be seen by others.
  void wrote() { ++engine.progress; }
  void wrote_outside() {
    ++engine.progress;
    ++engine.effects;
    warp->found_new();
  }
  // After a write that has changed memory at these addresses.
  void wrote_at(uint32_t lanes, const uint64_t (&addresses)[kLanes]);
  // Notes that lanes have written these addresses, which `resolve` has found in an extent.
  void note_written(const Extent* extent, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes) {
    if (extent) return extent->note_written(lanes, addresses, bytes);
    each_lane(lanes, [&](int lane) { engine.memory.set_written(addresses[lane], bytes); });
  }
  // What the warp can see of earlier stores, threads of the scope can see from now on.
  void publish(Scope scope) {
    if (!engine.store_buffers.empty()) engine.took_effect(engine.store_buffers.publish(id(), scope));
  }
  // Memory has what the warp can see of this range.
  void settle(uint64_t address, uint64_t bytes) {
    if (!engine.store_buffers.empty()) engine.took_effect(engine.store_buffers.settle(id(), address, bytes));
  }
  WarpId id() const { return {grid->launch.id, grid->launch.rank, block->cluster->index, block->index, warp->index}; }
  CopyGroups& copies(int lane);

  // ---- events and faults ----
  Warp seen(const Op& op, uint32_t lanes) const;
  void report_access(const Op& op, uint32_t lanes, Operation operation, uint32_t bytes, uint32_t elements,
                     const uint64_t (&addresses)[kLanes], uint32_t wrote, Proxy proxy = Proxy::kGeneric);
  [[noreturn]] void fail(Outcome outcome, const Op& op, uint32_t lane, const std::string& problem) const;

  // Whether a group of lanes may go on.
  static bool runnable(const Split& split) { return split.wait == Wait::kNone; }

  // ---- what nobody has written: loads bring it to registers, and what is computed of it goes on ----
  UnwrittenRegister unwritten_at(const Ref& ref, uint32_t lanes) const;
  void set_unwritten(const Ref& ref, uint32_t bytes, uint32_t lanes, const UnwrittenRegister& of);
  void use_unwritten(const UnwrittenRegister& of) const {
    if (of.lanes && engine.observer) engine.observer->unwritten_used(of.load);
  }
  Unwritten unwritten_lines;  // of the matrix that a wmma.load has read

 private:
  friend class Engine;
  void run_split(size_t index, uint64_t& budget);
  void polls_clock(const Op& op);
  void note_uses(const Op& op, uint32_t lanes);
  // Before an instruction.
  void follow_unwritten(const Op& op);
  void follow_product(const Op& op, uint32_t lanes);
  // After the event of an access.
  void load_local(uint32_t lanes, const uint64_t (&addresses)[kLanes], Unwritten& found) const;
  void load_unwritten(const Op& op, const Unwritten& found);
  void store_unwritten(const Op& op, uint32_t lanes, uint32_t bytes, Space space, const uint64_t (&addresses)[kLanes]);
  void arrive_at_join();
  void enter(size_t index);
  int new_join(const Join& join);
  void complete(int join);
  void remove_split();

  size_t index_ = 0;  // of the split that runs
};

// The handler of an instruction, with what it needs in `detail`; null: it is none of this group.
Handler find_texture_handler(const Instruction& instruction, Detail& detail);
Handler find_memory_handler(const Instruction& instruction, Detail& detail);
Handler find_atomic_handler(const Instruction& instruction, Detail& detail);
Handler find_multimem_handler(const Instruction& instruction, Detail& detail);
Handler find_barrier_handler(const Instruction& instruction, Detail& detail);
Handler find_mbarrier_handler(const Instruction& instruction, Detail& detail);
Handler find_warp_handler(const Instruction& instruction, Detail& detail);
Handler find_copy_handler(const Instruction& instruction, Detail& detail);
Handler find_bulk_handler(const Instruction& instruction, Detail& detail);
Handler find_remote_handler(const Instruction& instruction, Detail& detail);
Handler find_matrix_handler(const Instruction& instruction, Detail& detail);
Handler find_wgmma_handler(const Instruction& instruction, Detail& detail);
Handler find_wmma_handler(const Instruction& instruction, Detail& detail);
Handler find_call_handler(const Instruction& instruction, Detail& detail);
Handler find_control_handler(const Instruction& instruction, Detail& detail);
Handler find_misc_handler(const Instruction& instruction, Detail& detail);
Handler find_video_handler(const Instruction& instruction, Detail& detail);

// Reads from atom, red and the like what they compute of two numbers; false: nothing that is known.
bool read_update(const Instruction& instruction, Detail& detail);
// What stands in memory after it.
uint64_t updated(const Detail& detail, bool global, uint64_t old, uint64_t b, uint64_t c);
// Memory holds what the lanes can see of these places, and others see what a release makes visible.
void settle(Executor& x, const Detail& detail, uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes);

// Calls of vprintf, malloc and free.
Step print_call(Executor& x, const Op& op, uint32_t lanes);
Step allocate_call(Executor& x, const Op& op, uint32_t lanes);
Step free_call(Executor& x, const Op& op, uint32_t lanes);

// After threads have exited: barriers that waited for them alone complete.
void recheck_barriers(Engine& engine, Block& block);

// Counts bytes of copies at an mbarrier, and completes its phase if they were the last. For copies that run later.
void complete_bytes(Engine& engine, Block& block, uint32_t offset, uint32_t bytes);
// The block of the cluster whose shared memory holds an address of this process, and the offset in it.
Block* block_of(Cluster& cluster, uint64_t address, uint32_t& offset);

}  // namespace pkb::emulator
