// NVSHMEM's functions for emulated GPUs, of host and device, with the names and the semantics of its documentation: "NVSHMEM
// API", sections "Library Setup", "Memory Management", "RMA", "Atomic", "Signaling", "Point-To-Point Synchronization",
// "Memory Ordering", "Collective". All PEs are on one node, so that a put is stores, and a get is loads. Teams
// are parts of all PEs.
//
//   put, get            ordinary accesses of all bytes, by the threads that call; relaxed ones of system scope of an element
//   p, g, atomics       relaxed accesses of system scope
//   fence, quiet        fences of system scope
//   wait_until, test    loads that acquire
//   put_signal          the data, and a relaxed update of the signal that brings them and nothing else
//   collectives         gets between two barriers of the team
//
// A function with _nbi reads its data before it returns, and what it writes may arrive later, in some orders of execution: after
// quiet or a barrier it is complete, and a put is delivered behind fence, which marks in the code tell.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "rank_emulator.h"

#define NVSHMEM_MAJOR_VERSION 1
#define NVSHMEM_MINOR_VERSION 3
#define NVSHMEM_MAX_NAME_LEN 256

typedef int32_t nvshmem_team_t;
enum { NVSHMEM_TEAM_INVALID = -1, NVSHMEM_TEAM_WORLD = 0, NVSHMEM_TEAM_SHARED = 1, NVSHMEMX_TEAM_NODE = 2 };
enum { NVSHMEM_CMP_EQ = 0, NVSHMEM_CMP_NE, NVSHMEM_CMP_GT, NVSHMEM_CMP_LE, NVSHMEM_CMP_LT, NVSHMEM_CMP_GE };
enum { NVSHMEM_SIGNAL_SET = 9, NVSHMEM_SIGNAL_ADD = 10 };
enum { NVSHMEM_THREAD_SINGLE = 0, NVSHMEM_THREAD_FUNNELED, NVSHMEM_THREAD_SERIALIZED, NVSHMEM_THREAD_MULTIPLE };

#define PKB_BOTH __host__ __device__ static inline
#define PKB_DEVICE __device__ static inline
#define PKB_HOST static inline

