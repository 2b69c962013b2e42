// A world: ranks with their host threads, streams, events and libraries, over one engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "host_guard.h"
#include "host_writes.h"
#include "program.h"

namespace pkb::emulator {

class World;
struct RankState;
struct SharedState;

// A kernel in a stream, from its launch on.
struct KernelLaunch : Launch {
  const void* function = nullptr;         // of the host, as it was launched; null: it is no kernel of the program
  uint32_t dynamic_shared = 0;
  bool is_cooperative = false;
  std::vector<uint8_t> parameters;
  bool may_overlap = false;               // may begin once the kernel before it in its stream has triggered that
  bool has_triggered = false;             // the kernel after it may begin
};

// One record of an event. A wait ends at the record that preceded it, whatever is recorded later.
struct EventRecord {
  uint64_t event = 0;
  uint64_t generation = 0;                // unique in a world
  bool is_complete = false;
  uint64_t time_ns = 0;
};

// Work of a stream. `start` begins it and calls `done` once it is over, at once or later.
struct Stream;

struct Work {
  StreamOperationKind kind;
  std::string name;
  std::function<void(const StreamOperation& operation, std::function<void()> done)> start;
  std::function<bool()> may_start;        // empty: whenever its turn has come
  std::shared_ptr<KernelLaunch> launch;   // of kernels
  std::shared_ptr<EventRecord> record;    // of records of events, and waits for them
  Stream* branch = nullptr;               // of captured work: the stream that it was forked to; null: none
  struct Event* event = nullptr;          // of an event node: what its record is known by outside of the graph
  struct RankState* gpu = nullptr;        // of captured work: where it runs; null: on that of the graph's launch
};

// A capture under way: what its streams have been given.
struct Capture {
  Stream* origin;
  uint64_t id;
  std::vector<Stream*> forked;            // streams that have waited for an event of the capture, of any GPU of the process
  std::vector<Work> works;
  struct Graph* graph = nullptr;          // that it adds nodes to; null: a new one
  std::vector<struct GraphNode*> needs;   // what its first nodes come after

  bool holds(const Stream& stream) const {
    return &stream == origin || std::find(forked.begin(), forked.end(), &stream) != forked.end();
  }
};

enum class StreamKind : uint8_t {
  kCall,         // the stream of a rank's calls; as non-blocking ones
  kNonBlocking,
  kBlocking,     // of cudaStreamCreate: ordered with the legacy default stream
  kLegacy,       // the null stream
  kPerThread     // cudaStreamPerThread: blocking
};

struct Stream {
  uint64_t id;
  RankState* rank;
  StreamKind kind;
  struct Queued {
    Work work;
    StreamOperation operation;
    bool is_over = false;
    uint32_t late_looks = 0;              // begins when nobody else can go on, or after so many looks
  };
  std::deque<Queued> queue;
  std::deque<std::shared_ptr<Queued>> running;  // above one: kernels that overlap
  uint64_t last_kernel = 0;               // launch of the operation that began last; 0: it was no kernel
  uint64_t enqueued = 0;                  // operations so far
  uint64_t waited = 0;                    // of those a host has waited for
  uint64_t joined = 0;                    // of a blocking stream: operations that the legacy stream is ordered after
  uint64_t joined_legacy = 0;             // of a blocking stream: operations of the legacy stream that it is ordered after

  bool empty() const { return queue.empty() && running.empty(); }
  bool is_default() const { return kind == StreamKind::kLegacy || kind == StreamKind::kPerThread; }
  bool is_blocking() const { return kind == StreamKind::kBlocking || kind == StreamKind::kPerThread; }
};

struct Event {
  uint64_t id;
  int rank;
  std::shared_ptr<EventRecord> last;      // null: never recorded
  bool is_complete() const { return !last || last->is_complete; }
};

// Memory as copies distinguish it, by what the host may know when they return.
enum class MemoryKind : uint8_t { kPageable, kPinned, kManaged, kDevice };

// Of stream-ordered allocations. Each is memory of its own, which its end gives back: a pool only counts bytes.
struct MemoryPool {
  uint32_t reached_by = 0;                // GPUs of a process with several: a bit each
  uint64_t used = 0, used_high = 0;
  std::map<int, uint64_t> values;         // of attributes that have been set

