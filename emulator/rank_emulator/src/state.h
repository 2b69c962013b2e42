// What runs: grids of a launch, clusters and blocks that are resident, warps and the groups of their lanes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "events.h"
#include "loop_check.h"
#include "program.h"

namespace pkb::emulator {

struct Block;
struct Grid;

// Why a group of lanes stands still.
enum class Wait : uint8_t {
  kNone,
  kPoll,        // it has read the same again; goes on when what the warp has observed changes, and now and then
  kBarrier,     // of the block
  kCluster,     // barrier.cluster
  kWarp,        // other lanes of the warp, by a .sync instruction
  kAsync,       // groups of asynchronous copies
  kPrerequisite // the end of the kernel before its own, by griddepcontrol.wait
};

// What a lane has read of memory that others write.
struct Observed {
  const Op* op;
  uint64_t address;
  uint64_t value[2];
  uint8_t bytes, lane;
};

// What a warp has read since it last changed something that others can see. A warp that reads nothing else, and the same
// again, waits for a change of one of these words.
class Observations {
 public:
  // Notes a read; true: this lane has read the same there before, by the same instruction.
  bool note(const Op* op, int lane, uint64_t address, uint32_t bytes);
  // Whether memory has changed at one of the places; the first of those.
  const Observed* changed() const;
  // Takes over what memory holds by now.
  void refresh();
  void clear();
  bool empty() const { return all_.empty(); }
  size_t size() const { return all_.size(); }

 private:
  std::vector<Observed> all_;
  std::vector<uint16_t> table_;  // by hash: place in `all_`, from 1; 0: none
};

struct Call {
  const Code* code;
  int return_to;
  uint32_t frame_offset;  // of the caller
  uint32_t local_offset;
  const Op* op;
};

// Lanes of a warp that execute together.
struct Split {
  uint32_t lanes = 0;
  int pc = 0;
  int join = -1;                // where it meets others: index of the warp's joins, -1: nowhere
  const Code* code = nullptr;
  uint32_t frame_offset = 0;    // of the registers of the function
  uint32_t local_offset = 0;
  std::vector<Call> calls;

  Wait wait = Wait::kNone;
  bool arrived = false;         // at the barrier that it is blocked at
  uint32_t barrier = 0;
  uint64_t generation = 0;      // that it waits for
  uint32_t members = 0;         // of kWarp
  const Op* polling = nullptr;  // of kPoll: the instruction that it has executed last, and what it read
  uint64_t polled = 0;          // 0: a clock
  uint32_t polled_bytes = 0;
  int polling_lane = 0;
};

// Where the paths of a branch meet.
struct Join {
  int pc = -1;
  uint32_t depth = 0;           // of calls
  uint32_t expected = 0, arrived = 0;
  int parent = -1;
  bool free = true;
  // As the split that parted has it.
  const Code* code = nullptr;
  uint32_t frame_offset = 0, local_offset = 0;
  std::vector<Call> calls;
};

// Copies of one lane that are on their way, by group, the oldest first. The last one is open.
struct CopyGroups {
  std::vector<uint32_t> bulk{0};  // copies of each group that are not complete
  std::vector<uint32_t> plain{0}; // of cp.async
  uint64_t first_bulk = 0, first_plain = 0;  // number of the first group
};

// Registers whose lanes hold, or depend on, what nobody has written, by their place in the warp's registers.
struct UnwrittenRegister {
  uint32_t bytes = 0, lanes = 0, load = 0;
};

struct WarpState {
  Block* block = nullptr;
  uint32_t index = 0;
  uint32_t existing = 0, exited = 0;  // lanes
  char* registers = nullptr;
  uint32_t frame_bytes = 0;           // of the registers
  AlignedBytes grown;                 // registers of recursion, and of calls through pointers
  char* specials = nullptr;
  char* local = nullptr;              // local memory of lane 0
  std::vector<Split> splits;
  std::vector<Join> joins;
  uint32_t carry = 0;                 // condition code of add.cc, by lane
  uint32_t late_puts = 0, late_gets = 0;  // lanes within a non-blocking put or get whose stores are late
  std::unique_ptr<std::array<CopyGroups, kLanes>> copies;
  enum class Queue : uint8_t { kNone, kReady, kParked } queue = Queue::kNone;
  std::map<uint32_t, UnwrittenRegister> unwritten;
  std::map<uint64_t, uint32_t> unwritten_local;  // of local memory: loads, by address
  uint64_t priority = 0;
  size_t turn = 0;                    // which split runs first
  uint64_t cluster_generations[kLanes] = {};  // of barrier.cluster, at each lane's last arrival
  Observations observations;
  uint32_t repeats = 0;               // reads in a row that found nothing new
  uint32_t clock_reads = 0;           // since it last found something new, or changed something
  uint32_t skipped = 0;               // rounds in which it was parked and nothing that it has observed had changed
  uint64_t quiet_steps = 0;           // since it last changed something that others can see
  uint64_t checked_progress = 0;      // of the engine, when its observations were last held against memory
  uint32_t unchecked_reads = 0;       // that found nothing new since the engine's progress went on
  std::unique_ptr<LoopCheck> loop_check;  // while it is to be seen whether it waits
  uint64_t computes_until = 0;        // the step up to which it is known not to wait
  uint32_t watch = 0;                 // number of the engine's watch that has noted its state
  uint64_t watched_state = 0;
  bool recurs = false;                // its state has been the noted one again

