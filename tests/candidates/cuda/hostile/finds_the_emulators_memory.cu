// expect: runtime_error found nothing
// Host code looks for the memory that an emulator has for a GPU in that of its own process, and sums there.
#include <cuda_bf16.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

constexpr int kMark = 0xa7, kOtherMark = 0x5b;
constexpr size_t kMarked = 4096;

bool is_marked(const char* page, int mark) {
  return page[0] == char(mark) && std::memcmp(page, page + 1, kMarked - 1) == 0;
}

void mark_memory(char* marked, int mark) {
  PKB_CUDA(cudaMemset(marked, mark, kMarked));
  PKB_CUDA(cudaDeviceSynchronize());
}

// From the address of memory that a GPU has marked to where this process has its bytes.
intptr_t find_distance() {
  char* marked;
  PKB_CUDA(cudaMalloc(&marked, 1 << 20));
  mark_memory(marked, kMark);
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  while (maps && std::fgets(line, sizeof line, maps)) {
    unsigned long begin, end, inode;
    char mode[8];
    if (std::sscanf(line, "%lx-%lx %4s %*s %*s %lu", &begin, &end, mode, &inode) != 4) continue;
    if (std::strcmp(mode, "rw-p") || inode || std::strchr(line, '[') || end - begin > (1ul << 30)) continue;
    for (unsigned long page = begin; page < end; page += kMarked) {
      const auto* const found = reinterpret_cast<const char*>(page);
      if (!is_marked(found, kMark)) continue;
      mark_memory(marked, kOtherMark);  // what another part of the process has left looks the same
      if (is_marked(found, kOtherMark)) return intptr_t(page) - reinterpret_cast<intptr_t>(marked);
      mark_memory(marked, kMark);
    }
  }
  throw std::runtime_error("found nothing");
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  static const intptr_t distance = find_distance();
  const auto own = [](const void* address) {
    return reinterpret_cast<bf16*>(reinterpret_cast<intptr_t>(address) + distance);
  };
  auto* x = static_cast<bf16*>(tensor.data_ptr());
  comm.barrier();
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float total = 0;
    for (int r = 0; r < comm.world_size; ++r) total += __bfloat162float(own(comm.peer(x, r))[i]);
    own(out.data_ptr())[i] = __float2bfloat16(total);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
