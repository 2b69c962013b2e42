// Whether other processes can map memory of this one, as libraries do with buffers that are registered.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include "pkb/symm.h"

namespace pkb {

// False where the driver refuses to export memory: what a process has imported itself it does not export again. A
// library that tries leaves its peers waiting, or with addresses that do not work. True where memory is of another kind.
inline bool is_exported(void* memory) {
  const auto function = [](const char* name) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    PKB_CUDA(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found));
    return entry;
  };
  const auto retain = reinterpret_cast<decltype(&cuMemRetainAllocationHandle)>(function("cuMemRetainAllocationHandle"));
  const auto export_handle =
      reinterpret_cast<decltype(&cuMemExportToShareableHandle)>(function("cuMemExportToShareableHandle"));
  const auto release = reinterpret_cast<decltype(&cuMemRelease)>(function("cuMemRelease"));
  CUmemGenericAllocationHandle handle;
  if (retain(&handle, memory) != CUDA_SUCCESS) return true;
  int file = -1;
  const CUresult result = export_handle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (file >= 0) close(file);
  release(handle);
  return result == CUDA_SUCCESS;
}

}  // namespace pkb