namespace pkb_nvshmem {

constexpr int kMaxPes = 16, kMaxTeams = 16, kPredefinedTeams = 3;  // those are of all PEs

struct Team {
  int start, stride, size, mine;   // mine: of this PE in the team; -1: it is none of its members
  __host__ __device__ int pe(int member) const { return start + member * stride; }
};
struct State {
  char* base[kMaxPes];             // of each PE's symmetric heap
  char* multicast;                 // of all of them
  unsigned long long* barriers;    // of each team: how often this PE has come, then how often each member has
  int pe, pes;
  Team teams[kMaxTeams];
};
static __constant__ State device_state;  // each translation unit has one; nvshmem_init fills them all

struct Host {
  State state{};
  std::vector<const void*> device_states;
  int teams = kPredefinedTeams;
};
inline Host& host() {
  static Host it;
  return it;
}
[[maybe_unused]] static const bool is_known = (host().device_states.push_back(&device_state), true);

__host__ __device__ inline const State& state() {
#ifdef __CUDA_ARCH__
  return device_state;
#else
  return host().state;
#endif
}

// The same object on another PE.
template <class T>
__host__ __device__ inline T* on(T* object, int pe) {
  const State& s = state();
  return reinterpret_cast<T*>(s.base[pe] + (reinterpret_cast<const char*>(object) - s.base[s.pe]));
}

// ---- threads that act together: one, those of a warp, those of a block ----
struct Thread {
  static constexpr int kOfEachThread = 0x10;
  __device__ static unsigned index() { return 0; }
  __device__ static unsigned count() { return 1; }
  __device__ static void meet() {}
};
struct Warp {
  static constexpr int kOfEachThread = 0;
  __device__ static unsigned index() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
  __device__ static unsigned count() { return 32; }
  __device__ static void meet() { __syncwarp(); }
};
struct Block {
  static constexpr int kOfEachThread = 0;
  __device__ static unsigned index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  __device__ static unsigned count() { return blockDim.x * blockDim.y * blockDim.z; }
  __device__ static void meet() { __syncthreads(); }
};

// ---- what the race detector is told: LibraryMark of the emulator ----
enum Mark { kPut = 1, kGet, kSignalledPut, kBlockingPut, kEnd, kFence, kQuiet, kSignal };
template <int code>
__device__ inline void mark() {
  asm volatile("pmevent.mask %0;" ::"n"(0x5a00 + code) : "memory");
}

template <class Group, class T>
__device__ inline void move_as(void* to, const void* from, size_t bytes) {
  for (size_t i = Group::index(); i < bytes / sizeof(T); i += Group::count()) static_cast<T*>(to)[i] = static_cast<const T*>(from)[i];
}
template <class Group>
__device__ inline void copy(void* to, const void* from, size_t bytes) {
  const auto alignment = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (alignment % 16 == 0) {
    move_as<Group, uint4>(to, from, bytes);
  } else if (alignment % 4 == 0) {
    move_as<Group, unsigned>(to, from, bytes);
  } else {
    move_as<Group, unsigned char>(to, from, bytes);
  }
}
// All threads of the group call it; they have met when it returns.
template <class Group>
__device__ inline void move(void* to, const void* from, size_t bytes) {
  copy<Group>(to, from, bytes);
  Group::meet();
}

__device__ inline void fence() {
  mark<kFence>();
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ inline void quiet() {
  mark<kQuiet>();
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// ---- relaxed and acquiring accesses of one element ----
template <class T>
__device__ inline void store(T* to, T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(to), "l"(reinterpret_cast<unsigned long long&>(value)) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(reinterpret_cast<unsigned&>(value)) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.relaxed.sys.global.b16 [%0], %1;" ::"l"(to), "h"(reinterpret_cast<unsigned short&>(value)) : "memory");
  } else {
    asm volatile("st.relaxed.sys.global.b8 [%0], %1;" ::"l"(to), "r"(unsigned(reinterpret_cast<unsigned char&>(value))) : "memory");
  }
}
#define PKB_LOAD(name, order)                                                                        \
  template <class T>                                                                                 \
  __device__ inline T name(const T* from) {                                                          \
    if constexpr (sizeof(T) == 8) {                                                                  \
      unsigned long long bits;                                                                       \
      asm volatile("ld." order ".sys.global.b64 %0, [%1];" : "=l"(bits) : "l"(from) : "memory");     \
      return reinterpret_cast<T&>(bits);                                                             \
    } else if constexpr (sizeof(T) == 4) {                                                           \
      unsigned bits;                                                                                 \
      asm volatile("ld." order ".sys.global.b32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");     \
      return reinterpret_cast<T&>(bits);                                                             \
    } else if constexpr (sizeof(T) == 2) {                                                           \
      unsigned short bits;                                                                           \
      asm volatile("ld." order ".sys.global.b16 %0, [%1];" : "=h"(bits) : "l"(from) : "memory");     \
      return reinterpret_cast<T&>(bits);                                                             \
    } else {                                                                                         \
      unsigned bits;                                                                                 \
      asm volatile("ld." order ".sys.global.b8 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");      \
      const auto byte = static_cast<unsigned char>(bits);                                            \
      return reinterpret_cast<const T&>(byte);                                                       \
    }                                                                                                \
  }
PKB_LOAD(load, "relaxed")
PKB_LOAD(load_acquire, "acquire")
#undef PKB_LOAD

template <class T>
__device__ inline bool holds(T found, int comparison, T value) {
  switch (comparison) {
    case NVSHMEM_CMP_EQ: return found == value;
    case NVSHMEM_CMP_NE: return found != value;
    case NVSHMEM_CMP_GT: return found > value;
    case NVSHMEM_CMP_LE: return found <= value;
    case NVSHMEM_CMP_LT: return found < value;
    default: return found >= value;
  }
}

// A put of one element may be the flag for others.
template <class Group>
__device__ inline void copy_to_peer(void* to, const void* from, size_t bytes) {
  const auto is = [&](size_t size) { return bytes == size && (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % size == 0; };
  if (bytes > 8 || !(is(1) || is(2) || is(4) || is(8))) return copy<Group>(to, from, bytes);
  if (Group::index() != 0) return;
  switch (bytes) {
    case 1: return store(static_cast<uint8_t*>(to), *static_cast<const uint8_t*>(from));
    case 2: return store(static_cast<uint16_t*>(to), *static_cast<const uint16_t*>(from));
    case 4: return store(static_cast<uint32_t*>(to), *static_cast<const uint32_t*>(from));
    default: return store(static_cast<uint64_t*>(to), *static_cast<const uint64_t*>(from));
  }
}
template <class Group, bool waits>
__device__ inline void put(void* to, const void* from, size_t bytes) {
  if constexpr (!waits) mark<kPut>();
  copy_to_peer<Group>(to, from, bytes);
  if constexpr (!waits) mark<kEnd>();
  Group::meet();
}
template <class Group, bool waits>
__device__ inline void get(void* to, const void* from, size_t bytes) {
  if constexpr (!waits) mark<kGet>();
  copy<Group>(to, from, bytes);
  if constexpr (!waits) mark<kEnd>();
  Group::meet();
}

__device__ inline void signal(uint64_t* object, uint64_t value, int operation, int pe) {
  auto* const there = reinterpret_cast<unsigned long long*>(on(object, pe));
  if (operation == NVSHMEM_SIGNAL_ADD) {
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(there), "l"(value) : "memory");
  } else {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(there), "l"(value) : "memory");
  }
}
template <class Group, bool waits>
__device__ inline void put_signal(void* to, const void* from, size_t bytes, uint64_t* object, uint64_t value, int operation, int pe) {
  mark<(waits ? kBlockingPut : kSignalledPut) + Group::kOfEachThread>();
  copy<Group>(on(static_cast<char*>(to), pe), from, bytes);
  mark<kEnd>();
  Group::meet();
  if (Group::index() == 0) {
    mark<kSignal>();
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    signal(object, value, operation, pe);
    mark<kEnd>();
  }
  Group::meet();
}

__host__ __device__ inline const Team& team_of(nvshmem_team_t team) { return state().teams[team]; }

// All members of a team meet; one thread of each.
__device__ inline void sync_thread(nvshmem_team_t of) {
  const Team& team = team_of(of);
  unsigned long long* const mine = state().barriers + of * (1 + kMaxPes);
  const unsigned long long epoch = ++mine[0];
  for (int member = 0; member < team.size; ++member) {
    auto* const there = on(mine, team.pe(member)) + 1 + team.mine;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(there), "l"(epoch) : "memory");
  }
  for (int member = 0; member < team.size; ++member) {
    while (load_acquire(mine + 1 + member) < epoch) {
    }
  }
}
template <class Group>
__device__ inline void sync(nvshmem_team_t team = NVSHMEM_TEAM_WORLD) {
  Group::meet();
  if (Group::index() == 0) sync_thread(team);
  Group::meet();
}
template <class Group>
__device__ inline void barrier(nvshmem_team_t team = NVSHMEM_TEAM_WORLD) {
  quiet();
  sync<Group>(team);
}

