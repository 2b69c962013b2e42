// The end of a kernel that has more blocks than are resident at once, or another number of them on each rank: the last
// block of each rank to arrive tells the others that its rank has stored all, and waits for the same from them. What any
// rank stored in the kernel is then visible to what follows on the stream, and the call may end.
#pragma once

#include <cuda_runtime.h>

#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

namespace pkb {

// By all threads of all blocks, each of at least as many threads as there are ranks. `counter` is 0 at first, and no
// one else's; words `slot` .. slot + kMaxRanks - 1 of the signal pad are this meeting's.
__device__ __forceinline__ void meet_in_last_block(unsigned* counter, int slot, const Device& comm) {
  if (!arrives_last(counter)) return;
  const int r = int(threadIdx.x);
  if (r >= comm.world_size || r == comm.rank) return;
  comm.signal(slot + comm.rank, r);
  comm.wait(slot + r);
}

}  // namespace pkb
