// expect: integrity|output_mismatch rank
// From its third call on, whatever the rank program has of libc's eventfd_read returns at once.
#include <dlfcn.h>
#include <link.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

static int return_at_once(int, eventfd_t* value) {
  *value = 1;
  return 0;
}

static int overwrite(dl_phdr_info* object, size_t, void* function) {
  constexpr uintptr_t kPage = 4096;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0) continue;
    const uintptr_t begin = (object->dlpi_addr + part.p_vaddr) & -kPage;
    const uintptr_t end = (object->dlpi_addr + part.p_vaddr + part.p_memsz) & -sizeof(void*);
    mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE);
    for (auto* entry = reinterpret_cast<void**>(begin); entry < reinterpret_cast<void**>(end); ++entry) {
      if (*entry == function) *entry = reinterpret_cast<void*>(return_at_once);
    }
  }
  return 0;
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static int calls = 0;
  if (++calls == 3) dl_iterate_phdr(overwrite, dlsym(RTLD_DEFAULT, "eventfd_read"));
  comm.barrier();
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
