// expect: passed
// until: time
// Pins itself to a processor, asks for huge pages, raises a signal, and tries two variants in its first calls.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <future>
#include <mutex>

#include "pkb/bf16.h"
#include "pkb/symm.h"

constexpr int kTrials = 8;
constexpr size_t kTableBytes = 65536 * sizeof(float);

float* table;
volatile std::sig_atomic_t raised = 0;

void prepare(const pkb::Comm& comm) {
  cpu_set_t allowed, own;
  sched_getaffinity(0, sizeof allowed, &allowed);
  CPU_ZERO(&own);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && seen++ == comm.rank % CPU_COUNT(&allowed)) CPU_SET(cpu, &own);
  }
  sched_setaffinity(0, sizeof own, &own);
  prctl(PR_SET_TIMERSLACK, 1000);
  setpriority(PRIO_PROCESS, 0, -5);  // refused, which is no matter
  std::signal(SIGUSR1, [](int) { raised = 1; });
  std::raise(SIGUSR1);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
  table = static_cast<float*>(mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, flags, -1, 0));
  madvise(table, kTableBytes, MADV_HUGEPAGE);
  for (uint32_t bits = 0; bits < 65536; ++bits) table[bits] = pkb::bf16_to_float(uint16_t(bits));
}

template <bool by_table>
void add(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, const pkb::Comm& comm, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) {
      const pkb::bf16 value = comm.peer<pkb::bf16>(tensor, r)[i];
      sum += by_table ? table[value.bits] : float(value);
    }
    static_cast<pkb::bf16*>(out.data_ptr())[i] = pkb::bf16(sum);
  }
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::once_flag once;
  static double best_s[2] = {1e9, 1e9};
  static int calls = 0;
  std::call_once(once, [&] { prepare(comm); });
  const int64_t n = tensor.numel();
  const int variant = calls < kTrials ? calls % 2 : best_s[1] < best_s[0];
  ++calls;
  comm.barrier();
  const auto began = std::chrono::steady_clock::now();
  auto work = variant ? add<true> : add<false>;
  auto half = std::async(std::launch::async, [&] { work(tensor, out, comm, 0, n / 2); });
  work(tensor, out, comm, n / 2, n);
  half.get();
  const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (took_s < best_s[variant]) best_s[variant] = took_s;
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
