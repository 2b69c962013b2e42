// expect: passed
// until: time
// OpenMP: a parallel region whose threads divide the elements by their numbers, and tasks.
#include <omp.h>

#include <algorithm>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void add_up(const tvm::ffi::TensorView& tensor, pkb::bf16* sums, const pkb::Comm& comm, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    sums[i] = pkb::bf16(sum);
  }
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* sums = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = out.numel(), half = n / 2;
  comm.barrier();
  int threads = 0;
#pragma omp parallel num_threads(3) reduction(+ : threads)
  {
    const int t = omp_get_thread_num(), all = omp_get_num_threads();
    add_up(tensor, sums, comm, half * t / all, half * (t + 1) / all);
    threads += 1;
  }
  if (threads != 3) TVM_FFI_THROW(RuntimeError) << "the region had " << threads << " threads";
#pragma omp parallel num_threads(2)
#pragma omp single
  for (int64_t first = half; first < n; first += 100) {
#pragma omp task firstprivate(first)
    add_up(tensor, sums, comm, first, std::min(n, first + 100));
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
