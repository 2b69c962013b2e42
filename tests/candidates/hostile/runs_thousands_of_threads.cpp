// expect: runtime_error threads
// memory_mib: 4096
// world_size: 1
// Threads of 64 KiB: memory would have room for tens of thousands.
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void* sleeps(void*) {
  for (;;) sleep(1000);
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  pthread_t thread;
  for (int count = 0; count < 20'000; ++count) {
    if (pthread_create(&thread, &small, sleeps, nullptr) != 0)
      throw std::runtime_error("Resource temporarily unavailable after " + std::to_string(count) + " threads");
  }
  sleep(10);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
