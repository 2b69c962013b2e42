// Memory that is allocated on streams and mapped anew, kernels that overlap the ones before them, and words that streams write,
// and a mistake of each.
#include <cuda.h>

#include "pairs.cuh"

__global__ void fill(unsigned* to, unsigned value) { to[threadIdx.x] = value + threadIdx.x; }
__global__ void move(unsigned* to, const unsigned* from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void take(Rank r, const unsigned* flag, const unsigned* from) {
  wait(flag, 1);
  r.out()[threadIdx.x] = from[threadIdx.x];
}

static cudaStream_t new_stream() {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}
static void order(cudaStream_t to, cudaStream_t from) {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, from);
  cudaStreamWaitEvent(to, event, 0);
}

// ---- memory of streams ----

// Memory of one stream is used on another behind the allocation.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(allocation_of_another_stream) {
  const cudaStream_t side = new_stream();
  unsigned* memory;
  cudaMallocAsync(reinterpret_cast<void**>(&memory), 128, stream);
  fill<<<1, 32, 0, stream>>>(memory, 1);
  RIGHT(order(side, stream))
  move<<<1, 32, 0, side>>>(r.out(), memory);
  cudaStreamSynchronize(side);
  cudaStreamSynchronize(stream);
}

// It is freed when the other stream has used it.
// wrong: illegal_address: that has been freed or unmapped
PAIR_OF_HOST(freed_behind_its_last_use) {
  const cudaStream_t side = new_stream();
  unsigned* memory;
  cudaMallocAsync(reinterpret_cast<void**>(&memory), 128, stream);
  fill<<<1, 32, 0, stream>>>(memory, 1);
  order(side, stream);
  move<<<1, 32, 0, side>>>(r.out(), memory);
  RIGHT(order(stream, side))
  cudaFreeAsync(memory, stream);
}

// ---- virtual memory ----

struct Mapped {
  explicit Mapped(int rank) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    wanted.location.id = 0;
    (void)rank;
    cuMemGetAllocationGranularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    cuMemCreate(&memory, bytes, &wanted, 0);
    access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }
  unsigned* map() const {
    CUdeviceptr at;
    cuMemAddressReserve(&at, bytes, 0, 0, 0);
    cuMemMap(at, bytes, 0, memory, 0);
    cuMemSetAccess(at, bytes, &access, 1);
    return reinterpret_cast<unsigned*>(at);
  }
  void unmap(unsigned* at) const { cuMemUnmap(reinterpret_cast<CUdeviceptr>(at), bytes); }
  size_t bytes = 0;
  CUmemGenericAllocationHandle memory{};
  CUmemAccessDesc access{};
};

// One memory at two addresses: streams that use it by each of them need an order.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(memory_of_two_addresses) {
  const cudaStream_t side = new_stream();
  const Mapped mapped(r.rank);
  unsigned *const first = mapped.map(), *const second = mapped.map();
  fill<<<1, 32, 0, stream>>>(first, 3);
  RIGHT(order(side, stream))
  move<<<1, 32, 0, side>>>(r.out(), second);
}

// Memory is unmapped when the kernel that reads it has ended.
// wrong: illegal_address: that has been freed or unmapped
PAIR_OF_HOST(unmapped_behind_its_last_use) {
  const Mapped mapped(r.rank);
  unsigned* const memory = mapped.map();
  fill<<<1, 32, 0, stream>>>(memory, 3);
  move<<<1, 32, 0, stream>>>(r.out(), memory);
  RIGHT(cudaStreamSynchronize(stream))
  mapped.unmap(memory);
}

// ---- kernels that overlap the ones before them ----

template <class... Parameters, class... Arguments>
static void overlap(cudaStream_t stream, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = 1;
  launch.blockDim = 32;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  cudaLaunchKernelEx(&launch, kernel, Parameters(arguments)...);
}
__device__ inline void trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_the_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__global__ void reads_and_triggers(unsigned* to, const unsigned* from) {
  trigger();
  to[threadIdx.x] = from[threadIdx.x];
}
__global__ void overwrites(unsigned* to, bool waits) {
  if (waits) wait_for_the_grid();
  to[threadIdx.x] = 9;
}
// What the kernel before still reads is overwritten behind the wait for its grid.
// wrong: unsynchronised: lets it overlap the kernels before it
PAIR_OF_HOST(overwritten_behind_the_wait) {
  reads_and_triggers<<<1, 32, 0, stream>>>(r.out(), r.data());
  overlap(stream, overwrites, r.data(), right);
}

__global__ void writes_late(unsigned* to) {
  trigger();
  to[threadIdx.x] = 5;
}
__global__ void passes_on(bool waits) {
  if (waits) wait_for_the_grid();
  trigger();
}
__global__ void reads_the_first(unsigned* to, const unsigned* from) {
  wait_for_the_grid();
  to[threadIdx.x] = from[threadIdx.x];
}
// Of three kernels each waits for the one before it: one that does not hands nothing on of the first.
// wrong: unsynchronised: lets it overlap the kernels before it
PAIR_OF_HOST(chain_of_three_kernels) {
  writes_late<<<1, 32, 0, stream>>>(r.data());
  overlap(stream, passes_on, right);
  overlap(stream, reads_the_first, r.out(), r.data());
}

// ---- words that streams write ----

// A word that a stream writes behind a copy is a release, unless the program has asked for none.
// wrong: weak_order: is stored without release order
PAIR_OF_HOST(stream_writes_a_flag) {
  const auto flag = reinterpret_cast<CUdeviceptr>(r.flag(1 - r.rank));
  fill<<<1, 32, 0, stream>>>(r.out() + 64, 100);
  cudaMemcpyAsync(r.data(1 - r.rank), r.out() + 64, 128, cudaMemcpyDeviceToDevice, stream);
  cuStreamWriteValue32(stream, flag, 1, right ? CU_STREAM_WRITE_VALUE_DEFAULT : CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
  take<<<1, 32, 0, stream>>>(r, r.flag(), r.data());
}

// A stream waits for a word behind which another has copied; a wait for less is none for this round.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(stream_waits_for_a_round) {
  const cudaStream_t side = new_stream();
  const auto own = reinterpret_cast<CUdeviceptr>(r.flag()), other = reinterpret_cast<CUdeviceptr>(r.flag(1 - r.rank));
  for (unsigned round = 1; round <= 4; ++round) {
    cudaMemcpyAsync(r.data(1 - r.rank) + 32 * round, r.out() + 64, 128, cudaMemcpyDeviceToDevice, side);
    cuStreamWriteValue32(side, other, round, CU_STREAM_WRITE_VALUE_DEFAULT);
    cuStreamWaitValue32(stream, own, right ? round : 1, CU_STREAM_WAIT_VALUE_GEQ);
    move<<<1, 32, 0, stream>>>(r.out(), r.data() + 32 * round);
  }
}
