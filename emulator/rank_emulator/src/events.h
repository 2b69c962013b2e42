// The seam between execution and its observers (race detector, statistics): each memory access, synchronisation and
// stream operation as an event, in the one order in which the emulator executes them.
//
// Addresses are those of this process: global, constant, parameter, shared and local memory of all ranks lie in one
// space, so that a peer's memory is the same bytes at the same address for all ranks. Events are delivered from one
// thread at a time. Pointers in events are valid during the call only, except those of `SourceLine`, regions' names and
// kernels' names, which live as long as the world.
#pragma once

#include <cstdint>
#include <string>

namespace pkb::emulator {

constexpr int kLanes = 32;

// Calls f(lane) for each lane of a mask, the lowest first.
template <class F>
void each_lane(uint32_t lanes, F f) {
  for (; lanes; lanes &= lanes - 1) f(__builtin_ctz(lanes));
}

enum class Space : uint8_t { kGlobal, kShared, kLocal, kConstant, kParameter };
enum class Operation : uint8_t { kRead, kWrite, kAtomic };  // kAtomic reads and writes (atom, red)

// PTX's .weak, .volatile, .relaxed, .acquire, .release, .acq_rel, .sc. Volatile counts as relaxed.sys in PTX's model.
enum class Order : uint8_t { kWeak, kVolatile, kRelaxed, kAcquire, kRelease, kAcquireRelease, kSequential };
enum class Scope : uint8_t { kNone, kCta, kCluster, kGpu, kSys };

// Who touches memory: ordinary instructions; bulk copies and wgmma; reads of tensor maps; copy engines and host code.
enum class Proxy : uint8_t { kGeneric, kAsync, kTensorMap, kHost };

// Proxies that a proxy fence joins.
enum class ProxyFence : uint8_t { kNone, kAsync, kAsyncGlobal, kAsyncShared, kTensorMap, kAlias };

// A line of the source, and where that code was inlined into (the outermost caller); null and 0 where not known.
struct SourceLine {
  const char* file;
  int line;
  const char* outer_file;
  int outer_line;
};

// A launch of a kernel; `id` is unique in a world and never 0.
struct Launch {
  uint64_t id;
  int rank;
  uint64_t stream;  // id of the stream, unique in a world
  const char* kernel;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_bytes;  // static and dynamic
  // The kernel before it in its stream, if it may have begun before that one's end (programmatic dependent launch); 0: it
  // has begun after all earlier work of the stream.
  uint64_t prerequisite;
  bool is_on_default_stream;  // the legacy one, or that of the thread
  bool reaches_peers = false;  // has access to all GPUs' memory
  bool is_unfenced = false;    // a word that a stream writes without a barrier: its begin is no fence for what came before
};

// The lanes of one warp that execute an instruction together.
struct Warp {
  const Launch* launch;
  int rank;
  uint32_t block;           // linear index in the grid
  uint32_t cluster;         // linear index of its cluster
  uint32_t block_in_cluster;
  uint32_t warp;            // in the block
  uint32_t lanes;           // mask of lanes that execute
  uint32_t full_lanes;      // mask of lanes of this warp that exist and have not exited
  const char* opcode;       // "ld.acquire.sys.global.u64"
  const SourceLine* line;
};

// Lanes of a load whose bytes nobody has written, and the number of the load for `unwritten_used`.
struct Unwritten {
  uint32_t lanes = 0, load = 0;
};

// One instruction's accesses, one for each lane in `warp.lanes`.
struct Access {
  Warp warp;
  Operation operation;
  Order order;
  Scope scope;
  Space space;
  Proxy proxy;
  uint32_t bytes;               // of each lane; vectors are one access
  uint32_t element_bytes;       // bytes / elements of the vector: what is accessed as a whole
  uint32_t wrote;               // of an atomic: lanes that wrote (a failed compare-and-swap only reads); of a store: lanes
                                // that changed the bytes (the others stored the value that was there)
  const uint64_t* addresses;    // kLanes of them; those of other lanes have no meaning
  bool aligned;                 // every address is a multiple of `bytes` (of element_bytes for stmatrix and the like)
  bool decides = true;          // of a load: whether a branch of the thread may depend on the value; else it is data
  bool may_be_unused = false;   // of a plain load: whether lanes may never use the value; `value_used` says that they do
  Unwritten* unwritten = nullptr;  // of a load that may go where nobody has written: an error only if lanes use it
};

// A range touched by an asynchronous operation, a copy engine or host code.
struct RangeAccess {
  uint64_t agent;               // id of the asynchronous operation or stream operation that touches it
  int rank;                     // whose agent
  Operation operation;
  Proxy proxy;
  Space space;
  uint64_t address;
  uint64_t bytes;
  const char* what;             // "cp.async.bulk", "cudaMemcpyAsync", "arrival", ...
  const SourceLine* line;       // of the instruction that began it, or null
  uint32_t element_bytes = 0;   // of kAtomic: each element is reduced by a relaxed operation of its own
  bool is_same = false;         // of a write: the bytes have had these values before
  Unwritten* unwritten = nullptr;  // of a read by wgmma: as in `Access`; its lanes have no meaning
};

// How the completion of an asynchronous operation is learnt. kQuiet: of puts and gets by the threads of a library.
enum class Completion : uint8_t { kMbarrier, kBulkGroup, kWgmmaGroup, kCopyGroup, kQuiet };

// What the header of a library (nvshmem.h, nccl_device.h) says of the instructions of its lanes: operands of `pmevent.mask`,
// above kLibraryMarks.
enum class LibraryMark : uint8_t {
  kPut = 1,        // until kEnd: global reads and writes of a non-blocking put, complete by kQuiet, delivered behind kFence
  kGet,            // the same of a non-blocking get, which kFence does not concern
  kSignalledPut,   // as kPut, but delivered by its own signal, too
  kBlockingPut,    // as kSignalledPut, but its reads, and the end of its kernel, are ordinary
  kEnd,
  kFence,          // puts so far are delivered before what other PEs learn by flags that follow
  kQuiet,          // puts and gets so far are complete
  kSignal,         // until kEnd: fences are none, and strong stores deliver the lanes' last put of the two kinds above
  kBoundary,       // until kEnd: strong loads acquire what came before the kernel of the store that they observe
  kOfEachLane = 0x10,  // beside kSignalledPut and kBlockingPut: each lane has an operation of its own, else all of the warp one
};
constexpr uint32_t kLibraryMarks = 0x5a00;

// An asynchronous operation (cp.async, cp.async.bulk, wgmma) of one lane, or of a warp for wgmma.
struct AsyncOperation {
  uint64_t id;                  // unique in a world; the `agent` of its range accesses
  Warp warp;                    // of wgmma all lanes, else the one that issues
  Completion completion;
  uint64_t mbarrier;            // address of the mbarrier that is notified; of a multicast in each block (several events)
};

enum class StreamOperationKind : uint8_t {
  kKernel, kCopy, kFill, kEventRecord, kEventWait, kHostFunction, kArrival, kDeparture
};

struct StreamOperation {
  uint64_t id;                  // unique in a world; the `agent` of its range accesses
  StreamOperationKind kind;
  int rank;
  uint64_t stream;
  uint64_t event;               // of kEventRecord and kEventWait: id of the event
  uint64_t event_generation;    // number of the record, unique in a world: a wait joins the record of this generation
  const Launch* launch;         // of kKernel
  const char* what;
  bool is_on_default_stream;
  int host = -1;                // number of the thread that enqueues it; -1: the body of its rank
};

enum class RegionKind : uint8_t {
  kSegment,       // a rank's whole heap segment; argument, output, scratch and signal regions lie inside it
  kArgument, kOutput, kScratch, kSignals,
  kAllocation,    // cudaMalloc
  kHost,          // pinned or plain host memory that kernels may touch
  kGlobalVariable, kConstant, kParameters, kShared, kLocal
};

struct Region {
  uint64_t id;                  // unique in a world
  RegionKind kind;
  int rank;                     // owner
  const char* name;
  uint64_t address;
  uint64_t bytes;
  uint32_t element_bytes;       // of arguments and outputs, for indices in messages; 0: not known
  bool initialised;             // whether its bytes count as written
  uint64_t launch;              // of kShared, kLocal and kParameters; else 0
  uint32_t block;               // of kShared and kLocal
};

// Receives the events. Every function has an empty default. All events of a lane come in its program order.
class Observer {
 public:
  virtual ~Observer() = default;