static __global__ void nvshmemx_barrier_on_stream_kernel(nvshmem_team_t team) { barrier<Thread>(team); }
static __global__ void nvshmemx_sync_on_stream_kernel(nvshmem_team_t team) { sync<Thread>(team); }
static __global__ void nvshmemx_quiet_on_stream_kernel() { quiet(); }
template <bool waits>
__global__ void nvshmemx_put_on_stream_kernel(void* to, const void* from, size_t bytes, int pe) {
  put<Block, waits>(on(static_cast<char*>(to), pe), from, bytes);
}
template <bool waits>
__global__ void nvshmemx_get_on_stream_kernel(void* to, const void* from, size_t bytes, int pe) {
  get<Block, waits>(to, on(static_cast<const char*>(from), pe), bytes);
}
template <bool waits>
__global__ void nvshmemx_put_signal_on_stream_kernel(void* to, const void* from, size_t bytes, uint64_t* object, uint64_t value, int operation, int pe) {
  put_signal<Block, waits>(to, from, bytes, object, value, operation, pe);
}
static __global__ void nvshmemx_signal_op_on_stream_kernel(uint64_t* object, uint64_t value, int operation, int pe) { signal(object, value, operation, pe); }
static __global__ void nvshmemx_signal_wait_until_on_stream_kernel(uint64_t* object, int comparison, uint64_t value) {
  while (!holds(load_acquire(object), comparison, value)) {
  }
}

}  // namespace pkb_nvshmem

// ---- library setup, of hosts ----
typedef struct {
  void* mpi_comm;
} nvshmemx_init_attr_t;
typedef struct {
  char bytes[128];
} nvshmemx_uniqueid_t;
enum { NVSHMEMX_INIT_WITH_MPI_COMM = 2, NVSHMEMX_INIT_WITH_SHMEM = 4, NVSHMEMX_INIT_WITH_UNIQUEID = 8 };
enum { NVSHMEMX_SUCCESS = 0, NVSHMEMX_ERROR_INTERNAL = 7 };
#define NVSHMEMX_INIT_ATTR_INITIALIZER {nullptr}
#define NVSHMEMX_UNIQUEID_INITIALIZER {{0}}

namespace pkb_nvshmem {
inline void fill_device_states() {
  for (const void* const each : host().device_states) cudaMemcpyToSymbol(each, &host().state, sizeof(State), 0, cudaMemcpyHostToDevice);
  cudaDeviceSynchronize();
}
}  // namespace pkb_nvshmem

PKB_HOST void nvshmem_init() {
  using namespace pkb_nvshmem;
  State& s = host().state;
  if (s.pes) return;
  s.pe = pkb_emu_my_rank();
  const int pes = pkb_emu_rank_count();
  for (int pe = 0; pe < pes; ++pe) s.base[pe] = static_cast<char*>(pkb_emu_symmetric_base(pe));
  s.multicast = static_cast<char*>(pkb_emu_multicast(s.base, pkb_emu_symmetric_bytes()));
  const size_t bytes = kMaxTeams * (1 + kMaxPes) * sizeof(unsigned long long);
  s.barriers = static_cast<unsigned long long*>(pkb_emu_symmetric_allocate("nvshmem_init", bytes, 128));
  s.pes = pes;
  for (int team = 0; team < kPredefinedTeams; ++team) s.teams[team] = {0, 1, pes, s.pe};
  if (!s.barriers) return;
  cudaMemset(s.barriers, 0, bytes);
  fill_device_states();
  pkb_emu_exchange("nvshmem_init", nullptr, nullptr, 0);
}
PKB_HOST int nvshmemx_init_attr(unsigned, nvshmemx_init_attr_t*) {
  nvshmem_init();
  return 0;
}
PKB_HOST int nvshmemx_hostlib_init_attr(unsigned flags, nvshmemx_init_attr_t* attributes) { return nvshmemx_init_attr(flags, attributes); }
PKB_HOST int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t*) { return 0; }
PKB_HOST int nvshmemx_set_attr_uniqueid_args(int, int, const nvshmemx_uniqueid_t*, nvshmemx_init_attr_t*) { return 0; }
PKB_HOST int nvshmem_init_thread(int, int* provided) {
  nvshmem_init();
  *provided = NVSHMEM_THREAD_MULTIPLE;
  return 0;
}
PKB_HOST void nvshmem_finalize() { pkb_emu_quiet(), pkb_emu_exchange("nvshmem_finalize", nullptr, nullptr, 0); }
PKB_HOST void nvshmemx_hostlib_finalize() { nvshmem_finalize(); }
PKB_HOST void nvshmem_global_exit(int status) { exit(status); }

