// All-gather by copy engines: each rank copies the peers' inputs once a word of theirs says that they are there.
// check-ranks: --args "x:f32[256],out:f32[world_size,256],ready:u32[16]=0,taken:u32[16]=0" --reference {folder}/gather.py
// check-ranks: --call "all_gather(x_ranks, out, ready_ranks, taken_ranks, rank, world_size, call + 1, stream)"
// MISTAKE: the copies do not wait for the words of the peers.
#include <cuda.h>
#include <cuda_runtime.h>

template <class F>
static F driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<F>(found);
}

int all_gather(float* const* x, float* out, unsigned* const* ready, unsigned* const* taken, int rank, int ranks, unsigned epoch, cudaStream_t stream) {
  using Access = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  const auto write = driver_function<Access>("cuStreamWriteValue32"), wait = driver_function<Access>("cuStreamWaitValue32");
  const auto word = [](unsigned* base, int at) { return reinterpret_cast<CUdeviceptr>(base + at); };
  for (int peer = 0; peer < ranks; ++peer) write(stream, word(ready[peer], rank), epoch, CU_STREAM_WRITE_VALUE_DEFAULT);
  for (int peer = 0; peer < ranks; ++peer) {
#ifndef MISTAKE
    wait(stream, word(ready[rank], peer), epoch, CU_STREAM_WAIT_VALUE_GEQ);
#endif
    cudaMemcpyAsync(out + peer * 256, x[peer], 256 * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    write(stream, word(taken[peer], rank), epoch, CU_STREAM_WRITE_VALUE_DEFAULT);
  }
  for (int peer = 0; peer < ranks; ++peer) wait(stream, word(taken[rank], peer), epoch, CU_STREAM_WAIT_VALUE_GEQ);
  return cudaGetLastError();
}