  // ---- memory ----
  virtual void region_added(const Region&) {}
  virtual void region_removed(const Region&) {}
  // From now on these bytes count as never written (false) or as written (true) by nobody in particular.
  virtual void set_initialised(uint64_t /*address*/, uint64_t /*bytes*/, bool /*initialised*/) {}
  virtual void access(const Access&) {}
  virtual void range_access(const RangeAccess&) {}
  // Lanes use what the load at this line of an instruction, whose value may stay unused, has brought them.
  virtual void value_used(const Warp&, const SourceLine* /*load*/) {}
  // What a lane has done depends on bytes that nobody had written, which a load has brought.
  virtual void unwritten_used(uint32_t /*load*/) {}

  // ---- within a kernel ----
  virtual void fence(const Warp&, Order, Scope) {}
  virtual void proxy_fence(const Warp&, ProxyFence) {}
  // fence.mbarrier_init: a release at cluster scope of earlier mbarrier.init alone.
  virtual void mbarrier_init_fence(const Warp&) {}
  // bar.sync, bar.red: arrive, and leave once all have arrived; bar.arrive: arrive alone. `generation` counts how often
  // this barrier of this block has completed; leave has the generation of the arrivals that it waited for.
  virtual void barrier_arrive(const Warp&, uint32_t /*barrier*/, uint64_t /*generation*/) {}
  virtual void barrier_leave(const Warp&, uint32_t /*barrier*/, uint64_t /*generation*/) {}
  // barrier.cluster: `releases` and `acquires` are false for .relaxed arrivals.
  virtual void cluster_arrive(const Warp&, bool /*releases*/, uint64_t /*generation*/) {}
  virtual void cluster_leave(const Warp&, bool /*acquires*/, uint64_t /*generation*/) {}
  // bar.warp.sync: all lanes of `warp.lanes` have arrived and leave together, with memory ordering among them.
  virtual void warp_barrier(const Warp&) {}
  // match.sync: all lanes of `warp.lanes` have come to it, which orders no memory.
  virtual void warp_match(const Warp&) {}
  // mbarrier in shared memory, by address. `phase` counts completed phases since init. A wait event is a test_wait or
  // try_wait that returned true for the phase that is given; a failed one is no event.
  virtual void mbarrier_init(const Warp&, uint64_t /*address*/, uint32_t /*count*/) {}
  virtual void mbarrier_invalidate(const Warp&, uint64_t /*address*/) {}
  virtual void mbarrier_arrive(const Warp&, uint64_t /*address*/, uint64_t /*phase*/, Order, Scope) {}
  virtual void mbarrier_expect(const Warp&, uint64_t /*address*/, uint64_t /*phase*/, uint32_t /*bytes*/) {}
  virtual void mbarrier_wait(const Warp&, uint64_t /*address*/, uint64_t /*phase*/, Order, Scope) {}
  // The last arrival and the last byte of the phase have come.
  virtual void mbarrier_complete(uint64_t /*address*/, uint64_t /*phase*/) {}

