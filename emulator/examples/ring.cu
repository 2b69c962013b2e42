// All-gather around a ring: each rank passes the parts on by a buffer of two slots at its neighbour, which returns credits.
// check-ranks: --args "x:f32[64],out:f32[world_size,64],slots:f32[128]=0,flags:u32[2]=0" --reference {folder}/gather.py
// check-ranks: --call "all_gather<world_size>(x, out, slots_ranks, flags_ranks, rank, call, stream)"
// MISTAKE: nobody waits for credits, and a slot is overwritten while the neighbour still reads it.
#include "signals.cuh"

template <int N>
__global__ void ring(const float* x, float* out, Peers<float, N> slots, Peers<unsigned, N> flags, int rank, unsigned call) {
  const int next = (rank + 1) % N, previous = (rank + N - 1) % N, i = threadIdx.x;
  float value = x[i];
  out[rank * 64 + i] = value;
  for (int step = 0; step < N - 1; ++step) {
    const unsigned number = call * (N - 1) + step + 1;  // of this transfer, since the beginning
    const int slot = number % 2 * 64;
#ifndef MISTAKE
    if (i == 0 && number > 2) wait(flags[rank] + 1, number - 2);  // the neighbour has emptied the slot
#endif
    __syncthreads();
    slots[next][slot + i] = value;
    __syncthreads();
    if (i == 0) {
      store_release(flags[next], number);
      wait(flags[rank], number);
    }
    __syncthreads();
    value = slots[rank][slot + i];
    out[(rank + N - 1 - step) % N * 64 + i] = value;
    __syncthreads();
    if (i == 0) store_release(flags[previous] + 1, number);
  }
}

template <int N>
void all_gather(const float* x, float* out, float* const* slots, unsigned* const* flags, int rank, unsigned call, cudaStream_t stream) {
  ring<N><<<1, 64, 0, stream>>>(x, out, peers<N>(slots), peers<N>(flags), rank, call);
}
