// expect: passed
// Lines of 128 bytes in the manner of NCCL's LL128: eight lanes store 16 bytes each, and the last 8 bytes are the
// call's number.
#include <cuda_bf16.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

// Of eight lanes each has 16 bytes of a line: 120 bytes of data, then the flag.
__global__ void exchange(const bf16* x, bf16* y, int64_t n, int64_t room, pkb::Device comm) {
  auto* half = comm.scratch<uint64_t>(comm.epoch % 2 * (comm.scratch_bytes / 2));
  const int lane = int(threadIdx.x) % 8;
  const auto* words = reinterpret_cast<const uint64_t*>(x);
  const int64_t count = n / 4, lines = (count + 14) / 15;
  const int64_t groups = int64_t(gridDim.x) * blockDim.x / 8, first = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) / 8;
  for (int64_t line = first; line - first < lines; line += groups) {
    const int64_t low = line * 15 + lane * 2, high = low + 1;
    const uint64_t a = line < lines && low < count ? words[low] : 0;
    const uint64_t b = lane == 7 ? comm.epoch : line < lines && high < count ? words[high] : 0;
    if (line >= lines) continue;
    for (int r = 0; r < comm.world_size; ++r) {
      uint64_t* to = comm.peer(half, r) + (comm.rank * room + line) * 16 + lane * 2;
      asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
    }
  }
  comm.hold();
  for (int64_t line = first; line - first < lines; line += groups) {
    float totals[8] = {};
    for (int r = 0; r < comm.world_size && line - first < lines; ++r) {
      uint64_t got[2];
      bool is_there = true;
      do {
        const uint64_t* from = half + (r * room + (line < lines ? line : 0)) * 16 + lane * 2;
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(got[0]), "=l"(got[1]) : "l"(from) : "memory");
        is_there = lane != 7 || got[1] == comm.epoch;
      } while (!__all_sync(__activemask(), is_there));
      for (int k = 0; k < 8; ++k) totals[k] += __bfloat162float(reinterpret_cast<bf16*>(got)[k]);
    }
    for (int k = 0; k < (lane == 7 ? 4 : 8); ++k) {
      const int64_t at = (line * 15 + lane * 2) * 4 + k;
      if (line < lines && at < n) y[at] = __float2bfloat16(totals[k]);
    }
  }
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  auto* y = static_cast<bf16*>(out.data_ptr());
  const int64_t n = tensor.numel(), room = comm.scratch_bytes / 2 / 128 / comm.world_size;
  if (n % 4 != 0 || (n / 4 + 14) / 15 > room) throw std::runtime_error("more data than scratch");
  exchange<<<2, 64, 0, comm.cuda_stream()>>>(x, y, n, room, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
