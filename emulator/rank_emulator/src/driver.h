// The C interface of the emulator: a world of ranks, each a GPU of its own, in this process.
//
// A world has a rank thread for each rank. Of all rank threads and the emulated GPUs one runs at a time; who is next is
// decided by a deterministic scheduler, by policy and seed. Functions return 0, or a negative number whose text
// pkb_emu_error gives; texts are UTF-8.
//
//   world = pkb_emu_create(&options);
//   pkb_emu_region(world, rank, PKB_EMU_ARGUMENT, "x", address, bytes, 4);   // names for messages
//   pkb_emu_run(world, body, user);        // calls body(user, rank) on each rank's thread, until all have returned and
//                                          // all streams are empty
//   pkb_emu_destroy(world);
//
// In its body a rank calls pkb_emu_load and solution(), enqueues arrival, departure, copies and functions on its stream,
// and synchronises. What it enqueues with a null stream goes to its default stream.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PKB_EMU_API __attribute__((visibility("default")))

typedef struct pkb_emu_world pkb_emu_world;

enum pkb_emu_policy {
  PKB_EMU_FAIR = 0,         // ranks, blocks and warps in turn; the seed changes nothing
  PKB_EMU_PRIORITIES = 1,   // random priorities that change at few random points (PCT)
  PKB_EMU_HOLD_ARRIVAL = 2, // one rank, by seed, reaches its calls as late as possible
  PKB_EMU_HOLD_DEPARTURE = 3,  // one rank's departure comes as early, those of the others as late as possible
  PKB_EMU_ONE_AHEAD = 4,    // one rank, by seed, runs whenever it can
  PKB_EMU_MIXED = 5,        // one of these, by seed
  PKB_EMU_LATE_STORES = 6   // PKB_EMU_PRIORITIES, and ordinary stores take effect late and in other orders
};

enum pkb_emu_region_kind {
  PKB_EMU_ARGUMENT = 1, PKB_EMU_OUTPUT = 2, PKB_EMU_SCRATCH = 3, PKB_EMU_SIGNALS = 4, PKB_EMU_HOST = 6
};

enum pkb_emu_outcome {
  PKB_EMU_OK = 0,
  PKB_EMU_DEADLOCK = 1,         // nobody can go on
  PKB_EMU_STEP_LIMIT = 2,       // max_steps warp instructions have been executed
  PKB_EMU_ILLEGAL_ADDRESS = 3,  // an access outside all memory
  PKB_EMU_MISALIGNED = 4,
  PKB_EMU_UNKNOWN_INSTRUCTION = 5,
  PKB_EMU_TRAP = 6,             // trap, assert, or an operation that hardware ends with an error
  PKB_EMU_BODY_FAILED = 7,      // a body returned something other than 0
  PKB_EMU_STOPPED = 8,          // pkb_emu_stop, or the observer asked for the end
  PKB_EMU_BAD_LAUNCH = 9        // PTX that cannot be read, a kernel that is not in it
};

typedef struct {
  uint32_t struct_bytes;     // sizeof(pkb_emu_options)
  int32_t world_size;        // 1 .. 16
  uint64_t segment_bytes;    // of each rank's symmetric heap; zeroed
  int32_t policy;            // pkb_emu_policy
  int32_t multiprocessors;   // of each GPU; 0: 8
  uint64_t seed;
  uint64_t max_steps;        // warp instructions of all ranks; 0: no limit
  uint64_t max_seconds;      // of wall-clock time within pkb_emu_run; 0: no limit
  int32_t one_process;       // the ranks are GPUs of one process, whose thread calls the body of rank 0; 0: a process each
  int32_t call_sites;        // findings have the places where host code calls copies and fills: "+host" as file, and as line
                             // the offset of the call in its library; 0: none
} pkb_emu_options;

// How pkb_emu_run ended. `message` has one line a finding: what, rank, kernel, block, lane, opcode and source line.
typedef struct {
  uint32_t struct_bytes;     // sizeof(pkb_emu_report), set by the caller
  int32_t outcome;           // pkb_emu_outcome
  int32_t rank;              // whose fault; -1: of no single rank
  int32_t body_status;       // of the body that failed
  uint64_t steps;            // warp instructions executed
  uint64_t launches;
  const char* message;       // lives until the next run or destroy
  const char* file;          // source line of the fault, or null
  int32_t line;
} pkb_emu_report;

typedef int (*pkb_emu_body)(void* user, int rank);
typedef void (*pkb_emu_function)(void* user);

// A null result: pkb_emu_error(NULL) says why.
PKB_EMU_API pkb_emu_world* pkb_emu_create(const pkb_emu_options* options);
PKB_EMU_API void pkb_emu_destroy(pkb_emu_world* world);
// From now on, lines that host code prints by stdio and iostreams have the rank in front, as those of kernels have.
PKB_EMU_API void pkb_emu_print_by_rank(void);
PKB_EMU_API const char* pkb_emu_error(pkb_emu_world* world);

// Policy, seed and limit of wall-clock time of the runs from now on, instead of those in the options.
PKB_EMU_API int pkb_emu_schedule(pkb_emu_world* world, int policy, uint64_t seed, uint64_t max_seconds);

// Where a rank's heap segment begins, the same for all ranks. As all addresses of GPUs it is for kernels and functions of
// CUDA alone: host code that touches it ends the run with PKB_EMU_ILLEGAL_ADDRESS.
PKB_EMU_API void* pkb_emu_segment(pkb_emu_world* world, int rank);

// Where the segments of all ranks begin for instructions of multicast (multimem).
PKB_EMU_API void* pkb_emu_multicast_segment(pkb_emu_world* world);

