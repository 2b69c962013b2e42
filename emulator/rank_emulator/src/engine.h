// All emulated GPUs of a world: which blocks are resident, which warps may run, copies that are on their way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "heap.h"
#include "late_puts.h"
#include "memory.h"
#include "store_buffers.h"
#include "state.h"
#include "texture.h"

namespace pkb::emulator {

enum class Outcome : int {
  kOk, kDeadlock, kStepLimit, kIllegalAddress, kMisaligned, kUnknownInstruction, kTrap, kBodyFailed, kStopped, kBadLaunch
};

// Ends a run.
struct Fault {
  Outcome outcome;
  int rank;
  std::string message;
  SourceLine line{};
};

// What GPUs of a world are, all alike.
struct Device {
  int multiprocessors = 8;
  uint32_t threads = 2048, blocks = 32, registers = 65536;  // of a multiprocessor
  uint32_t shared_bytes = 228 << 10, shared_of_block = 227 << 10, reserved_shared = 1 << 10;
  uint32_t threads_of_block = 1024;
  int blocks_of_cluster = 8;
};

// How warps and copies are chosen.
struct Choice {
  bool by_priority = false;     // the highest first, until it blocks; else in turn
  uint32_t quantum = 400;       // instructions in turn
  bool delays_copies = false;   // copies complete late, in random order
  uint64_t seed = 0;
  std::vector<uint64_t> rank_priority;  // added to a warp's, shifted above it; empty: none
  bool preempts = false;        // a strong store gives way to warps of a higher priority that wait for it
  uint32_t holds_readers = 0;   // one in so many strong loads is followed by all others, as far as they can go; 0: none.
                                // Ranks of the highest priority are not held
  uint32_t change_points = 3;
  uint64_t change_range = 20000;  // steps within which priorities change
  bool late_stores = false;     // ordinary stores to global memory may wait in store buffers
};

// Blocks of a kernel that fit onto one multiprocessor.
uint32_t occupancy(const Device& device, const Kernel& kernel, uint32_t threads, uint32_t dynamic_shared);

class Executor;

class Engine {
 public:
  Engine(const Device& device, int ranks);
  ~Engine();

  Memory memory;
  StoreBuffers store_buffers;
  LatePuts late_puts;
  std::unordered_map<uint64_t, Texture> textures;  // by handle
  Observer* observer = nullptr;
  const Device device;
  uint64_t steps = 0, max_steps = 0;
  uint64_t progress = 0;        // grows with each write that changes memory, barrier, copy: what a hang has none of
  uint64_t effects = 0;         // likewise, with what others than the block and its cluster can see
  uint64_t clock_reads = 0;
  uint64_t early_begins = 0;    // kernels that have let the next of their stream begin before their own end
  bool one_process = false;     // ranks are GPUs of one process
  uint32_t patience = 0;        // reads in a row that find nothing new, before a warp waits
  uint64_t next_id = 1;

  DeviceHeap& heap(int rank) { return heaps_[size_t(rank)]; }
  // Functions of all modules, by the address that stands for one in a pointer.
  void name_function(uint64_t address, int rank, std::string_view name) { functions_[address] = {rank, std::string(name)}; }
  // What an address is that cannot be called on a rank.
  std::string describe_function(uint64_t address, int rank) const;

  void choose(const Choice& choice);
  const Choice& choice() const { return choice_; }
  std::mt19937_64& random() { return random_; }

  // Adds a launch whose turn in its stream has come; `finished` is called once when all its blocks have ended.
  void start(std::unique_ptr<Grid> grid, std::function<void()> finished);
  // Runs for a while: one warp, or copies that are due. False: nobody could run.
  bool run_some();
  // Whether warps are left.
  bool idle() const;
  // Nobody could run, and nothing that others can see has happened since the last round: warps that wait go on for once,
  // and time passes. False: no wait can end.
  bool stand_still(bool hosts_ran);
  bool stands_still() const { return still_.rounds > 0; }
  // Held arrivals may come: what waits has been seen to wait more than once.
  bool is_settled() const { return still_.rounds > 1; }
  // Something has happened.
  void end_standstill();

