// expect: runtime_error was killed by SIGSEGV; stood at kernel.cpp:10, called from kernel.cpp:
// A thread of rank 1 writes to address 8, deep in calls of the standard library.
#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "pkb/symm.h"

void crash(int* at) { *static_cast<volatile int*>(at) = 1; }

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::vector<int> keys(100, i);
      std::function<void(int)> visit = [&](int) {
        if (comm.rank == 1) std::invoke(crash, reinterpret_cast<int*>(8));
      };
      std::for_each(keys.begin(), keys.end(), visit);
    });
  }
  for (std::thread& thread : threads) thread.join();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
