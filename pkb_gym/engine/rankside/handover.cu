// The rank's side of a handover on a GPU: one kernel, enqueued between two calls. Loaded in every rank.
#include <cuda_runtime.h>

#include <ctime>

#include "mailbox.h"

namespace pkb_handover {
namespace {

constexpr int kChunks = kLineBytes / int(sizeof(uint4));

__device__ __forceinline__ uint64_t wait_for_word(const Entry* entry, uint32_t sequence) {
  Entry got;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(got.low), "=r"(got.low_sequence), "=r"(got.high), "=r"(got.high_sequence)
                 : "l"(entry)
                 : "memory");
  } while (got.low_sequence != sequence || got.high_sequence != sequence);
  return uint64_t(got.high) << 32 | got.low;
}

__device__ __forceinline__ uint32_t index_in(const uint64_t* words, int i) {
  return uint32_t(words[i / 2] >> (32 * (i % 2)));
}

__global__ void __launch_bounds__(kEntries) handover(Mailbox* mailbox, char* segment, uint32_t sequence) {
  __shared__ alignas(16) uint64_t words[kEntries];
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&mailbox->reached), "l"(uint64_t(sequence)) : "memory");
  }
  words[thread] = wait_for_word(&mailbox->message[sequence % 2][thread], sequence);
  __syncthreads();
  const int arrivals = int(words[0] & 0xff), poisons = int(words[0] >> 8 & 0xff);
  const int receipts = int(words[0] >> 16 & 0xff), withdrawals = int(words[0] >> 24 & 0xff);
  const bool takes_outputs = words[0] >> 32 & 1;
  const uint4 poison = make_uint4(0x01010101u * kPoisonByte, 0x01010101u * kPoisonByte, 0x01010101u * kPoisonByte,
                                  0x01010101u * kPoisonByte);
  const auto line = [&](int first_word, int i) {
    return reinterpret_cast<uint4*>(segment + uint64_t(index_in(words + first_word, i)) * kLineBytes);
  };
  const int chunk = thread % kChunks;
  const int first = thread / kChunks, step = kEntries / kChunks;
  uint4* kept = reinterpret_cast<uint4*>(mailbox->receipts[sequence % 2]);
  for (int i = first; i < receipts; i += step) {
    kept[i * kChunks + chunk] = __ldcv(line(kReceiptWord, i) + chunk);
  }
  if (takes_outputs) {
    __syncthreads();  // a line may be among the receipts twice
    for (int i = first; i < receipts; i += step) line(kReceiptWord, i)[chunk] = poison;
  }
  for (int i = first; i < withdrawals; i += step) line(kWithdrawalWord, i)[chunk] = poison;
  for (int i = first; i < poisons; i += step) line(kPoisonWord, i)[chunk] = poison;
  const uint4* values = reinterpret_cast<const uint4*>(words + kValueWord);
  for (int i = first; i < arrivals; i += step) line(kArrivalWord, i)[chunk] = values[i * kChunks + chunk];
}

__global__ void meeting(char* segments, uint64_t segment_bytes, int rank, int world_size, uint64_t count) {
  const int other = int(threadIdx.x);
  if (other >= world_size || other == rank) return;
  const auto word = [&](int owner, int writer) {
    return reinterpret_cast<uint64_t*>(segments + uint64_t(owner) * segment_bytes + kMeetingOffset) + writer;
  };
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word(other, rank)), "l"(count) : "memory");
  uint64_t reached;
  do {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(reached) : "l"(word(rank, other)) : "memory");
  } while (reached < count);
}

}  // namespace
}  // namespace pkb_handover

// Enqueues a meeting of all ranks' streams, the least that a call of a parallel kernel does; returns the CUDA status.
//
// segments: address of rank 0's segment, the others follow. count: grows by one each time, equal on all ranks.
extern "C" int pkb_enqueue_meeting(void* stream, void* segments, uint64_t segment_bytes, int rank, int world_size,
                                   uint64_t count) {
  using namespace pkb_handover;
  meeting<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<char*>(segments), segment_bytes, rank, world_size,
                                                            count);
  return int(cudaGetLastError());
}

// Enqueues a handover; returns the CUDA status.
//
// stream: that the calls are enqueued on. mailbox: as the GPU reaches it. segment: of this rank. sequence: counts the
// handovers of this mailbox from 1. pad_ns: how long the host stays here beyond the launch, so that a handover takes the
// host as long as it takes the GPU: its cost is then the same whichever of the two is the bottleneck.
extern "C" int pkb_enqueue_handover(void* stream, void* mailbox, void* segment, uint32_t sequence, int64_t pad_ns) {
  using namespace pkb_handover;
  handover<<<1, kEntries, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<Mailbox*>(mailbox),
                                                                 static_cast<char*>(segment), sequence);
  const cudaError_t status = cudaGetLastError();
  if (pad_ns > 0) {
    timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
      clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000000000ll + (now.tv_nsec - begin.tv_nsec) < pad_ns);
  }
  return int(status);
}
