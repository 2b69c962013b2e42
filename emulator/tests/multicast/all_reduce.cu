// check-ranks: --args "x:f32[256],flags:u32[2]=0,out:f32[256]" --reference {folder}/sums.py
// check-ranks: --call "all_reduce(x_multicast, flags, flags_multicast, out_multicast, rank, world_size, call, stream)"
// One-shot all-reduce by NVLink multicast: each rank adds up its share on its way through the switch, and stores it to all.
#include <cuda_runtime.h>

__device__ void meet(unsigned* own, unsigned* of_all, unsigned arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("multimem.red.release.sys.global.add.u32 [%0], 1;" ::"l"(of_all) : "memory");
    unsigned seen;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");
    } while (seen < arrived);
  }
  __syncthreads();
}

__global__ void add_up(const float* x, unsigned* flags, unsigned* flags_of_all, float* out, int rank, int ranks, int call) {
  const unsigned arrived = ranks * (call + 1);
#ifndef MISTAKE
  meet(flags, flags_of_all, arrived);
#endif
  const int share = 256 / 4 / ranks;
  for (int i = rank * share + threadIdx.x; i < (rank + 1) * share; i += blockDim.x) {
    float4 sum;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sum.x), "=f"(sum.y), "=f"(sum.z), "=f"(sum.w) : "l"(x + 4 * i) : "memory");
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(out + 4 * i), "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w) : "memory");
  }
  meet(flags + 1, flags_of_all + 1, arrived);
}

void all_reduce(const float* x, unsigned* flags, unsigned* flags_of_all, float* out, int rank, int ranks, int call, cudaStream_t stream) {
  add_up<<<1, 32, 0, stream>>>(x, flags, flags_of_all, out, rank, ranks, call);
}
