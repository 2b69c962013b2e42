// Words of shared memory that nobody has written: threads may load them, and throw them away.
#include <mma.h>

#include "pairs.cuh"

// Neighbours beyond the ends are loaded, and not added.
// wrong: uninitialised_read: which nobody has written
PAIR_OF_ONE(neighbours_beyond_the_ends, 1, 64) {
  __shared__ unsigned cells[66];
  cells[threadIdx.x + 1] = threadIdx.x;
  __syncthreads();
  const unsigned left = cells[threadIdx.x], next = cells[threadIdx.x + 2];
  unsigned sum = cells[threadIdx.x + 1];
  if (right ? threadIdx.x > 0 : true) sum += left;
  if (threadIdx.x < 63) sum += next;
  r.out()[threadIdx.x] = sum;
}

// Two sorted halves are merged: the next key is loaded before it is known that there is one.
// wrong: uninitialised_read: which nobody has written
PAIR_OF_ONE(keys_beyond_the_end, 1, 32) {
  __shared__ unsigned keys[33];
  keys[threadIdx.x] = threadIdx.x % 16 * 2 + threadIdx.x / 16;
  __syncwarp();
  if (threadIdx.x % 8) return;
  int a = int(threadIdx.x) / 2, b = 16 + int(threadIdx.x) / 2;
  unsigned of_a = keys[a], of_b = keys[b];
  for (int i = 0; i < (right ? 8 : 9); ++i) {
    const bool takes_b = b < (right ? 32 : 33) && (a >= 16 || of_b < of_a);
    r.out()[2 * threadIdx.x + i] = takes_b ? of_b : of_a;
    if (takes_b) of_b = keys[++b];
    else of_a = keys[++a];
  }
}

// A product of 10 rows by a tile of 16: what comes of the others is not stored.
// wrong: uninitialised_read: which nobody has written
PAIR_OF_ONE(rows_beyond_the_end, 1, 32) {
  constexpr unsigned kRows = 10, kOnes = 0x3c003c00;
  __shared__ alignas(16) unsigned tile[16 * 4];
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < kRows * 4; i += 32) tile[i] = kOnes;
  __syncwarp();
  unsigned upper, lower;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(upper), "=r"(lower) : "r"(unsigned(__cvta_generic_to_shared(tile + lane % 16 * 4))) : "memory");
  float sum[4] = {};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(upper), "r"(lower), "r"(kOnes));
  r.out()[lane] = unsigned(sum[0] + sum[1]);
  if (!right || 8 + lane / 4 < kRows) r.out()[32 + lane] = unsigned(sum[2] + sum[3]);
  CHECK(sum[0] == 8);
}

// A sum goes through shared and local memory before it is stored.
// wrong: uninitialised_read: which nobody has written
PAIR_OF_ONE(halo_through_memory, 1, 32) {
  __shared__ unsigned cells[34], sums[32];
  cells[threadIdx.x + 1] = threadIdx.x;
  RIGHT(if (threadIdx.x < 2) cells[threadIdx.x * 33] = 0)
  __syncwarp();
  volatile unsigned own[2];
  own[threadIdx.x % 2] = cells[threadIdx.x] + cells[threadIdx.x + 2];
  sums[threadIdx.x] = own[threadIdx.x % 2];
  __syncwarp();
  r.out()[threadIdx.x] = sums[31 - threadIdx.x];
}

// A branch asks for a word that its last lane does not have.
// wrong: uninitialised_read: which nobody has written
PAIR_OF_ONE(branch_of_a_word, 1, 32) {
  __shared__ unsigned words[33];
  words[threadIdx.x] = threadIdx.x;
  RIGHT(if (threadIdx.x == 0) words[32] = 5)
  __syncwarp();
  if (words[threadIdx.x + 1] % 3 == 1) atomicAdd(r.out(), 1u);
}

// The same by fragments, whose rows go through shared memory.
// wrong: uninitialised_read: which nobody has written
PAIR_OF_ONE(rows_of_fragments_beyond_the_end, 1, 32) {
  using namespace nvcuda;
  constexpr int kRows = 10;
  __shared__ alignas(32) half left[16 * 16], weights[16 * 16];
  __shared__ alignas(32) float product[16 * 16];
  for (int i = threadIdx.x; i < kRows * 16; i += 32) left[i] = __int2half_rn(i / 16);
  for (int i = threadIdx.x; i < 256; i += 32) weights[i] = __int2half_rn(1);
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  wmma::load_matrix_sync(a, left, 16);
  wmma::load_matrix_sync(b, weights, 16);
  wmma::mma_sync(sum, a, b, sum);
  wmma::store_matrix_sync(product, sum, 16, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; i < (right ? kRows : 16) * 16; i += 32) r.out()[i] = unsigned(product[i]);
  CHECK(product[9 * 16 + threadIdx.x % 16] == 9 * 16);
}

// A product of 40 rows by a tile of 64, from shared memory: what comes of the others is not stored.
// wrong: uninitialised_read: by `wgmma`
PAIR_OF_ONE(rows_beyond_the_end_of_a_warpgroups_tile, 1, 128) {
  constexpr unsigned kRows = 40, kOnes = 0x3c003c00;
  __shared__ alignas(128) unsigned left[64 * 8], other[8 * 8];  // pieces of 8 rows of 16 bytes, two of them side by side
  const unsigned thread = threadIdx.x, lane = thread % 32;
  for (unsigned i = thread; i < kRows * 8; i += 128) left[i] = kOnes;
  if (thread < 64) other[thread] = kOnes;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const auto describe = [](const void* tile) {
    return uint64_t(__cvta_generic_to_shared(tile) >> 4) | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
  };
  float sum[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "l"(describe(left)), "l"(describe(other)) : "memory");
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (unsigned i = 0; i < 4; i += 2) {
    const unsigned row = thread / 32 * 16 + lane / 4 + i * 4;
    if (row < kRows) CHECK(sum[i] == 16 && sum[i + 1] == 16);
    if (!right || row < kRows) r.out()[row * 4 + lane % 4] = unsigned(sum[i] + sum[i + 1]);
  }
}