  // ---- for the executor ----
  void wake(WarpState& warp);
  void defer(std::function<void()> copy);
  // Stores of a buffer have taken effect; whether memory has changed by them.
  void took_effect(bool changed) {
    progress += changed;
    effects += changed;
  }
  // After a strong store, and after a strong load that has found something new; true: others go on now.
  bool signalled(WarpState& warp);
  bool tested(WarpState& warp);
  // A block lets the next kernel of its stream begin, as far as it is concerned.
  void trigger(Block& block);
  bool is_running(uint64_t launch) const;
  // Warps that can run do so side by side: an instruction of each takes 1 ns.
  uint64_t now_ns() const { return now_ns_ + (steps - slice_begin_) / slice_share_; }
  void pass_time(uint64_t ns) { now_ns_ += ns; }

  // Since long without any write, barrier or copy, and the state of each warp that may run has recurred: nobody gets further.
  bool stuck() const;
  // Where warps stand still, one line for each place.
  std::string standing() const;
  // A run has ended by a fault: everything resident is dropped.
  void clear();

 private:
  struct Running {
    std::unique_ptr<Grid> grid;
    std::function<void()> finished;
  };
  struct Multiprocessor {
    uint32_t threads = 0, blocks = 0, registers = 0, shared = 0;
  };

  void dispatch();
  bool make_cluster(Grid& grid);
  void make_block(Cluster& cluster, uint32_t in_cluster, int multiprocessor);
  void make_warp(Block& block, uint32_t index);
  void drop_block(Block& block);
  void end_block(Block& block);
  void end_launch(Grid& grid);
  void end_drained();
  void wake_dependents(uint64_t launch);
  int room_for(const Grid& grid, const std::vector<int>& taken) const;
  void claim(const Grid& grid, int multiprocessor, int sign);
  void queue(WarpState& warp);
  WarpState* pick();
  bool unpark(bool forced);
  void forget_removed();
  uint64_t state_digest() const;
  void watch(WarpState& warp);
  bool check_loops();
  void settle(WarpState& warp);
  void run_copies(bool all);
  uint64_t fresh_priority(int rank);

  std::deque<DeviceHeap> heaps_;  // by rank
  std::unordered_map<uint64_t, std::pair<int, std::string>> functions_;
  Choice choice_;
  std::mt19937_64 random_;
  std::vector<Running> running_;
  std::vector<std::vector<Multiprocessor>> multiprocessors_;  // by rank
  std::deque<WarpState*> ready_;
  std::vector<WarpState*> parked_;
  size_t turns_ = 0;            // until warps that poll are looked at
  bool holds_next_reader_ = false;  // the next warp that has loaded a flag is held, unless its rank is the one ahead
  std::deque<std::function<void()>> copies_;
  uint64_t last_progress_ = 0, progress_step_ = 0;  // to see that nothing happens any more
  const WarpState* last_picked_ = nullptr;
  uint32_t picks_ = 0;
  std::vector<uint64_t> changes_;  // steps at which a priority changes
  bool dispatchable_ = false;
  uint64_t removals_ = 0;       // of memory, that observations have been cleared for
  uint64_t now_ns_ = 1'700'000'000'000'000'000ull;  // when the warp that runs began
  uint64_t slice_begin_ = 0, slice_share_ = 1;      // the step at that time, and how many warps share the steps from then on
  static constexpr uint64_t kUnwatchedSteps = 30'000'000;  // without progress
  struct Watch {
    uint32_t number = 0;
    uint64_t begin = 0, length = 0;  // in steps; begin 0: there is none
  } watch_;
  struct Standstill {
    int rounds = 0, recurrences = 0;
    int doublings = 0;            // of patience
    bool hosts_ran = false;
    uint64_t begin = 0, clock_reads = 0;
    uint64_t most_steps = 0;      // after which it is looked whether those that run wait
    std::unordered_set<uint64_t> states;
  } still_;
  Pool pool_{4096}, shared_pool_{kSharedStride};
  std::unique_ptr<Executor> executor_;
};

}  // namespace pkb::emulator
