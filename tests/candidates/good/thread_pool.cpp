// expect: passed
// until: time
// A worker that lives from call to call and sleeps between them; the call waits until it is done.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "pkb/bf16.h"
#include "pkb/symm.h"

float sum_at(const tvm::ffi::TensorView& tensor, const pkb::Comm& comm, int64_t i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
  return sum;
}

class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}

  void begin(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
    busy_ = true;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return busy_; });
      work_();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool busy_ = false;
  std::thread thread_;
};

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t n = tensor.numel();
  static Worker& worker = *new Worker;  // never destroyed: it runs until the process ends
  comm.barrier();
  const int64_t middle = n / 2;
  auto work = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) result[i] = pkb::bf16(sum_at(tensor, comm, i));
  };
  worker.begin([&] { work(0, middle); });
  work(middle, n);
  worker.wait();
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
