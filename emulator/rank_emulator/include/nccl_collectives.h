// A part of nccl.h: collectives and messages of hosts, each a kernel of one block for a collective, and of one for a message.
//
// A collective begins once all ranks have posted their buffers, and ends on a rank when all have ended it. A message goes
// from a sender's buffer into that of its receiver, once that has posted it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace pkb_nccl {

enum class Kind { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll };

struct Call {
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t operation;
  int root;
};
constexpr int kMaxMessages = 64;
struct Message {
  bool is_sent;
  int peer;
  void* buffer;
  size_t bytes;
  unsigned long long number;  // of its sender and receiver
};
struct Messages {
  int count = 0;
  Message each[kMaxMessages];
};

__host__ __device__ inline size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    default: return 8;
  }
}

#ifdef __CUDACC__
__device__ inline void store_release(unsigned long long* to, unsigned long long value) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory"); }
__device__ inline void wait_for(const unsigned long long* flag, unsigned long long least) {
  unsigned long long found;
  do {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(found) : "l"(flag) : "memory");
  } while (found < least);
}

template <class T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<__half> {
  using Type = float;
};
template <>
struct Wide<__nv_bfloat16> {
  using Type = float;
};
template <class T>
__device__ inline T combined(T a, T b, ncclRedOp_t operation) {
  switch (operation) {
    case ncclProd: return T(a * b);
    case ncclMax: return a < b ? b : a;
    case ncclMin: return b < a ? b : a;
    default: return T(a + b);
  }
}
// Element i of all ranks' buffers.
template <class T>
__device__ inline T reduced(const Box& box, int ranks, size_t i, ncclRedOp_t operation) {
  using Sum = typename Wide<T>::Type;
  Sum sum = Sum(static_cast<const T*>(box.posts[0].from)[i]);
#pragma unroll 1  // here and below: programs wait longer for compilers than for emulated loops
  for (int rank = 1; rank < ranks; ++rank) sum = combined<Sum>(sum, Sum(static_cast<const T*>(box.posts[rank].from)[i]), operation);
  return T(operation == ncclAvg ? Sum(sum / Sum(ranks)) : sum);
}

// What reduces: each rank its elements, for itself or for all.
template <class T>
__device__ void reduce(const Peers& peers, const Call& call) {
  const Box& box = *peers.of[peers.rank];
  const int ranks = peers.ranks, rank = peers.rank;
  const bool is_for_all = call.kind == Kind::kAllReduce;
  const size_t count = call.count, part = (count + size_t(ranks) - 1) / size_t(ranks);
  const size_t first = is_for_all ? size_t(rank) * part : 0;
  const size_t end = call.kind == Kind::kReduce && rank != call.root ? 0 : is_for_all && first + part < count ? first + part : count;
  const size_t skipped = call.kind == Kind::kReduceScatter ? size_t(rank) * count : 0;
#pragma unroll 1
  for (size_t i = first + threadIdx.x; i < end; i += blockDim.x) {
    const T sum = reduced<T>(box, ranks, skipped + i, call.operation);
#pragma unroll 1
    for (int peer = is_for_all ? 0 : rank; peer < (is_for_all ? ranks : rank + 1); ++peer) static_cast<T*>(box.posts[peer].to)[i] = sum;
  }
}

// What copies elements of this width to all ranks.
template <class T>
__device__ void copy(const Peers& peers, const Call& call) {
  const Box& box = *peers.of[peers.rank];
  const size_t rank = size_t(peers.rank), count = call.kind == Kind::kBroadcast && peers.rank != call.root ? 0 : call.count;
  const size_t behind = call.kind == Kind::kBroadcast ? 0 : rank * count, part = call.kind == Kind::kAllToAll ? count : 0;
#pragma unroll 1
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
#pragma unroll 1
    for (int peer = 0; peer < peers.ranks; ++peer) static_cast<T*>(box.posts[peer].to)[behind + i] = static_cast<const T*>(call.from)[size_t(peer) * part + i];
  }
}

static __global__ void nccl_collective(Peers peers, Call call) {
  Box& mine = *peers.of[peers.rank];
  __shared__ unsigned long long epoch;
  if (threadIdx.x == 0) epoch = ++mine.epoch;
  __syncthreads();
  if (threadIdx.x < peers.ranks) {
    Post& post = peers.of[threadIdx.x]->posts[peers.rank];
    post.from = call.from;
    post.to = call.to;
    store_release(&post.epoch, epoch);
    wait_for(&mine.posts[threadIdx.x].epoch, epoch);
  }
  __syncthreads();
  if (call.kind > Kind::kReduceScatter) {
    switch (bytes_of(call.type)) {
      case 1: copy<unsigned char>(peers, call); break;
      case 2: copy<unsigned short>(peers, call); break;
      case 4: copy<unsigned>(peers, call); break;
      default: copy<unsigned long long>(peers, call);
    }
  } else {
    switch (call.type) {
      case ncclInt8: reduce<signed char>(peers, call); break;
      case ncclUint8: reduce<unsigned char>(peers, call); break;
      case ncclInt32: reduce<int>(peers, call); break;
      case ncclUint32: reduce<unsigned>(peers, call); break;
      case ncclInt64: reduce<long long>(peers, call); break;
      case ncclUint64: reduce<unsigned long long>(peers, call); break;
      case ncclFloat16: reduce<__half>(peers, call); break;
      case ncclBfloat16: reduce<__nv_bfloat16>(peers, call); break;
      case ncclFloat32: reduce<float>(peers, call); break;
      default: reduce<double>(peers, call);
    }
  }
  __syncthreads();
  if (threadIdx.x < peers.ranks) {
    store_release(&peers.of[threadIdx.x]->ended[peers.rank], epoch);
    wait_for(&mine.ended[threadIdx.x], epoch);
  }
}

