// A part of nvshmem.h: collectives that move data, of a thread, a warp and a block of each member, of hosts, and on streams.
#pragma once

namespace pkb_nvshmem {

// Each collective: run<Group>(), by all threads of the group of each member. Sources are complete behind the first barrier, and
// may be overwritten behind the last.
template <class T>
struct Broadcast {
  nvshmem_team_t team;
  T* to;
  const T* from;
  size_t count;
  int root;
  template <class Group>
  __device__ void run() const {
    sync<Group>(team);
    const T* const there = on(from, team_of(team).pe(root));
    if (to != there) move<Group>(to, there, count * sizeof(T));
    sync<Group>(team);
  }
};
template <class T>
struct Gather {
  nvshmem_team_t team;
  T* to;
  const T* from;
  size_t count;
  template <class Group>
  __device__ void run() const {
    sync<Group>(team);
    for (int member = 0; member < team_of(team).size; ++member) {
      T* const part = to + size_t(member) * count;
      const T* const there = on(from, team_of(team).pe(member));
      if (part != there) move<Group>(part, there, count * sizeof(T));
    }
    sync<Group>(team);
  }
};
template <class T>
struct AllToAll {
  nvshmem_team_t team;
  T* to;
  const T* from;
  size_t count;
  template <class Group>
  __device__ void run() const {
    sync<Group>(team);
    for (int member = 0; member < team_of(team).size; ++member) {
      move<Group>(to + size_t(member) * count, on(from, team_of(team).pe(member)) + size_t(team_of(team).mine) * count, count * sizeof(T));
    }
    sync<Group>(team);
  }
};
// Of the parts of all members from `first` on; `is_scattered`: each member has a part of its own.
template <class T, class Operation, bool is_scattered>
struct Reduce {
  nvshmem_team_t team;
  T* to;
  const T* from;
  size_t count;
  template <class Group>
  __device__ void run() const {
    const Team& of = team_of(team);
    const T* const part = from + (is_scattered ? size_t(of.mine) * count : 0);
    const bool is_in_place = to == from;  // then nobody stores before all have loaded
    sync<Group>(team);
    for (size_t begin = 0; begin < count; begin += Group::count()) {
      const size_t i = begin + Group::index();
      T result{};
      if (i < count) {
        result = on(part, of.pe(0))[i];
        for (int member = 1; member < of.size; ++member) result = Operation::of(result, on(part, of.pe(member))[i]);
      }
      if (is_in_place) sync<Group>(team);
      if (i < count) to[i] = result;
    }
    sync<Group>(team);
  }
};

struct Sum {
  template <class T>
  __device__ static T of(T a, T b) { return a + b; }
};
struct Product {
  template <class T>
  __device__ static T of(T a, T b) { return a * b; }
};
struct Least {
  template <class T>
  __device__ static T of(T a, T b) { return b < a ? b : a; }
};
struct Most {
  template <class T>
  __device__ static T of(T a, T b) { return a < b ? b : a; }
};
struct And {
  template <class T>
  __device__ static T of(T a, T b) { return a & b; }
};
struct Or {
  template <class T>
  __device__ static T of(T a, T b) { return a | b; }
};
struct Xor {
  template <class T>
  __device__ static T of(T a, T b) { return a ^ b; }
};

template <class Collective>
__global__ void nvshmemx_collective_on_stream_kernel(Collective collective) { collective.template run<Block>(); }

template <class Collective>
inline int enqueue(const Collective& collective, cudaStream_t stream) {
  nvshmemx_collective_on_stream_kernel<<<1, 256, 0, stream>>>(collective);
  return cudaGetLastError();
}
template <class Collective>
__host__ __device__ inline int run_alone(const Collective& collective) {
#ifdef __CUDA_ARCH__
  (void)&nvshmemx_collective_on_stream_kernel<Collective>;  // compiled where it is named, and not for hosts alone
  return collective.template run<Thread>(), 0;
#else
  const int error = enqueue(collective, nullptr);
  return error ? error : cudaStreamSynchronize(nullptr);
#endif
}

}  // namespace pkb_nvshmem

// Templates, so that only what a program calls is compiled.
#define PKB_COLLECTIVES(name, Collective, T, ...)                                                                                                        \
  template <int = 0>                                                                                                                                     \
  PKB_BOTH int nvshmem_##name(nvshmem_team_t team, T* to, const T* from, size_t count __VA_OPT__(, int root)) {                                          \
    return pkb_nvshmem::run_alone(Collective{team, to, from, count __VA_OPT__(, root)});                                                                 \
  }                                                                                                                                                      \
  template <int = 0>                                                                                                                                     \
  PKB_DEVICE int nvshmemx_##name##_warp(nvshmem_team_t team, T* to, const T* from, size_t count __VA_OPT__(, int root)) {                                \
    return Collective{team, to, from, count __VA_OPT__(, root)}.template run<pkb_nvshmem::Warp>(), 0;                                                    \
  }                                                                                                                                                      \
  template <int = 0>                                                                                                                                     \
  PKB_DEVICE int nvshmemx_##name##_block(nvshmem_team_t team, T* to, const T* from, size_t count __VA_OPT__(, int root)) {                               \
    return Collective{team, to, from, count __VA_OPT__(, root)}.template run<pkb_nvshmem::Block>(), 0;                                                   \
  }                                                                                                                                                      \
  template <int = 0>                                                                                                                                     \
  PKB_HOST int nvshmemx_##name##_on_stream(nvshmem_team_t team, T* to, const T* from, size_t count __VA_OPT__(, int root), cudaStream_t stream) {        \
    return pkb_nvshmem::enqueue(Collective{team, to, from, count __VA_OPT__(, root)}, stream);                                                           \
  }
