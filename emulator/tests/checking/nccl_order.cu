// Pairs of programs of two ranks with NCCL's device API: the second of each, by the argument "wrong", lacks an order of a barrier.
//
// Above each stand the class of the finding and words of its message.
#include <nccl.h>
#include <nccl_device.h>

#include <cstdlib>
#include <cstring>

constexpr int kCount = 64;

struct Memory {
  ncclDevComm comm;
  ncclWindow_t window;
  int* result;
  __device__ int* of(int rank) const { return static_cast<int*>(ncclGetLsaPointer(window, 0, rank)); }
  __device__ int* mine() const { return of(comm.lsaRank); }
  __device__ int* peers() const { return of(1 - comm.lsaRank); }
};

#define CASE(name) \
  template <bool right> __global__ void name(Memory m)
#define BARRIER ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), m.comm, ncclTeamTagLsa(), 0)
#define SYNC(order) barrier.sync(ncclCoopCta(), cuda::memory_order_##order)
#define SYNC_RIGHT(order, other) barrier.sync(ncclCoopCta(), right ? cuda::memory_order_##order : cuda::memory_order_##other)

// Data of this kernel need a barrier that releases and acquires.
// wrong: weak_order: is stored without release order
CASE(barrier_of_both) {
  BARRIER;
  m.mine()[threadIdx.x] = int(threadIdx.x);
  SYNC_RIGHT(acq_rel, acquire);
  m.result[threadIdx.x] = m.peers()[threadIdx.x];
  SYNC(acq_rel);
}

// wrong: weak_order: is loaded without acquire order
CASE(barrier_acquires) {
  BARRIER;
  SYNC(relaxed);
  m.peers()[threadIdx.x] = int(threadIdx.x);
  SYNC_RIGHT(acq_rel, release);
  m.result[threadIdx.x] = m.mine()[threadIdx.x];
}

// Arrival and wait apart.
// wrong: weak_order: is loaded without acquire order
CASE(wait_acquires) {
  BARRIER;
  SYNC(relaxed);
  m.peers()[threadIdx.x] = int(threadIdx.x);
  barrier.arrive(ncclCoopCta(), cuda::memory_order_release);
  barrier.wait(ncclCoopCta(), right ? cuda::memory_order_acquire : cuda::memory_order_relaxed);
  m.result[threadIdx.x] = m.mine()[threadIdx.x];
}

// wrong: unsynchronised: no flag or barrier leads from
CASE(read_behind_the_wait) {
  BARRIER;
  SYNC(relaxed);
  m.peers()[threadIdx.x] = int(threadIdx.x);
  barrier.arrive(ncclCoopCta(), cuda::memory_order_release);
  if (!right) m.result[threadIdx.x] = m.mine()[threadIdx.x];
  barrier.wait(ncclCoopCta(), cuda::memory_order_acquire);
  m.result[threadIdx.x] = m.mine()[threadIdx.x];
}

// A relaxed barrier at the begin gives what earlier kernels have written.
// wrong: unsynchronised: no flag or barrier leads from
CASE(begin_of_a_kernel) {
  BARRIER;
  if (right) SYNC(relaxed);
  m.result[threadIdx.x] = m.peers()[threadIdx.x];
  SYNC(release);
}

// It gives nothing of the kernel itself.
// wrong: weak_order: is stored without release order
CASE(relaxed_in_a_kernel) {
  BARRIER;
  if (!right) m.mine()[threadIdx.x] = 1;
  SYNC(relaxed);
  m.result[threadIdx.x] = m.peers()[threadIdx.x];
  SYNC(release);
}

// What has been read may be written behind a barrier whose arrivals release.
// wrong: weak_order: is stored without release order
CASE(write_after_read) {
  BARRIER;
  SYNC(relaxed);
  m.result[threadIdx.x] = m.peers()[threadIdx.x];
  SYNC_RIGHT(acq_rel, acquire);
  m.mine()[threadIdx.x] = 1;
}

// ---- of hosts ----

template <bool right>
__global__ void store_and_release(Memory m) {
  BARRIER;
  SYNC(relaxed);
  m.peers()[threadIdx.x] = int(threadIdx.x);
  SYNC_RIGHT(release, relaxed);
}
static __global__ void read_mine(Memory m) { m.result[threadIdx.x] = m.mine()[threadIdx.x]; }

// A barrier that releases, at the end of a kernel, and the next one of the stream.
// wrong: weak_order: is stored without release order
template <bool right>
void end_of_a_kernel(Memory m, cudaStream_t stream) {
  store_and_release<right><<<1, kCount, 0, stream>>>(m);
  read_mine<<<1, kCount, 0, stream>>>(m);
}

static __global__ void fill(int* source) { source[threadIdx.x] = int(threadIdx.x); }

int main(int argc, char** argv) {
  const bool is_right = !strcmp(argv[2], "right");
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  ncclGetUniqueId(&id);
  if (ncclCommInitRank(&comm, atoi(getenv("WORLD_SIZE")), id, atoi(getenv("RANK")))) return 1;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  Memory m;
  int* values;
  ncclMemAlloc(reinterpret_cast<void**>(&values), kCount * sizeof(int));
  cudaMalloc(&m.result, kCount * sizeof(int));
  if (ncclCommWindowRegister(comm, values, kCount * sizeof(int), &m.window, NCCL_WIN_COLL_SYMMETRIC)) return 1;
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  wanted.lsaBarrierCount = 1;
  if (ncclDevCommCreate(comm, &wanted, &m.comm)) return 1;
  fill<<<1, kCount, 0, stream>>>(values);
#define KERNEL(name) \
  if (!strcmp(argv[1], #name)) is_right ? name<true><<<1, kCount, 0, stream>>>(m) : name<false><<<1, kCount, 0, stream>>>(m)
#define HOST(name) \
  if (!strcmp(argv[1], #name)) is_right ? name<true>(m, stream) : name<false>(m, stream)
  KERNEL(barrier_of_both);
  KERNEL(barrier_acquires);
  KERNEL(wait_acquires);
  KERNEL(read_behind_the_wait);
  KERNEL(begin_of_a_kernel);
  KERNEL(relaxed_in_a_kernel);
  KERNEL(write_after_read);
  HOST(end_of_a_kernel);
  return cudaStreamSynchronize(stream);
}