  void use(uint64_t bytes) {
    used += bytes;
    used_high = std::max(used_high, used);
  }
};

struct Allocation {
  Mapping memory;
  uint64_t region;
  MemoryPool* pool;                       // null: of none
  bool is_of_graph = false;               // a graph allocates and frees it at each launch: it keeps its address
};

// A fat binary of a rank's library, or several that were linked.
struct LoadedModule {
  RankState* rank;
  std::vector<LoadedModule*> of_process;  // of the first one: the same on each GPU of its process, itself included
  std::shared_ptr<const PtxModule> ptx;
  std::string problem;                    // why it cannot be used
  std::map<std::string, uint64_t, std::less<>> variables;  // addresses, as programs see them
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

// A thread of host code: the body of a rank, or one that such a thread has started.
struct HostThread {
  World* world;
  int number;                             // unique in a world; bodies have those of their ranks
  RankState* device;                      // whose GPU functions of CUDA are for
  std::thread thread;
  enum State { kRunnable, kBlocked, kDone, kLost } state = kRunnable;  // kLost: its thread goes on no more
  std::function<bool()> ready;
  std::string waits_for;
  int body_status = 0;
  uint64_t touched = 0;                   // kLost: address of a GPU that host code has touched; 0: unknown

  bool is_started = false;                // by another thread
  void* result = nullptr;                 // of one that pthread_create has started
  uint64_t begin = 0, end = 0;            // objects by which its begin and its end are ordered
  bool defaults_to_own = false;           // a null handle stands for its own stream, and not for the legacy one
  std::map<RankState*, Stream*> own;      // cudaStreamPerThread of a thread that was started, by GPU
  bool reaches_peers = false;             // what it launches reaches all memory: kernels of a library
  std::vector<CallConfiguration> configurations;
  std::vector<RankState*> contexts;       // GPUs whose contexts cuCtxPushCurrent has stacked
  int last_error = 0;
  enum Interrupt { kGoOn, kYield, kStop };
  std::atomic<int> interrupt{kGoOn};      // of its code, which runs on without a call of CUDA
  bool runs_on = false;                   // its code has done so before
  int vain_waits = 0;                     // for others, after the run has failed
  uint64_t accesses = 0;                  // stream of its accesses to memory of GPUs, as the detector sees them; 0: none so far
};

// The GPU of a rank, and the libraries of its process.
struct RankState {
  World* world;
  int rank;
  HostGuard guard{*this};                 // of the host's memory of its process: that of the first GPU counts
  Mapping segment;
  uint32_t reached_by = 0;                // GPUs of a process with several that have access to its memory: a bit each

  uint64_t callbacks = 0;                 // object that functions of the host in its streams release at their end
  std::shared_ptr<EventRecord> held_until;  // what all work of new streams comes after; null: nothing
  std::vector<std::unique_ptr<Stream>> streams;  // the call's, the legacy default stream, that of the thread, others
  std::vector<std::unique_ptr<Event>> events;
  std::set<Event*> opened;         // of other ranks, by their handles
  std::vector<std::unique_ptr<LoadedModule>> modules;
  std::unordered_map<const void*, FunctionEntry> functions;
  std::unordered_map<const void*, VariableEntry> variables;
  std::map<uint64_t, Allocation> allocations;                    // by address, as programs see it
  std::vector<std::unique_ptr<MemoryPool>> pools;                // the default one first
  MemoryPool* pool = nullptr;                                    // of cudaMallocAsync; null: the default one
  std::map<uint64_t, uint64_t> registered;                       // host memory: region by address
  uint64_t stack_bytes = 1 << 10;  // as cudaLimitStackSize is documented
  std::vector<std::unique_ptr<Capture>> captures;  // of its process: those of the first GPU count
};

struct Policy {
  int kind = 0;
  uint64_t seed = 0;
};

class World {
 public:
  // `one_process`: the ranks are GPUs of one process, whose `main` is the body of the first.
  World(int ranks, uint64_t segment_bytes, const Device& device, const Policy& policy, bool one_process = false);
  ~World();

  HostWrites host_writes;
  Engine engine;
  const bool one_process;
  std::vector<std::unique_ptr<RankState>> ranks;
  Mapping multicast;                               // addresses that stand for all ranks' segments; nothing lies there
  std::vector<std::unique_ptr<HostThread>> hosts;  // bodies first
  uint64_t max_seconds = 0;
  bool notes_call_sites = false;
  std::map<std::string, int> kernel_registers;
  uint64_t launches = 0;
  std::set<uint64_t> managed;             // regions of managed memory
  std::shared_ptr<SharedState> shared;    // beside memory; null: nothing yet
  std::set<std::string> lacking;          // functions of the driver that host code has asked for in vain