PKB_BOTH int nvshmem_my_pe() { return pkb_nvshmem::state().pe; }
PKB_BOTH int nvshmem_n_pes() { return pkb_nvshmem::state().pes; }
PKB_BOTH int nvshmem_team_my_pe(nvshmem_team_t team) { return team < 0 ? -1 : pkb_nvshmem::team_of(team).mine; }
PKB_BOTH int nvshmem_team_n_pes(nvshmem_team_t team) { return team < 0 ? -1 : pkb_nvshmem::team_of(team).size; }
PKB_BOTH int nvshmem_team_translate_pe(nvshmem_team_t from, int member, nvshmem_team_t to) {
  if (from < 0 || to < 0) return -1;
  const int pe = pkb_nvshmem::team_of(from).pe(member);
  for (int other = 0; other < pkb_nvshmem::team_of(to).size; ++other) {
    if (pkb_nvshmem::team_of(to).pe(other) == pe) return other;
  }
  return -1;
}
PKB_BOTH void* nvshmem_ptr(const void* object, int pe) { return pkb_nvshmem::on(static_cast<char*>(const_cast<void*>(object)), pe); }
// The same object on all PEs of a team, for instructions of multicast; null: the team leaves PEs out.
PKB_BOTH void* nvshmemx_mc_ptr(nvshmem_team_t team, const void* object) {
  const pkb_nvshmem::State& s = pkb_nvshmem::state();
  return s.teams[team].size == s.pes ? s.multicast + (static_cast<const char*>(object) - s.base[s.pe]) : nullptr;
}

// ---- memory management, of hosts ----
PKB_HOST void* nvshmem_align(size_t alignment, size_t bytes) {
  void* const found = pkb_emu_symmetric_allocate("nvshmem_malloc", bytes, alignment);
  pkb_emu_exchange("nvshmem_malloc", nullptr, nullptr, 0);
  return found;
}
PKB_HOST void* nvshmem_malloc(size_t bytes) { return nvshmem_align(256, bytes); }
PKB_HOST void* nvshmem_calloc(size_t count, size_t bytes) {
  void* const found = pkb_emu_symmetric_allocate("nvshmem_calloc", count * bytes, 256);
  if (found) cudaMemset(found, 0, count * bytes);
  cudaDeviceSynchronize();
  pkb_emu_exchange("nvshmem_calloc", nullptr, nullptr, 0);
  return found;
}
PKB_HOST void nvshmem_free(void* pointer) { pkb_emu_symmetric_free("nvshmem_free", pointer); }
// Of a buffer that lies at one distance from each PE's heap, as declared ones do: it is addressed as the heap is.
PKB_HOST void* nvshmemx_buffer_register_symmetric(void* buffer, size_t, int) {
  const pkb_nvshmem::State& s = pkb_nvshmem::host().state;
  const ptrdiff_t mine = static_cast<char*>(buffer) - s.base[s.pe];
  std::vector<ptrdiff_t> all(size_t(s.pes));
  if (pkb_emu_exchange("nvshmemx_buffer_register_symmetric", &mine, all.data(), sizeof mine) != 0) return nullptr;
  for (const ptrdiff_t other : all) {
    if (other != mine) return nullptr;
  }
  return buffer;
}
PKB_HOST int nvshmemx_buffer_unregister_symmetric(void*, size_t) { return 0; }

// ---- collectives that move nothing ----
PKB_BOTH void nvshmem_sync_all() {
#ifdef __CUDA_ARCH__
  pkb_nvshmem::sync<pkb_nvshmem::Thread>();
#else
  pkb_emu_exchange("nvshmem_sync_all", nullptr, nullptr, 0);
#endif
}
PKB_BOTH void nvshmem_barrier_all() {
#ifdef __CUDA_ARCH__
  pkb_nvshmem::barrier<pkb_nvshmem::Thread>();
#else
  pkb_emu_quiet();
  pkb_emu_exchange("nvshmem_barrier_all", nullptr, nullptr, 0);
#endif
}
#define PKB_COLLECTIVE(scope, Group)                                                                                                  \
  PKB_DEVICE void nvshmemx_barrier_all_##scope() { pkb_nvshmem::barrier<pkb_nvshmem::Group>(); }                                      \
  PKB_DEVICE void nvshmemx_sync_all_##scope() { pkb_nvshmem::sync<pkb_nvshmem::Group>(); }                                            \
  PKB_DEVICE int nvshmemx_barrier_##scope(nvshmem_team_t team) { return pkb_nvshmem::barrier<pkb_nvshmem::Group>(team), 0; }          \
  PKB_DEVICE int nvshmemx_sync_##scope(nvshmem_team_t team) { return pkb_nvshmem::sync<pkb_nvshmem::Group>(team), 0; }                \
  PKB_DEVICE int nvshmemx_team_sync_##scope(nvshmem_team_t team) { return pkb_nvshmem::sync<pkb_nvshmem::Group>(team), 0; }
