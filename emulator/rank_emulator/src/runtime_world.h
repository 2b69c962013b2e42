// A world: ranks with their host threads, streams, events and libraries, over one engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "program.h"

namespace pkb::emulator {

class World;
struct RankState;

// Work of a stream. `start` begins it and calls `done` once it is over, at once or later.
struct Work {
  StreamOperationKind kind;
  std::string name;
  std::function<void(const StreamOperation& operation, std::function<void()> done)> start;
  std::function<bool()> may_start;        // empty: whenever its turn has come
  std::shared_ptr<Launch> launch;         // of kernels
  uint64_t event = 0, generation = 0;
};

struct Stream {
  uint64_t id;
  RankState* rank;
  struct Queued {
    Work work;
    StreamOperation operation;
  };
  std::deque<Queued> queue;
  bool busy = false;
  bool empty() const { return queue.empty() && !busy; }
};

struct Event {
  uint64_t id;
  uint64_t recorded = 0, completed = 0;   // generations
  uint64_t time_ns = 0;
};

// A fat binary of a rank's library.
struct LoadedModule {
  RankState* rank;
  std::shared_ptr<const PtxModule> ptx;
  std::string problem;                    // why it cannot be used
  std::map<std::string, uint64_t, std::less<>> variables;  // addresses
  std::map<std::string_view, uint64_t> functions;          // addresses that stand for functions in pointers
  std::vector<Mapping> memory;
  std::map<std::string, int> registers;   // of a thread of each kernel, where there is machine code
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
};

struct FunctionEntry {
  LoadedModule* module;
  std::string name;
};
struct VariableEntry {
  LoadedModule* module;
  std::string name;
  uint64_t bytes;
};

struct CallConfiguration {
  uint32_t grid[3], block[3];
  size_t shared;
  Stream* stream;
};

struct RankState {
  World* world;
  int rank;
  Mapping segment;
  std::thread thread;
  enum State { kNone, kRunnable, kBlocked, kDone } state = kNone;
  std::function<bool()> ready;
  const char* waits_for = "";
  int body_status = 0;

  std::vector<std::unique_ptr<Stream>> streams;  // the call's stream first, then the null stream
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<LoadedModule>> modules;
  std::unordered_map<const void*, FunctionEntry> functions;
  std::unordered_map<const void*, VariableEntry> variables;
  std::map<uint64_t, std::pair<Mapping, uint64_t>> allocations;  // by address: memory and region
  std::map<uint64_t, uint64_t> registered;                       // host memory: region by address
  std::vector<CallConfiguration> configurations;
  uint64_t stack_bytes = 1 << 10;  // as cudaLimitStackSize is documented
  int last_error = 0;
  bool capturing = false;
  std::vector<Work> captured;
};

struct Graph {
  std::vector<Work> works;
};

struct Policy {
  int kind = 0;
  uint64_t seed = 0;
};

class World {
 public:
  World(int ranks, uint64_t segment_bytes, const Device& device, const Policy& policy);
  ~World();

  Engine engine;
  std::vector<std::unique_ptr<RankState>> ranks;
  uint64_t max_seconds = 0;
  std::map<std::string, int> kernel_registers;
  uint64_t launches = 0;

  // Runs all bodies to their end; the fault that ended the run, if any.
  std::optional<Fault> run(const std::function<int(int)>& body);
  void stop(const std::string& message);
  void choose_policy(const Policy& policy);
  bool failed() const { return fault_.has_value(); }
  void fail(const Fault& fault);

  // ---- on a rank's thread ----
  // Lets others run until `ready`; false: the run has failed.
  bool block(RankState& rank, const char* why, std::function<bool()> ready);
  void enqueue(Stream& stream, Work work);
  bool synchronize(Stream& stream);
  bool synchronize(RankState& rank);

  // ---- libraries ----
  LoadedModule* load_fat_binary(RankState& rank, const void* data);
  // Kernels of the text are known by their names alone.
  LoadedModule* load_ptx(RankState& rank, const std::string& text);
  // The kernel behind a function of the host; null: unknown, and the run has failed if it cannot be prepared.
  Kernel* kernel(RankState& rank, const void* function);
  uint64_t variable_address(LoadedModule& module, std::string_view name);
  // Of a variable or of a function; 0: the module has none of this name.
  uint64_t symbol_address(LoadedModule& module, std::string_view name);
  // Stack of a thread, for kernels whose calls nest to a depth that is not known.
  void set_stack(RankState& rank, uint64_t bytes);

  static thread_local RankState* current;
  // The operation whose host function runs, for what it touches.
  const StreamOperation* host_operation = nullptr;

 private:
  bool can_run(const RankState& rank) const;
  bool host_can_run() const;
  bool run_hosts();
  bool resume(RankState& rank);
  bool advance_streams(bool held);
  bool advance(Stream& stream, bool held);
  bool holds(const Stream::Queued& queued) const;
  bool finished() const;
  void loop();
  void end_hosts();
  void read_ptx(LoadedModule& module, const std::string& text);
  void load_variables(LoadedModule& module);

  std::mutex mutex_;
  std::condition_variable turn_changed_;
  int turn_ = -1;             // rank whose thread runs; -1: the scheduler
  std::optional<Fault> fault_;
  std::mutex stop_mutex_;
  std::string stop_;
  int held_arrival_ = -1, early_departure_ = -1;
  std::vector<int> host_order_;
};

// The PTX in a fat binary (what __cudaRegisterFatBinary is given). Throws PtxError: there is none, or it is compressed.
std::string ptx_of(const void* fat_binary);

// Registers of each kernel in the machine code of a fat binary, by mangled name; empty where there is none.
std::map<std::string, int> registers_of(const void* fat_binary);

// ---- operations on streams ----
// Returns a cudaError_t.
int launch_kernel(RankState& rank, const void* function, const uint32_t (&grid)[3], const uint32_t (&block)[3], const uint32_t (&cluster)[3],
                  void** arguments, size_t dynamic_shared, Stream& stream, bool cooperative);
Work copy_work(World& world, void* to, const void* from, uint64_t bytes, const char* name);
Work fill_work(World& world, void* to, int byte, uint64_t bytes, const char* name);
Work function_work(World& world, std::function<void()> function, const char* name);

}  // namespace pkb::emulator