  // Runs all bodies to their end; the fault that ended the run, if any.
  std::optional<Fault> run(const std::function<int(int)>& body);
  void stop(const std::string& message);
  void choose_policy(const Policy& policy);
  bool failed() const { return fault_.has_value(); }
  void fail(const Fault& fault);

  // GPUs that a rank's process sees.
  size_t visible() const { return one_process ? ranks.size() : 1; }
  RankState& visible(RankState& rank, size_t index) { return one_process ? *ranks[index] : rank; }
  HostGuard& guard_of(RankState& rank) { return visible(rank, 0).guard; }
  std::vector<std::unique_ptr<Capture>>& captures_of(RankState& rank) { return visible(rank, 0).captures; }
  // That the stream is in; null: none.
  Capture* capture_of(const Stream& stream);
  int processes() const { return one_process ? 1 : int(ranks.size()); }
  std::string name_of(const HostThread& host) const;
  // Where host code calls the function of CUDA under way: "+host", and the offset in its library; null: nobody asks.
  const SourceLine* call_site();

  // ---- on a thread of a rank ----
  // Lets others run until `ready`; false: the run has failed.
  bool block(const std::string& why, std::function<bool()> ready);
  // Lets all others run for once, also where the run has failed.
  void pass(const std::string& why);
  // A thread that calls `function`, when its turn has come.
  HostThread& start_thread(std::function<void()> function);
  // Of a thread that is done: gives back what the system keeps of it.
  void forget(HostThread& host);
  // Orders what the calling thread has done before what follows `acquire` of the same object; objects are unique numbers.
  void release(uint64_t object);
  void acquire(uint64_t object);
  // Orders what all threads of its process have done before what the calling one does.
  void acquire_all();
  // Lets others run for a while, within code that waits for them; `until_progress`: until memory has changed, or nobody can
  // go on. Once the run has ended it soon returns no more.
  void let_others_go_on(const char* why, bool until_progress = false);
  // The host knows that all operations of a stream are over.
  void learn(Stream& stream);
  // A thread runs on: within a handler of a signal, at an instruction.
  void interrupted(HostThread& host, uint64_t instruction);
  // The thread stays where it is: its host code has touched this address.
  void lose_host(HostThread& host, uint64_t address);
  // Implicit synchronisation with the legacy default stream included.
  void enqueue(Stream& stream, Work work);
  // The same for a node of a graph that runs.
  void enqueue_of_node(Stream& stream, Work work) { push(stream, std::move(work), false); }
  bool synchronize(Stream& stream);
  bool synchronize(RankState& rank);
  Stream* add_stream(RankState& rank, StreamKind kind);
  // A stream goes on once all streams of a GPU have done what they have so far, and they once it has.
  void gather(RankState& rank, Stream& to);
  void hold(RankState& rank, Stream& until);

  // ---- libraries ----
  // Several are those of relocatable code, which are linked.
  LoadedModule* load_fat_binaries(RankState& rank, std::span<const void* const> fat_binaries);
  // Kernels of the text are known by their names alone.
  LoadedModule* load_ptx(RankState& rank, const std::string& text);
  // The kernel behind a function of the host; null: unknown, and the run has failed if it cannot be prepared.
  Kernel* kernel(RankState& rank, const void* function);
  // As programs see it; 0: the module has none of this name.
  uint64_t variable_address(const LoadedModule& module, std::string_view name);
  // Of a variable or of a function.
  uint64_t symbol_address(const LoadedModule& module, std::string_view name);
  // Lets the host touch a variable, too; returns its address.
  uint64_t make_managed(LoadedModule& module, std::string_view name);
  // Stack of a thread, for kernels whose calls nest to a depth that is not known.
  void set_stack(RankState& rank, uint64_t bytes);
  // Of an address that host code uses.
  MemoryKind kind_of_memory(const void* pointer);

  [[gnu::tls_model("initial-exec")]] static thread_local HostThread* current;  // handlers of signals look at it
  // The operation whose host function runs, for what it touches; `in_function` on the thread that runs it.
  const StreamOperation* host_operation = nullptr;
  [[gnu::tls_model("initial-exec")]] static thread_local World* in_function;

