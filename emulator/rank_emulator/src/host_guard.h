// Memory that host code shares with GPUs: pinned, registered and managed. While work that a rank has enqueued may be under
// way, its pages cannot be touched by the host: each access faults, is noted as that of a thread of the host, and then made
// by executing one instruction alone. So the detector holds host code against kernels and copies, and a loop over such memory
// lets the others go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pkb::emulator {

struct RankState;

class HostGuard {
 public:
  explicit HostGuard(RankState& rank);
  ~HostGuard();
  HostGuard(const HostGuard&) = delete;
  HostGuard& operator=(const HostGuard&) = delete;

  // Memory of the rank; whole pages that hold nothing else can be watched.
  void add(uint64_t address, uint64_t bytes);
  void remove(uint64_t address);

  // ---- on the rank's thread ----
  // Work has been enqueued, and the host has waited for all of it.
  void arm();
  void disarm();
  // The rank's turn begins, and ends.
  void close();
  void open();

  // ---- on the thread that runs the world ----
  // A function of a stream runs, until `open`. Work of other streams may be under way.
  void close_for_function();
  // ---- on either ----
  // Handlers of signals: false: the fault is none of the guard's. `context`: ucontext_t.
  bool on_fault(uint64_t address, void* context);
  bool on_step(void* context);
  // The kernel is about to touch memory for the host, which it does not where pages cannot be touched.
  void lend(const void* buffer);

  // On a thread of no rank, which no program order relates to the rank's: false: the fault is no guard's.
  static bool on_foreign_fault(uint64_t address);

 private:
  struct Touched {
    uint64_t page, address, pc;
    bool writes, stays_open;
  };

  void protect(uint64_t begin, uint64_t end, bool is_open) const;
  bool holds(uint64_t address) const;
  void note(const Touched& touched, uint64_t registers);
  void note_of_function(const Touched& touched) const;
  // Pages cannot be touched from now on.
  void hide();
  // The host's accesses are not seen any more: what has been seen of them proves nothing.
  void look_away();

  RankState& rank_;
  std::map<uint64_t, uint64_t> pages_;               // begin, end
  bool is_armed_ = false, is_closed_ = false;
  std::atomic<bool> is_shared_{false};               // threads of no rank use the memory
  bool is_blind_ = false;                            // some of the memory cannot be watched
  uint32_t seen_ = 0;                                // accesses since the turn began
  uint64_t all_seen_ = 0;
  std::vector<Touched> stepping_;                    // by the instruction that is being executed
  std::set<std::pair<uint64_t, uint64_t>> places_;   // address and instruction, since others have gone on last
  std::set<uint64_t> states_;                        // of the host's registers, behind accesses to them
  uint32_t fresh_ = 0;                               // accesses behind which they were new
};

// Of a handler's context.
uint64_t instruction_of(const void* context);

// Code of programs, which is interrupted where it waits for memory: libraries of ranks, by an address within.
void add_program_code(const void* within);
bool is_program_code(uint64_t address);
// Of an instruction of the host, for messages: " (+host:1234)", the offset in its library.
std::string place_of_host_code(uint64_t address);

}  // namespace pkb::emulator
