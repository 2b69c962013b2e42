// Mistakes of host code that have shipped, each rebuilt from its description in a few lines. The wrong program is how it was,
// the right one how it was mended.
#include "pairs.cuh"

__global__ void fill(unsigned* to, unsigned value) { to[threadIdx.x] = value + threadIdx.x; }
__global__ void move(unsigned* to, const unsigned* from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void check(Rank r, const unsigned* at, unsigned value) { CHECK(*at == value); }

static cudaStream_t new_stream() {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}
static cudaEvent_t new_event() {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  return event;
}

// A plan is written into the pinned buffer from which the copy of the plan before is still under way.
// https://github.com/sgl-project/mini-sglang/pull/103
// wrong: value: line
PAIR_OF_HOST(pinned_buffer_of_two_plans) {
  unsigned* pinned;
  cudaMallocHost(&pinned, 4);
  for (unsigned plan = 1; plan <= 2; ++plan) {
    *pinned = plan;
    cudaMemcpyAsync(r.data(), pinned, 4, cudaMemcpyHostToDevice, stream);
    check<<<1, 1, 0, stream>>>(r, r.data(), plan);
    RIGHT(cudaStreamSynchronize(stream))
  }
}

// Memory of a gathered bucket goes back to its allocator while the stream of the computation still reads it.
// https://github.com/NVIDIA/Megatron-LM/issues/5788
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(bucket_freed_early) {
  cudaStream_t gather = new_stream();
  cudaEvent_t gathered = new_event(), used = new_event();
  unsigned* const bucket = r.data();
  fill<<<1, 32, 0, gather>>>(bucket, 1);
  cudaEventRecord(gathered, gather);
  cudaStreamWaitEvent(stream, gathered, 0);
  move<<<1, 32, 0, stream>>>(r.out(), bucket);
  cudaEventRecord(used, stream);
  RIGHT(cudaStreamWaitEvent(gather, used, 0))
  fill<<<1, 32, 0, gather>>>(bucket, 2);  // the next bucket has the memory
}

// One event is recorded on each of the streams to wait for: a wait is for the last record alone.
// https://github.com/torch/cutorch/pull/222
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(one_event_for_two_streams) {
  cudaStream_t streams[2] = {new_stream(), new_stream()};
  cudaEvent_t event = new_event();
  for (int i = 0; i < 2; ++i) {
    fill<<<1, 32, 0, streams[i]>>>(r.data() + 32 * i, i);
    cudaEventRecord(event, streams[i]);
    RIGHT(cudaStreamWaitEvent(stream, event, 0))
  }
  WRONG(cudaStreamWaitEvent(stream, event, 0))
  move<<<1, 64, 0, stream>>>(r.out(), r.data());
}

// A pool merges free blocks of one stream into those of another and does not record the event anew: who takes one of them
// waits for too little.
// https://github.com/rapidsai/rmm/issues/2489
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(event_of_a_merged_pool) {
  cudaStream_t donor = new_stream(), taker = new_stream();
  cudaEvent_t of_donor = new_event(), of_pool = new_event();
  cudaEventRecord(of_pool, stream);
  fill<<<1, 32, 0, donor>>>(r.data(), 1);
  cudaEventRecord(of_donor, donor);
  cudaStreamWaitEvent(stream, of_donor, 0);
  RIGHT(cudaEventRecord(of_pool, stream))
  cudaStreamWaitEvent(taker, of_pool, 0);
  fill<<<1, 32, 0, taker>>>(r.data(), 2);
}

template <bool right>
__global__ void merge(Rank r) {
  RIGHT(cudaGridDependencySynchronize())
  const unsigned begin = r.data()[0];
  WRONG(cudaGridDependencySynchronize())
  r.out()[0] = begin + r.data()[1];
}

// A merge that overlaps the kernel before it reads the partition of that before it waits for the grid.
// https://github.com/NVIDIA/cccl/pull/5456
// wrong: unsynchronised: call cudaGridDependencySynchronize()
PAIR_OF_HOST(partition_read_before_the_wait) {
  fill<<<1, 32, 0, stream>>>(r.data(), 1);
  cudaLaunchAttribute overlaps{};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = stream;
  config.attrs = &overlaps;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, merge<right>, r);
}