#define PKB_REDUCTIONS(name, T, operation, Operation)                                                          \
  namespace pkb_nvshmem {                                                                                      \
  using name##_##operation##_reduction = Reduce<T, Operation, false>;                                          \
  using name##_##operation##_scatter = Reduce<T, Operation, true>;                                             \
  }                                                                                                            \
  PKB_COLLECTIVES(name##_##operation##_reduce, pkb_nvshmem::name##_##operation##_reduction, T)                 \
  PKB_COLLECTIVES(name##_##operation##_reducescatter, pkb_nvshmem::name##_##operation##_scatter, T)
#define PKB_MOVED(name, T)                                                         \
  PKB_COLLECTIVES(name##_broadcast, pkb_nvshmem::Broadcast<T>, T, root)            \
  PKB_COLLECTIVES(name##_fcollect, pkb_nvshmem::Gather<T>, T)                      \
  PKB_COLLECTIVES(name##_alltoall, pkb_nvshmem::AllToAll<T>, T)
#define PKB_REDUCED(name, T)                  \
  PKB_MOVED(name, T)                          \
  PKB_REDUCTIONS(name, T, sum, Sum)           \
  PKB_REDUCTIONS(name, T, prod, Product)      \
  PKB_REDUCTIONS(name, T, min, Least)         \
  PKB_REDUCTIONS(name, T, max, Most)
#define PKB_REDUCED_BITWISE(name, T)          \
  PKB_REDUCED(name, T)                        \
  PKB_REDUCTIONS(name, T, and, And)           \
  PKB_REDUCTIONS(name, T, or, Or)             \
  PKB_REDUCTIONS(name, T, xor, Xor)
PKB_REDUCED(float, float)
PKB_REDUCED(double, double)
PKB_REDUCED(half, __half)
PKB_REDUCED(bfloat16, __nv_bfloat16)
PKB_MOVED(char, char)
PKB_REDUCED_BITWISE(schar, signed char)
PKB_REDUCED_BITWISE(uchar, unsigned char)
PKB_REDUCED_BITWISE(short, short)
PKB_REDUCED_BITWISE(ushort, unsigned short)
PKB_REDUCED_BITWISE(int, int)
PKB_REDUCED_BITWISE(uint, unsigned int)
PKB_REDUCED_BITWISE(long, long)
PKB_REDUCED_BITWISE(ulong, unsigned long)
PKB_REDUCED_BITWISE(longlong, long long)
PKB_REDUCED_BITWISE(ulonglong, unsigned long long)
PKB_REDUCED_BITWISE(int8, int8_t)
PKB_REDUCED_BITWISE(int16, int16_t)
PKB_REDUCED_BITWISE(int32, int32_t)
PKB_REDUCED_BITWISE(int64, int64_t)
PKB_REDUCED_BITWISE(uint8, uint8_t)
PKB_REDUCED_BITWISE(uint16, uint16_t)
PKB_REDUCED_BITWISE(uint32, uint32_t)
PKB_REDUCED_BITWISE(uint64, uint64_t)
PKB_REDUCED_BITWISE(size, size_t)
PKB_REDUCED_BITWISE(ptrdiff, ptrdiff_t)
#undef PKB_REDUCED_BITWISE
#undef PKB_REDUCED
#undef PKB_MOVED
#undef PKB_REDUCTIONS
#undef PKB_COLLECTIVES

#define PKB_OF_BYTES(name, ...)                                                                                                   \
  PKB_BOTH int nvshmem_##name##mem(nvshmem_team_t team, void* to, const void* from, size_t bytes __VA_OPT__(, int root)) {                    \
    return nvshmem_uint8_##name(team, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes __VA_OPT__(, root));                \
  }                                                                                                                                           \
  PKB_DEVICE int nvshmemx_##name##mem_warp(nvshmem_team_t team, void* to, const void* from, size_t bytes __VA_OPT__(, int root)) {            \
    return nvshmemx_uint8_##name##_warp(team, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes __VA_OPT__(, root));        \
  }                                                                                                                                           \
  PKB_DEVICE int nvshmemx_##name##mem_block(nvshmem_team_t team, void* to, const void* from, size_t bytes __VA_OPT__(, int root)) {           \
    return nvshmemx_uint8_##name##_block(team, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes __VA_OPT__(, root));       \
  }                                                                                                                                           \
  PKB_HOST int nvshmemx_##name##mem_on_stream(nvshmem_team_t team, void* to, const void* from, size_t bytes __VA_OPT__(, int root), cudaStream_t stream) { \
    return nvshmemx_uint8_##name##_on_stream(team, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes __VA_OPT__(, root), stream); \
  }
PKB_OF_BYTES(broadcast, root)
PKB_OF_BYTES(fcollect)
PKB_OF_BYTES(alltoall)
#undef PKB_OF_BYTES