  // ---- asynchronous operations: issue, then their range accesses, then complete ----
  virtual void async_issue(const AsyncOperation&) {}
  // With Completion::kMbarrier: its bytes have been counted at `mbarrier` in phase `phase`.
  virtual void async_complete(const AsyncOperation&, uint64_t /*phase*/) {}
  // A lane (or warp, for wgmma) closes a group with all its operations of this kind since the last one.
  virtual void async_commit(const Warp&, Completion) {}
  // A lane (or warp) has waited until at most `pending` of its groups are incomplete; `reads_only`: only their reads are
  // over (cp.async.bulk.wait_group.read).
  virtual void async_wait(const Warp&, Completion, uint32_t /*pending*/, bool /*reads_only*/) {}
  // All operations of this kind that a lane has issued complete before the arrival at an mbarrier that comes of them.
  virtual void async_arrive(const Warp&, Completion, uint64_t /*mbarrier*/) {}
  virtual void library_mark(const Warp&, LibraryMark, bool /*of_each_lane*/) {}
  // wgmma.fence: orders the warp's register and shared memory accesses before following wgmma.
  virtual void wgmma_fence(const Warp&) {}

  // ---- life of kernels ----
  virtual void launch_begin(const Launch&) {}
  virtual void launch_end(const Launch&) {}
  virtual void block_begin(const Launch&, uint32_t /*block*/, uint32_t /*threads*/) {}
  virtual void block_end(const Launch&, uint32_t /*block*/) {}
  virtual void lanes_exit(const Warp&) {}
  // griddepcontrol.wait: the kernel's prerequisite has ended, if it has one.
  virtual void prerequisite_wait(const Warp&) {}

  // ---- streams and host code of ranks ----
  // A rank's host thread enqueues (edge from host to operation); the operation begins after all earlier ones of its
  // stream; it ends.
  virtual void stream_enqueue(const StreamOperation&) {}
  virtual void stream_begin(const StreamOperation&) {}
  virtual void stream_end(const StreamOperation&) {}
  // A host thread has waited for all that was enqueued on a stream, or for an event's generation. The body of a rank has the
  // rank's number.
  virtual void host_waited_stream(int /*host*/, uint64_t /*stream*/) {}
  virtual void host_waited_event(int /*host*/, uint64_t /*event*/, uint64_t /*generation*/) {}
  // What a host thread has done before it released an object, such as a mutex, comes before what one does that has
  // acquired it afterwards.
  virtual void host_released(int /*host*/, uint64_t /*object*/) {}
  virtual void host_acquired(int /*host*/, uint64_t /*object*/) {}
  // The same for a function of the host in a stream.
  virtual void stream_released(uint64_t /*stream*/, uint64_t /*object*/) {}
  virtual void stream_acquired(uint64_t /*stream*/, uint64_t /*object*/) {}
  // All that another thread has done so far comes before what this one does.
  virtual void host_joined(int /*host*/, int /*other*/) {}
  // Puts and gets of a rank's kernels that this host thread knows of are complete.
  virtual void host_quiet(int /*host*/, int /*rank*/) {}
  // Until now some accesses of the host code of a rank's process to memory that it shares with GPUs were not seen: flags may
  // have ordered what came before.
  virtual void host_unseen(int /*rank*/) {}

  // ---- the call contract ----
  // The arrival of a call on a rank's stream: its arguments are complete, its outputs may be written. Comes between
  // stream_begin and stream_end of the operation of kind kArrival.
  virtual void arrival(int /*rank*/, uint64_t /*call*/) {}
  // Its departure: from now on arguments and outputs of that call belong to others.
  virtual void departure(int /*rank*/, uint64_t /*call*/) {}

  // Who has written these bytes last, for messages: "written last by ... in call 2"; empty: not known.
  virtual std::string last_write(uint64_t /*address*/, uint64_t /*bytes*/) { return ""; }
};

}  // namespace pkb::emulator
