// expect: passed
// problem: GemvDecode
// until: time
// Strict about warnings before it includes anything; threads of one call write straight into all ranks' outputs.
#pragma GCC diagnostic error "-Wall"
#pragma GCC diagnostic error "-Wextra"
#pragma GCC optimize("O2", "fast-math")
#include <pthread.h>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include "pkb/bf16.h"
#include "pkb/symm.h"
using tvm::ffi::TensorView;
namespace {
struct Job { TensorView x, w, b; TensorView out; const pkb::Comm* comm; int64_t begin, end; };
void* work(void* raw) {
  auto* job = static_cast<Job*>(raw);
  const int64_t T = job->x.size(0), h = job->x.size(1), Vl = job->w.size(0), V = job->out.size(1);
  const auto* x = static_cast<const pkb::bf16*>(job->x.data_ptr());
  const auto* w = static_cast<const pkb::bf16*>(job->w.data_ptr());
  const auto* b = static_cast<const pkb::bf16*>(job->b.data_ptr());
  auto* table = static_cast<float*>(std::malloc(size_t(h) * sizeof(float)));
  for (int64_t j = job->begin; j < job->end; ++j) {
    for (int64_t c = 0; c < h; ++c) table[c] = float(w[j * h + c]);
    for (int64_t t = 0; t < T; ++t) {
      float s = 0;
      for (int64_t c = 0; c < h; ++c) s += table[c] * float(x[t * h + c]);
      const pkb::bf16 v(float(pkb::bf16(s)) + float(b[j]));
      for (int r = 0; r < job->comm->world_size; ++r)  // straight into everybody's output
        job->comm->peer<pkb::bf16>(job->out, r)[t * V + job->comm->rank * Vl + j] = v;
    }
  }
  std::free(table);
  return nullptr;
}
}  // namespace
void solution(TensorView x, TensorView w, TensorView b, TensorView out, pkb::Comm comm) {
  static std::unordered_map<std::string, int> settings{{"threads", 3}};
  const int threads = std::getenv("PKB_MY_THREADS") ? 1 : settings["threads"];
  comm.barrier();
  std::vector<pthread_t> ids(threads);
  std::vector<Job> jobs;
  for (int i = 0; i < threads; ++i) jobs.push_back({x, w, b, out, &comm, w.size(0) * i / threads, w.size(0) * (i + 1) / threads});
  for (int i = 0; i < threads; ++i) if (pthread_create(&ids[i], nullptr, work, &jobs[i]) != 0) throw std::runtime_error("no thread");
  for (pthread_t id : ids) pthread_join(id, nullptr);
  comm.barrier();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