  uint32_t alive() const { return existing & ~exited; }
  // It has changed what others can see: what it reads from now on is new.
  void found_new() {
    if (!observations.empty()) observations.clear();
    loop_check.reset();
    computes_until = 0;
    repeats = clock_reads = 0;
    quiet_steps = 0;
  }
};

struct Barrier {
  uint32_t arrived = 0;     // threads; of incomplete warps those that are missing count as well
  uint32_t expected = 0;    // 0: all threads of the block that have not exited
  uint64_t generation = 0;
  uint32_t predicates_and = 1, predicates_or = 0, predicates_count = 0;  // of bar.red
  uint32_t result_and = 0, result_or = 0, result_count = 0;              // of the last generation
};

struct Cluster {
  Grid* grid = nullptr;
  uint32_t index = 0;
  char* shared = nullptr;       // of the first block
  std::vector<std::unique_ptr<Block>> blocks;
  uint32_t alive_blocks = 0;
  uint32_t arrived = 0;         // threads at barrier.cluster
  uint64_t generation = 0;
};

constexpr uint32_t kSharedStride = 256 << 10;  // from one block's shared memory to the next one's of a cluster
// What the system reserves of a block's shared memory, for thread_block_tile of several warps. A GPU has it below the block's
// own memory; here it lies behind the largest one.
constexpr uint32_t kReservedSharedOffset = 240 << 10, kReservedSharedBytes = 288;
constexpr int kBarriers = 16;

struct Block {
  Cluster* cluster = nullptr;
  Grid* grid = nullptr;
  uint32_t index = 0;           // linear
  uint32_t in_cluster = 0;
  uint32_t coordinates[3] = {0, 0, 0};
  char* shared = nullptr;
  uint32_t shared_bytes = 0;
  std::vector<WarpState> warps;
  uint32_t alive_warps = 0;
  uint32_t threads = 0;
  std::array<Barrier, kBarriers> barriers;
  std::map<uint32_t, uint64_t> phases;  // completed phases of each mbarrier, by offset
  char* registers = nullptr;    // of its warps, with their specials
  char* local = nullptr;
  uint64_t local_region = 0, shared_region = 0, reserved_region = 0;
  int multiprocessor = 0;
  bool has_triggered = false;
  SourceLine ended_at{};        // once all its threads have ended: the last one's instruction
};

// One launch of a kernel.
struct Grid {
  Launch launch{};
  const Kernel* kernel = nullptr;
  std::string name;
  AlignedBytes parameters;      // at a multiple of 64 bytes, as tensor maps must lie
  uint64_t parameter_bytes = 0;
  AlignedBytes workspace;       // of a cooperative launch: where cooperative groups' grid.sync counts blocks
  uint32_t next_cluster = 0, clusters = 0, finished_clusters = 0;
  uint32_t triggered_blocks = 0;  // that let the next kernel begin, or have ended
  std::function<void()> on_trigger;  // once all have
  std::vector<std::unique_ptr<Cluster>> resident;
  bool finished() const { return finished_clusters == clusters; }
};

}  // namespace pkb::emulator