// Where the caller of this interface reaches memory that programs see at an address; null: it is no such memory.
PKB_EMU_API void* pkb_emu_own(pkb_emu_world* world, const void* address, uint64_t bytes);

// The first of these bytes of a GPU that differs from `before`, though no kernel, copy or fill has written it since
// pkb_emu_set_initialised(..., 0); -1: there is none. Without `before` it is compared with newly allocated memory.
PKB_EMU_API int64_t pkb_emu_foreign(pkb_emu_world* world, const void* address, uint64_t bytes, const void* before);

// Called with a signal, its siginfo_t and its context where host code touches memory of a GPU; null: nobody.
typedef void (*pkb_emu_trace_function)(int number, void* info, void* context);
PKB_EMU_API void pkb_emu_trace(pkb_emu_trace_function function);

// An observer (pkb::emulator::Observer*, events.h) of all runs from now on; null: none.
PKB_EMU_API int pkb_emu_observe(pkb_emu_world* world, void* observer);

// Names memory in messages and for the observer. Arguments, outputs, scratch and signals lie in the rank's segment;
// PKB_EMU_HOST is any other memory of this process that kernels may touch. Returns the region's id, or a negative number.
PKB_EMU_API int64_t pkb_emu_region(pkb_emu_world* world, int rank, int kind, const char* name, void* address,
                                   uint64_t bytes, uint32_t element_bytes, int initialised);
PKB_EMU_API int pkb_emu_region_remove(pkb_emu_world* world, int64_t region);
// Says whether memory has been written.
PKB_EMU_API int pkb_emu_set_initialised(pkb_emu_world* world, void* address, uint64_t bytes, int initialised);
// Forgets what a GPU has written there, for pkb_emu_foreign alone: `before` is what the memory holds now.
PKB_EMU_API int pkb_emu_watch_writes(pkb_emu_world* world, void* address, uint64_t bytes);
// What host code changes there while it has the turn counts as not written by a GPU, whatever was written before.
PKB_EMU_API int pkb_emu_watch_host_writes(pkb_emu_world* world, void* address, uint64_t bytes, int is_on);

// Registers of a thread of a kernel (mangled name), as ptxas reports them, for occupancy. Without it: those of the sm_90a
// code in the fat binary if there is any, else an estimate.
PKB_EMU_API int pkb_emu_kernel_registers(pkb_emu_world* world, const char* kernel, int registers);

// Runs body(user, rank) on each rank's thread under the scheduler; returns when all bodies have returned and all streams
// are empty, or nobody can go on. After an outcome other than PKB_EMU_OK calls of CUDA fail with cudaErrorLaunchFailure,
// so that bodies return; one that never calls CUDA again keeps its thread.
PKB_EMU_API int pkb_emu_run(pkb_emu_world* world, pkb_emu_body body, void* user, pkb_emu_report* report);
// From any thread: ends a run with PKB_EMU_STOPPED.
PKB_EMU_API void pkb_emu_stop(pkb_emu_world* world, const char* message);

// ---- within a body, on the rank's own thread ----

// Loads a rank's own copy of a library (a file of its own: the same file is one library for all). Returns a dlopen
// handle, or null. The library needs functions of the CUDA runtime as this one exports them: CUDAMalloc for cudaMalloc.
PKB_EMU_API void* pkb_emu_load(pkb_emu_world* world, const char* path);
// Calls the exported TVM FFI function `name` ("solution") with TVMFFIAny arguments; 0, or -1 with the FFI's error as text.
PKB_EMU_API int pkb_emu_call(pkb_emu_world* world, void* library, const char* name, const void* arguments, int count);

// The same for PTX text, without a library: its kernels can be launched by name.
PKB_EMU_API int pkb_emu_load_ptx(pkb_emu_world* world, const char* ptx);
// Launches a kernel of such text on the rank's default stream; `arguments` as of cudaLaunchKernel. Returns a cudaError_t,
// or a negative number.
PKB_EMU_API int pkb_emu_launch(pkb_emu_world* world, const char* kernel, const uint32_t grid[3], const uint32_t block[3],
                               const uint32_t cluster[3], uint32_t dynamic_shared, void** arguments);

// The rank's default stream, as cudaStream_t: what CommData::stream is set to.
PKB_EMU_API void* pkb_emu_stream(pkb_emu_world* world);
// The arrival and the departure of a call, in the stream's order. Scheduling policies hold ranks back here.
PKB_EMU_API int pkb_emu_arrival(pkb_emu_world* world, uint64_t call);
PKB_EMU_API int pkb_emu_departure(pkb_emu_world* world, uint64_t call);
// A function of the host in the stream's order, on another thread; its memory accesses are reported by
// pkb_emu_touched.
PKB_EMU_API int pkb_emu_enqueue(pkb_emu_world* world, pkb_emu_function function, void* user, const char* name);
// Within such a function: says that it has read or written (write != 0) these bytes.
PKB_EMU_API int pkb_emu_touched(pkb_emu_world* world, void* address, uint64_t bytes, int write);
// Copies and fills in the stream's order, by the host: `name` stands in messages ("arrival of x").
PKB_EMU_API int pkb_emu_copy(pkb_emu_world* world, void* to, const void* from, uint64_t bytes, const char* name);
PKB_EMU_API int pkb_emu_fill(pkb_emu_world* world, void* to, int byte, uint64_t bytes, const char* name);
// Waits until the stream is empty. Returns 0, or a negative number if the run has ended.
PKB_EMU_API int pkb_emu_synchronize(pkb_emu_world* world);

#ifdef __cplusplus
}
#endif