static __global__ void nccl_messages(Peers peers, Messages messages) {
  const Message& message = messages.each[blockIdx.x];
  Box &mine = *peers.of[peers.rank], &other = *peers.of[message.peer];
  if (!message.is_sent) {
    if (threadIdx.x != 0) return;
    wait_for(&mine.sent[message.peer], message.number - 1);
    Post& post = other.wanted[peers.rank];
    post.to = message.buffer;
    store_release(&post.epoch, message.number);
    wait_for(&mine.sent[message.peer], message.number);
    return;
  }
  if (threadIdx.x == 0) wait_for(&mine.wanted[message.peer].epoch, message.number);
  __syncthreads();
  auto* const to = static_cast<unsigned char*>(mine.wanted[message.peer].to);
  for (size_t i = threadIdx.x; i < message.bytes; i += blockDim.x) to[i] = static_cast<const unsigned char*>(message.buffer)[i];
  __syncthreads();
  if (threadIdx.x == 0) store_release(&other.sent[peers.rank], message.number);
}

struct Group {
  std::vector<std::function<void()>> calls;
  std::map<std::pair<ncclComm_t, cudaStream_t>, Messages> messages;
};
inline Group& group() {
  static thread_local Group it;
  return it;
}
inline ncclResult_t end_group() {
  Group& all = group();
  if (inits().depth > 0) return ncclSuccess;
  for (const auto& call : std::exchange(all.calls, {})) call();
  for (const auto& [of, messages] : std::exchange(all.messages, {})) {
    const OnDevice on(of.first->device);
    nccl_messages<<<unsigned(messages.count), 64, 0, of.second>>>(of.first->peers, messages);
  }
  return cudaPeekAtLastError() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
inline ncclResult_t enqueue(const Call& call, ncclComm_t comm, cudaStream_t stream) {
  if (!comm) return ncclInvalidArgument;
  group().calls.push_back([=] {
    const OnDevice on(comm->device);
    nccl_collective<<<1, 256, 0, stream>>>(comm->peers, call);
  });
  const ncclResult_t result = end_group();
  // "Group Calls": without a group, a call may wait for those of the other GPUs.
  if (result != ncclSuccess || inits().depth > 0 || !is_one_process() || comm->ranks == 1) return result;
  return result_of(pkb_emu_await(comm->group, comm->ranks, "all ranks of a communicator, in a collective outside of a group") == 0);
}
inline ncclResult_t enqueue(bool is_sent, void* buffer, size_t bytes, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (!comm || peer < 0 || peer >= comm->ranks) return ncclInvalidArgument;
  Messages& messages = group().messages[{comm, stream}];
  if (messages.count == kMaxMessages) return refuse("a group of more than 64 messages");
  messages.each[messages.count++] = {is_sent, peer, buffer, bytes, ++(is_sent ? comm->sent : comm->received)[peer]};
  return end_group();
}
#else
inline ncclResult_t enqueue(const Call&, ncclComm_t, cudaStream_t) { return refuse("a collective of NCCL in a source that is no .cu"); }
inline ncclResult_t enqueue(bool, void*, size_t, int, ncclComm_t, cudaStream_t) { return refuse("a message of NCCL in a source that is no .cu"); }
#endif

}  // namespace pkb_nccl

static inline ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue({pkb_nccl::Kind::kAllReduce, from, to, count, type, operation, 0}, comm, stream);
}
static inline ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue({pkb_nccl::Kind::kReduce, from, to, count, type, operation, root}, comm, stream);
}
static inline ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue({pkb_nccl::Kind::kReduceScatter, from, to, count, type, operation, 0}, comm, stream);
}
static inline ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue({pkb_nccl::Kind::kAllGather, from, to, count, type, ncclSum, 0}, comm, stream);
}
static inline ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue({pkb_nccl::Kind::kBroadcast, from, to, count, type, ncclSum, root}, comm, stream);
}
static inline ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) { return ncclBroadcast(buffer, buffer, count, type, root, comm, stream); }
static inline ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue({pkb_nccl::Kind::kAllToAll, from, to, count, type, ncclSum, 0}, comm, stream);
}
static inline ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue(true, const_cast<void*>(from), count * pkb_nccl::bytes_of(type), peer, comm, stream);
}
static inline ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return pkb_nccl::enqueue(false, to, count * pkb_nccl::bytes_of(type), peer, comm, stream);
}
static inline ncclResult_t ncclGroupStart() { return ++pkb_nccl::inits().depth, ncclSuccess; }
static inline ncclResult_t ncclGroupEnd() {
  --pkb_nccl::inits().depth;
  const ncclResult_t result = pkb_nccl::end_inits();
#ifdef __CUDACC__
  if (result == ncclSuccess) return pkb_nccl::end_group();
#endif
  return result;
}
