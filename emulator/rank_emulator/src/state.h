// What runs: grids of a launch, clusters and blocks that are resident, warps and the groups of their lanes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "events.h"
#include "program.h"

namespace pkb::emulator {

struct Block;
struct Grid;

// Why a group of lanes stands still.
enum class Wait : uint8_t {
  kNone,
  kPoll,        // it read memory that has not changed since; goes on when that changes, and now and then
  kBarrier,     // of the block
  kCluster,     // barrier.cluster
  kWarp,        // other lanes of the warp, by a .sync instruction
  kAsync        // groups of asynchronous copies
};

struct Watched {
  uint64_t address;
  uint64_t value[2];
  uint32_t bytes;
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
  uint32_t skipped = 0;         // rounds in which what it polls had not changed
  int poll_pc = -1;
  uint64_t poll_digest = 0;
  std::vector<Watched> watched;
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
  std::unique_ptr<std::array<CopyGroups, kLanes>> copies;
  enum class Queue : uint8_t { kNone, kReady, kParked } queue = Queue::kNone;
  uint64_t priority = 0;
  size_t turn = 0;                    // which split runs first
  uint64_t cluster_generation = 0;    // of barrier.cluster, at its last arrival

  uint32_t alive() const { return existing & ~exited; }
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
  uint64_t local_region = 0, shared_region = 0;
  int multiprocessor = 0;
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
  std::vector<std::unique_ptr<Cluster>> resident;
  bool finished() const { return finished_clusters == clusters; }
};

}  // namespace pkb::emulator
