// Tensors of the peers, fetched by copy engines on a stream of their own while kernels work on what is there already,
// under the call contract.
//
//   pkb::FetchBeside fetch(comm, group);       // signals that this call has begun
//   for (int k = 1; k < fetch.ranks(); ++k) fetch.copy(k, copies[k], tensor, bytes);  // of the k-th rank after this
//   work(tensor);
//   for (int k = 1; k < fetch.ranks(); ++k) {
//     fetch.await(k);                          // what is enqueued now finds the copy
//     work(copies[k]);
//   }
//   fetch.end();                               // peers have fetched what they want from this rank
//
// Words kBegunWord .. of the signal pad are in use. Can be captured in a graph. Bound: link; copies of less than 16 MB
// are faster by a kernel (pkb/transfer_cuda.h).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

namespace pkb {

constexpr int kBegunWord = 0, kFetchedWord = kMaxRanks;  // one for each sender

// Signals all peers of the group; a thread a peer.
template <int kThreads>
__global__ void signal_peers(int slot, int64_t group, const __grid_constant__ Device comm) {
  const int place = int(threadIdx.x);
  if (place >= comm.group_size(group) || place == comm.group_rank(group)) return;
  comm.signal(slot + comm.rank, comm.group_member(group, place));
}

// Waits for their signals.
template <int kThreads>
__global__ void wait_for_peers(int slot, int64_t group, const __grid_constant__ Device comm) {
  const int place = int(threadIdx.x);
  if (place >= comm.group_size(group) || place == comm.group_rank(group)) return;
  comm.wait(slot + comm.group_member(group, place));
}

class FetchBeside {
 public:
  FetchBeside(const Comm& comm, int64_t group) : comm_(comm), group_(group), members_(comm.group(group)) {
    const Side& side = this->side();
    signal_peers<kMaxRanks><<<1, kMaxRanks, 0, comm.cuda_stream()>>>(kBegunWord, group, comm.device());
    PKB_CUDA_LAUNCHED();
    PKB_CUDA(cudaEventRecord(side.begun, comm.cuda_stream()));
    PKB_CUDA(cudaStreamWaitEvent(side.stream, side.begun));
    wait_for_peers<kMaxRanks><<<1, kMaxRanks, 0, side.stream>>>(kBegunWord, group, comm.device());
    PKB_CUDA_LAUNCHED();
    PKB_CUDA(cudaEventRecord(side.arrived, side.stream));
  }

  // What is enqueued now finds that all peers have begun: for kernels that read from peers themselves.
  void await_begun() const { PKB_CUDA(cudaStreamWaitEvent(comm_.cuda_stream(), side().arrived)); }

  int ranks() const { return members_.size; }
  int rank_after(int k) const { return members_.ranks[(members_.rank + k) % members_.size]; }

  // Enqueues a copy of the k-th rank's counterpart of `from`, once for each k.
  void copy(int k, void* to, const void* from, uint64_t bytes) const {
    const void* of_peer = comm_.peer(static_cast<const char*>(from), rank_after(k));
    PKB_CUDA(cudaMemcpyAsync(to, of_peer, bytes, cudaMemcpyDeviceToDevice, side().stream));
    PKB_CUDA(cudaEventRecord(side().copied[k], side().stream));
  }

  void await(int k) const { PKB_CUDA(cudaStreamWaitEvent(comm_.cuda_stream(), side().copied[k])); }

  // After all copies have been waited for.
  void end() const {
    signal_peers<kMaxRanks><<<1, kMaxRanks, 0, comm_.cuda_stream()>>>(kFetchedWord, group_, comm_.device());
    PKB_CUDA_LAUNCHED();
    wait_for_peers<kMaxRanks><<<1, kMaxRanks, 0, comm_.cuda_stream()>>>(kFetchedWord, group_, comm_.device());
    PKB_CUDA_LAUNCHED();
  }

 private:
  struct Side {
    cudaStream_t stream;
    cudaEvent_t begun, arrived;
    std::array<cudaEvent_t, kMaxRanks> copied;
  };
  static const Side& side() {
    static const Side side = [] {
      Side made;
      PKB_CUDA(cudaStreamCreateWithFlags(&made.stream, cudaStreamNonBlocking));
      PKB_CUDA(cudaEventCreateWithFlags(&made.begun, cudaEventDisableTiming));
      PKB_CUDA(cudaEventCreateWithFlags(&made.arrived, cudaEventDisableTiming));
      for (cudaEvent_t& event : made.copied) PKB_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      return made;
    }();
    return side;
  }

  const Comm& comm_;
  int64_t group_;
  Group members_;
};

}  // namespace pkb
