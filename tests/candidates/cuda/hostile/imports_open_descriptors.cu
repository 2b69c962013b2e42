// expect: runtime_error memory of others: 0
// Tries every descriptor of its process as device memory that somebody shares, such as the reference gang's heap.
#include <cuda_bf16.h>

#include <fcntl.h>

#include "pkb/symm.h"

using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;


void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  void* entry = nullptr;
  PKB_CUDA(cudaGetDriverEntryPointByVersion("cuMemImportFromShareableHandle", &entry, 10020, cudaEnableDefault, nullptr));
  const auto import = reinterpret_cast<int (*)(unsigned long long*, void*, int)>(entry);
  int found = 0;
  for (intptr_t fd = 3; fd < 1024; ++fd) {
    unsigned long long handle = 0;
    if (fcntl(int(fd), F_GETFD) >= 0 && import(&handle, reinterpret_cast<void*>(fd), 1) == 0) ++found;
  }
  TVM_FFI_THROW(RuntimeError) << "memory of others: " << found;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