 private:
  bool can_run(const HostThread& host) const;
  bool host_can_run() const;
  bool run_hosts();
  void check_hosts() const;
  void resume(HostThread& host);
  bool others_can_go_on(const HostThread& host) const;
  void check_time() const;
  void hand_over(HostThread& host, std::unique_lock<std::mutex>& lock);
  void end_thread(HostThread& host, int status);
  void await_turn(HostThread& host);
  bool advance_streams(bool held);
  bool advance(Stream& stream, bool held);
  bool holds(const Stream::Queued& queued) const;
  bool may_begin(const Stream& stream, const Work& next) const;
  void push(Stream& stream, Work work, bool of_host = true);
  void join(Stream& from, Stream& to);
  std::string waiting_streams() const;
  bool finished() const;
  void loop();
  void end_hosts();
  void load_variables(LoadedModule& module);

  // Which host thread runs.
  struct Turn {
    std::mutex mutex;
    std::condition_variable changed;
    int holder = -1;          // its number; -1: the scheduler

    void give(int number) {
      holder = number;
      changed.notify_all();
    }
    void await(int number, std::unique_lock<std::mutex>& lock) {
      changed.wait(lock, [&] { return holder == number; });
    }
    // False: it has taken longer than that.
    bool await(int number, std::unique_lock<std::mutex>& lock, std::chrono::milliseconds longest) {
      return changed.wait_for(lock, longest, [&] { return holder == number; });
    }
  };
  std::unique_ptr<Turn> turn_ = std::make_unique<Turn>();
  std::optional<Fault> fault_;
  std::chrono::steady_clock::time_point begin_;  // of the run
  mutable std::mutex stop_mutex_;
  std::string stop_;
  int held_arrival_ = -1, early_departure_ = -1;
  std::map<uint64_t, SourceLine> call_sites_;  // by offset
  std::vector<int> rank_order_, host_order_;
  std::mt19937_64 thread_random_;  // where threads that are started stand in the order of hosts
  bool has_order_ = false;
  bool has_late_work_ = false;     // whether some copies and fills are late
  std::mt19937_64 late_random_;
};

constexpr uint32_t kFatWrapperMagic = 0x466243b1, kFatMagic = 0xba55ed50;
// What libraries hand over for a fat binary.
struct FatWrapper {
  uint32_t magic, version;
  const void* data;
  void* file;
};

// The PTX in a fat binary (what __cudaRegisterFatBinary is given). Throws PtxError: there is none, or it is compressed.
std::string ptx_of(const void* fat_binary);

// Registers of each kernel in the machine code of a fat binary, by mangled name; empty where there is none.
std::map<std::string, int> registers_of(const void* fat_binary);

// ---- operations on streams ----
// Returns a cudaError_t.
int launch_kernel(RankState& rank, const void* function, const uint32_t (&grid)[3], const uint32_t (&block)[3], const uint32_t (&cluster)[3],
                  void** arguments, size_t dynamic_shared, Stream& stream, bool cooperative, bool may_overlap);
// `line`: of the call, or null.
Work copy_work(World& world, void* to, const void* from, uint64_t bytes, const char* name, const SourceLine* line = nullptr);
// A copy of what the memory holds by now.
Work staged_copy_work(World& world, void* to, const void* from, uint64_t bytes, const char* name, const SourceLine* line);
Work record_work(const std::shared_ptr<EventRecord>& record);
Work wait_work(const std::shared_ptr<EventRecord>& record);
// A strong access to a word by the stream itself, as of a kernel of one thread: waits until `is_met`, then stores `value`.
enum class WordAccess : uint8_t { kWait, kRelease, kRelaxed };
Work word_work(RankState& rank, Stream& stream, WordAccess access, void* address, uint32_t bytes, uint64_t value, std::function<bool()> is_met, const char* name);
// `value_bytes`: of the value that fills the memory: 1, 2 or 4.
Work fill_work(World& world, void* to, uint32_t value, uint64_t bytes, const char* name, uint32_t value_bytes = 1, const SourceLine* line = nullptr);
// Gives a word of 4 bytes to a function.
Work read_word_work(World& world, const void* address, const char* name, std::function<void(uint32_t)> take);
Work function_work(World& world, std::function<void()> function, const char* name);

}  // namespace pkb::emulator