PKB_COLLECTIVE(warp, Warp)
PKB_COLLECTIVE(block, Block)
#undef PKB_COLLECTIVE
PKB_HOST int nvshmemx_barrier_on_stream(nvshmem_team_t team, cudaStream_t stream) { return pkb_nvshmem::nvshmemx_barrier_on_stream_kernel<<<1, 1, 0, stream>>>(team), 0; }
PKB_HOST int nvshmemx_team_sync_on_stream(nvshmem_team_t team, cudaStream_t stream) { return pkb_nvshmem::nvshmemx_sync_on_stream_kernel<<<1, 1, 0, stream>>>(team), 0; }
PKB_HOST int nvshmemx_sync_on_stream(nvshmem_team_t team, cudaStream_t stream) { return nvshmemx_team_sync_on_stream(team, stream); }
PKB_HOST void nvshmemx_barrier_all_on_stream(cudaStream_t stream) { nvshmemx_barrier_on_stream(NVSHMEM_TEAM_WORLD, stream); }
PKB_HOST void nvshmemx_sync_all_on_stream(cudaStream_t stream) { nvshmemx_team_sync_on_stream(NVSHMEM_TEAM_WORLD, stream); }
PKB_BOTH int nvshmem_team_sync(nvshmem_team_t team) {
#ifdef __CUDA_ARCH__
  return pkb_nvshmem::sync<pkb_nvshmem::Thread>(team), 0;
#else
  return nvshmemx_team_sync_on_stream(team, nullptr), cudaStreamSynchronize(nullptr);
#endif
}
PKB_BOTH int nvshmem_sync(nvshmem_team_t team) { return nvshmem_team_sync(team); }
PKB_BOTH int nvshmem_barrier(nvshmem_team_t team) {
#ifdef __CUDA_ARCH__
  pkb_nvshmem::quiet();
#else
  pkb_emu_quiet();
#endif
  return nvshmem_team_sync(team);
}

// ---- order ----
PKB_DEVICE void nvshmem_fence() { pkb_nvshmem::fence(); }
PKB_BOTH void nvshmem_quiet() {
#ifdef __CUDA_ARCH__
  pkb_nvshmem::quiet();
#else
  pkb_emu_quiet();
#endif
}
PKB_HOST void nvshmemx_quiet_on_stream(cudaStream_t stream) { pkb_nvshmem::nvshmemx_quiet_on_stream_kernel<<<1, 1, 0, stream>>>(); }

// ---- remote memory access: of one thread, of a warp, of a block; of bytes, of types, of sizes ----
#define PKB_MOVES(prefix, name, suffix, Group, T, size, waits)                                \
  PKB_DEVICE void prefix##name##put##suffix(T* to, const T* from, size_t count, int pe) {     \
    pkb_nvshmem::put<pkb_nvshmem::Group, waits>(pkb_nvshmem::on(to, pe), from, count * size); \
  }                                                                                           \
  PKB_DEVICE void prefix##name##get##suffix(T* to, const T* from, size_t count, int pe) {     \
    pkb_nvshmem::get<pkb_nvshmem::Group, waits>(to, pkb_nvshmem::on(from, pe), count * size); \
  }
#define PKB_SIGNALS(prefix, name, suffix, Group, T, size, waits)                                                                           \
  PKB_DEVICE void prefix##name##put##suffix(T* to, const T* from, size_t count, uint64_t* object, uint64_t value, int operation, int pe) { \
    pkb_nvshmem::put_signal<pkb_nvshmem::Group, waits>(to, from, count * size, object, value, operation, pe);                              \
  }
#define PKB_TYPED(name, T)                                                                                                        \
  PKB_MOVES(nvshmem_, name##_, , Thread, T, sizeof(T), true)                                                                      \
  PKB_MOVES(nvshmem_, name##_, _nbi, Thread, T, sizeof(T), false)                                                                 \
  PKB_MOVES(nvshmemx_, name##_, _warp, Warp, T, sizeof(T), true)                                                                  \
  PKB_MOVES(nvshmemx_, name##_, _nbi_warp, Warp, T, sizeof(T), false)                                                             \
  PKB_MOVES(nvshmemx_, name##_, _block, Block, T, sizeof(T), true)                                                                \
  PKB_MOVES(nvshmemx_, name##_, _nbi_block, Block, T, sizeof(T), false)                                                           \
  PKB_SIGNALS(nvshmem_, name##_, _signal, Thread, T, sizeof(T), true)                                                             \
  PKB_SIGNALS(nvshmem_, name##_, _signal_nbi, Thread, T, sizeof(T), false)                                                        \
  PKB_SIGNALS(nvshmemx_, name##_, _signal_warp, Warp, T, sizeof(T), true)                                                         \
  PKB_SIGNALS(nvshmemx_, name##_, _signal_nbi_warp, Warp, T, sizeof(T), false)                                                    \
  PKB_SIGNALS(nvshmemx_, name##_, _signal_block, Block, T, sizeof(T), true)                                                       \
  PKB_SIGNALS(nvshmemx_, name##_, _signal_nbi_block, Block, T, sizeof(T), false)                                                  \
  PKB_DEVICE void nvshmem_##name##_iput(T* to, const T* from, ptrdiff_t to_stride, ptrdiff_t from_stride, size_t count, int pe) { \
    for (size_t i = 0; i < count; ++i) pkb_nvshmem::on(to, pe)[ptrdiff_t(i) * to_stride] = from[ptrdiff_t(i) * from_stride];      \
  }                                                                                                                               \
  PKB_DEVICE void nvshmem_##name##_iget(T* to, const T* from, ptrdiff_t to_stride, ptrdiff_t from_stride, size_t count, int pe) { \
    for (size_t i = 0; i < count; ++i) to[ptrdiff_t(i) * to_stride] = pkb_nvshmem::on(from, pe)[ptrdiff_t(i) * from_stride];      \
  }                                                                                                                               \
  PKB_DEVICE void nvshmem_##name##_p(T* to, T value, int pe) { pkb_nvshmem::store(pkb_nvshmem::on(to, pe), value); }              \
  PKB_DEVICE T nvshmem_##name##_g(const T* from, int pe) { return pkb_nvshmem::load(pkb_nvshmem::on(from, pe)); }
PKB_TYPED(float, float)
PKB_TYPED(double, double)
PKB_TYPED(half, __half)
PKB_TYPED(bfloat16, __nv_bfloat16)
PKB_TYPED(char, char)
PKB_TYPED(schar, signed char)
PKB_TYPED(uchar, unsigned char)
PKB_TYPED(short, short)
PKB_TYPED(ushort, unsigned short)
PKB_TYPED(int, int)
PKB_TYPED(uint, unsigned int)
PKB_TYPED(long, long)
PKB_TYPED(ulong, unsigned long)
PKB_TYPED(longlong, long long)
PKB_TYPED(ulonglong, unsigned long long)
PKB_TYPED(int8, int8_t)
PKB_TYPED(int16, int16_t)
PKB_TYPED(int32, int32_t)
PKB_TYPED(int64, int64_t)
PKB_TYPED(uint8, uint8_t)
PKB_TYPED(uint16, uint16_t)
PKB_TYPED(uint32, uint32_t)
PKB_TYPED(uint64, uint64_t)
PKB_TYPED(size, size_t)
PKB_TYPED(ptrdiff, ptrdiff_t)
#undef PKB_TYPED

#define PKB_SIZED(bits, size)                                               \
  PKB_MOVES(nvshmem_, , bits, Thread, void, size, true)                     \
  PKB_MOVES(nvshmem_, , bits##_nbi, Thread, void, size, false)              \
  PKB_MOVES(nvshmemx_, , bits##_warp, Warp, void, size, true)               \
  PKB_MOVES(nvshmemx_, , bits##_nbi_warp, Warp, void, size, false)          \
  PKB_MOVES(nvshmemx_, , bits##_block, Block, void, size, true)             \
  PKB_MOVES(nvshmemx_, , bits##_nbi_block, Block, void, size, false)        \
  PKB_SIGNALS(nvshmem_, , bits##_signal, Thread, void, size, true)          \
  PKB_SIGNALS(nvshmem_, , bits##_signal_nbi, Thread, void, size, false)     \
  PKB_SIGNALS(nvshmemx_, , bits##_signal_warp, Warp, void, size, true)      \
  PKB_SIGNALS(nvshmemx_, , bits##_signal_nbi_warp, Warp, void, size, false) \
  PKB_SIGNALS(nvshmemx_, , bits##_signal_block, Block, void, size, true)    \
  PKB_SIGNALS(nvshmemx_, , bits##_signal_nbi_block, Block, void, size, false)
namespace pkb_nvshmem {
__device__ inline void* on(void* object, int pe) { return on(static_cast<char*>(object), pe); }
__device__ inline const void* on(const void* object, int pe) { return on(static_cast<const char*>(object), pe); }
}  // namespace pkb_nvshmem
PKB_SIZED(mem, 1)
PKB_SIZED(8, 1)
PKB_SIZED(16, 2)
PKB_SIZED(32, 4)
PKB_SIZED(64, 8)
PKB_SIZED(128, 16)
#undef PKB_SIZED
#undef PKB_SIGNALS
#undef PKB_MOVES

#define PKB_BYTES_ON_STREAM(suffix, waits)                                                                                          \
  PKB_HOST void nvshmemx_putmem##suffix##_on_stream(void* to, const void* from, size_t bytes, int pe, cudaStream_t stream) {        \
    pkb_nvshmem::nvshmemx_put_on_stream_kernel<waits><<<1, 256, 0, stream>>>(to, from, bytes, pe);                                  \
  }                                                                                                                                 \
  PKB_HOST void nvshmemx_getmem##suffix##_on_stream(void* to, const void* from, size_t bytes, int pe, cudaStream_t stream) {        \
    pkb_nvshmem::nvshmemx_get_on_stream_kernel<waits><<<1, 256, 0, stream>>>(to, from, bytes, pe);                                  \
  }                                                                                                                                 \
  PKB_HOST void nvshmemx_putmem_signal##suffix##_on_stream(void* to, const void* from, size_t bytes, uint64_t* object, uint64_t value, int operation, int pe, cudaStream_t stream) { \
    pkb_nvshmem::nvshmemx_put_signal_on_stream_kernel<waits><<<1, 256, 0, stream>>>(to, from, bytes, object, value, operation, pe); \
  }
PKB_BYTES_ON_STREAM(, true)
PKB_BYTES_ON_STREAM(_nbi, false)
#undef PKB_BYTES_ON_STREAM
#define PKB_TYPE_ON_STREAM(name, T, suffix)                                                                                  \
  PKB_HOST void nvshmemx_##name##_put##suffix##_on_stream(T* to, const T* from, size_t count, int pe, cudaStream_t stream) { \
    nvshmemx_putmem##suffix##_on_stream(to, from, count * sizeof(T), pe, stream);                                            \
  }                                                                                                                          \
  PKB_HOST void nvshmemx_##name##_get##suffix##_on_stream(T* to, const T* from, size_t count, int pe, cudaStream_t stream) { \
    nvshmemx_getmem##suffix##_on_stream(to, from, count * sizeof(T), pe, stream);                                            \
  }                                                                                                                          \
  PKB_HOST void nvshmemx_##name##_put_signal##suffix##_on_stream(T* to, const T* from, size_t count, uint64_t* object, uint64_t value, int operation, int pe, cudaStream_t stream) { \
    nvshmemx_putmem_signal##suffix##_on_stream(to, from, count * sizeof(T), object, value, operation, pe, stream);           \
  }
#define PKB_ON_STREAM(name, T)  \
  PKB_TYPE_ON_STREAM(name, T, ) \
  PKB_TYPE_ON_STREAM(name, T, _nbi)
PKB_ON_STREAM(float, float)
PKB_ON_STREAM(double, double)
PKB_ON_STREAM(half, __half)
PKB_ON_STREAM(bfloat16, __nv_bfloat16)
PKB_ON_STREAM(int, int)
PKB_ON_STREAM(uint, unsigned int)
PKB_ON_STREAM(long, long)
PKB_ON_STREAM(ulong, unsigned long)
PKB_ON_STREAM(longlong, long long)
PKB_ON_STREAM(int32, int32_t)
PKB_ON_STREAM(int64, int64_t)
PKB_ON_STREAM(uint8, uint8_t)
PKB_ON_STREAM(uint32, uint32_t)
PKB_ON_STREAM(uint64, uint64_t)
#undef PKB_ON_STREAM
#undef PKB_TYPE_ON_STREAM
PKB_HOST void nvshmemx_signal_op_on_stream(uint64_t* object, uint64_t value, int operation, int pe, cudaStream_t stream) {
  pkb_nvshmem::nvshmemx_signal_op_on_stream_kernel<<<1, 1, 0, stream>>>(object, value, operation, pe);
}
PKB_HOST void nvshmemx_signal_wait_until_on_stream(uint64_t* object, int comparison, uint64_t value, cudaStream_t stream) {
  pkb_nvshmem::nvshmemx_signal_wait_until_on_stream_kernel<<<1, 1, 0, stream>>>(object, comparison, value);
}

// ---- signals, and waits for one element ----
PKB_DEVICE void nvshmemx_signal_op(uint64_t* object, uint64_t value, int operation, int pe) { pkb_nvshmem::signal(object, value, operation, pe); }
PKB_DEVICE uint64_t nvshmem_signal_fetch(const uint64_t* object) { return pkb_nvshmem::load_acquire(object); }
PKB_DEVICE uint64_t nvshmem_signal_wait_until(uint64_t* object, int comparison, uint64_t value) {
  for (;;) {
    const uint64_t found = pkb_nvshmem::load_acquire(object);
    if (pkb_nvshmem::holds(found, comparison, value)) return found;
  }
}
#define PKB_WAITS(name, T)                                                                                                         \
  PKB_DEVICE int nvshmem_##name##_test(T* object, int comparison, T value) { return pkb_nvshmem::holds(pkb_nvshmem::load_acquire(object), comparison, value); } \
  PKB_DEVICE void nvshmem_##name##_wait_until(T* object, int comparison, T value) {                                                \
    while (!nvshmem_##name##_test(object, comparison, value)) {                                                                    \
    }                                                                                                                              \
  }                                                                                                                                \
  PKB_DEVICE void nvshmem_##name##_wait_until_all(T* objects, size_t count, const int* status, int comparison, T value) {          \
    for (size_t i = 0; i < count; ++i) {                                                                                           \
      if (!status || !status[i]) nvshmem_##name##_wait_until(objects + i, comparison, value);                                      \
    }                                                                                                                              \
  }                                                                                                                                \
  PKB_DEVICE size_t nvshmem_##name##_wait_until_any(T* objects, size_t count, const int* status, int comparison, T value) {        \
    bool is_any = false;                                                                                                           \
    for (size_t i = 0; i < count; ++i) is_any |= !status || !status[i];                                                            \
    for (size_t i = 0; is_any; i = (i + 1) % count) {                                                                              \
      if ((!status || !status[i]) && nvshmem_##name##_test(objects + i, comparison, value)) return i;                              \
    }                                                                                                                              \
    return SIZE_MAX;                                                                                                               \
  }
PKB_WAITS(short, short)
PKB_WAITS(ushort, unsigned short)
PKB_WAITS(int, int)
PKB_WAITS(uint, unsigned int)
PKB_WAITS(long, long)
PKB_WAITS(ulong, unsigned long)
PKB_WAITS(longlong, long long)
PKB_WAITS(ulonglong, unsigned long long)
PKB_WAITS(int32, int32_t)
PKB_WAITS(int64, int64_t)
PKB_WAITS(uint32, uint32_t)
PKB_WAITS(uint64, uint64_t)
PKB_WAITS(size, size_t)
PKB_WAITS(ptrdiff, ptrdiff_t)
#undef PKB_WAITS

// ---- atomics ----
#define PKB_ATOMICS(name, T, As)                                                                                                          \
  PKB_DEVICE T nvshmem_##name##_atomic_fetch(const T* object, int pe) { return pkb_nvshmem::load(pkb_nvshmem::on(object, pe)); }          \
  PKB_DEVICE void nvshmem_##name##_atomic_set(T* object, T value, int pe) { pkb_nvshmem::store(pkb_nvshmem::on(object, pe), value); }     \
  PKB_DEVICE T nvshmem_##name##_atomic_swap(T* object, T value, int pe) {                                                                 \
    return static_cast<T>(atomicExch_system(reinterpret_cast<As*>(pkb_nvshmem::on(object, pe)), static_cast<As>(value)));                                           \
  }                                                                                                                                       \
  PKB_DEVICE T nvshmem_##name##_atomic_compare_swap(T* object, T expected, T value, int pe) {                                             \
    return static_cast<T>(atomicCAS_system(reinterpret_cast<As*>(pkb_nvshmem::on(object, pe)), static_cast<As>(expected), static_cast<As>(value)));                              \
  }                                                                                                                                       \
  PKB_DEVICE T nvshmem_##name##_atomic_fetch_add(T* object, T value, int pe) {                                                            \
    return static_cast<T>(atomicAdd_system(reinterpret_cast<As*>(pkb_nvshmem::on(object, pe)), static_cast<As>(value)));                                            \
  }                                                                                                                                       \
  PKB_DEVICE void nvshmem_##name##_atomic_add(T* object, T value, int pe) { nvshmem_##name##_atomic_fetch_add(object, value, pe); }       \
  PKB_DEVICE T nvshmem_##name##_atomic_fetch_inc(T* object, int pe) { return nvshmem_##name##_atomic_fetch_add(object, static_cast<T>(1), pe); }       \
  PKB_DEVICE void nvshmem_##name##_atomic_inc(T* object, int pe) { nvshmem_##name##_atomic_fetch_add(object, static_cast<T>(1), pe); }
#define PKB_BITWISE(name, T, As, operation, function)                                                                                     \
  PKB_DEVICE T nvshmem_##name##_atomic_fetch_##operation(T* object, T value, int pe) {                                                    \
    return static_cast<T>(function(reinterpret_cast<As*>(pkb_nvshmem::on(object, pe)), static_cast<As>(value)));                                                    \
  }                                                                                                                                       \
  PKB_DEVICE void nvshmem_##name##_atomic_##operation(T* object, T value, int pe) { nvshmem_##name##_atomic_fetch_##operation(object, value, pe); }
#define PKB_ALL_BITWISE(name, T, As)                        \
  PKB_BITWISE(name, T, As, and, atomicAnd_system)           \
  PKB_BITWISE(name, T, As, or, atomicOr_system)             \
  PKB_BITWISE(name, T, As, xor, atomicXor_system)
PKB_ATOMICS(int, int, int)
PKB_ATOMICS(uint, unsigned int, unsigned int)
PKB_ATOMICS(long, long, unsigned long long)
PKB_ATOMICS(ulong, unsigned long, unsigned long long)
PKB_ATOMICS(longlong, long long, unsigned long long)
PKB_ATOMICS(ulonglong, unsigned long long, unsigned long long)
PKB_ATOMICS(int32, int32_t, int)
PKB_ATOMICS(int64, int64_t, unsigned long long)
PKB_ATOMICS(uint32, uint32_t, unsigned int)
PKB_ATOMICS(uint64, uint64_t, unsigned long long)
PKB_ATOMICS(size, size_t, unsigned long long)
PKB_ATOMICS(ptrdiff, ptrdiff_t, unsigned long long)
PKB_ALL_BITWISE(uint, unsigned int, unsigned int)
PKB_ALL_BITWISE(ulong, unsigned long, unsigned long long)
PKB_ALL_BITWISE(ulonglong, unsigned long long, unsigned long long)
PKB_ALL_BITWISE(int32, int32_t, int)
PKB_ALL_BITWISE(uint32, uint32_t, unsigned int)
PKB_ALL_BITWISE(uint64, uint64_t, unsigned long long)
#undef PKB_ATOMICS
#undef PKB_BITWISE
#undef PKB_ALL_BITWISE

// ---- launches ----
PKB_HOST int nvshmemx_collective_launch(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchCooperativeKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
PKB_HOST int nvshmemx_cumodule_init(void*) { return pkb_emu_refuse("nvshmemx_cumodule_init"), NVSHMEMX_ERROR_INTERNAL; }

// ---- teams: parts of a team of all PEs, split by all of them ----
typedef struct {
  int num_contexts;
} nvshmem_team_config_t;
PKB_HOST int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size, const nvshmem_team_config_t*, long, nvshmem_team_t* team) {
  using namespace pkb_nvshmem;
  *team = NVSHMEM_TEAM_INVALID;
  if (parent < 0 || parent >= kPredefinedTeams || host().teams == kMaxTeams) return pkb_emu_refuse("nvshmem_team_split_strided of a part of the PEs, or of many teams,"), NVSHMEMX_ERROR_INTERNAL;
  const int made = host().teams++, distance = host().state.pe - start;
  const bool is_member = stride ? distance % stride == 0 && distance / stride >= 0 && distance / stride < size : distance == 0;
  host().state.teams[made] = {start, stride, size, is_member ? (stride ? distance / stride : 0) : -1};
  fill_device_states();
  pkb_emu_exchange("nvshmem_team_split_strided", nullptr, nullptr, 0);
  if (is_member) *team = made;
  return 0;
}
PKB_HOST void nvshmem_team_destroy(nvshmem_team_t) {}

#include "nvshmem_collectives.h"

#undef PKB_BOTH
#undef PKB_DEVICE
#undef PKB_HOST
