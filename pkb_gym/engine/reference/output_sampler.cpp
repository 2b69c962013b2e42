// Copies parts of a rank's outputs at the moment when its GPU asks for the next handover; see output_sampler.py.
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace {

// The parts to copy, in the order of their requests; arrays are the caller's, and stay until the sampler has ended.
struct Parts {
  int32_t count;
  const uint64_t* requests;  // value of the request word from which on each of them may be copied; never falls
  const uint64_t* from;      // address on the device
  const uint64_t* nbytes;
  const uint64_t* to;        // address in main memory
  uint8_t* taken;            // whether it was copied; written by the sampler
};

// A copy engine: functions that return 0 for success, as those of the CUDA driver do.
struct Engine {
  int (*enter)(void* context);
  int (*copy)(void* to, uint64_t from, size_t nbytes, void* stream);
  int (*settle)(void* stream);
  void* context;
  void* stream;
};

constexpr uint64_t kNear = 16;       // requests before its own from which on the thread spins instead of sleeping
constexpr long kNapNanoseconds = 20000;

class Sampler {
 public:
  Sampler(const Parts& parts, const Engine& engine, const uint64_t* word)
      : parts_(parts), engine_(engine), word_(word), thread_([this] { sample(); }) {}

  // Ends the thread; returns 0, or the status of what failed.
  int finish() {
    stop_ = true;
    thread_.join();
    return status_;
  }

 private:
  void sample() {
    if ((status_ = engine_.enter(engine_.context))) return;
    for (int32_t next = 0; next < parts_.count && status_ == 0;) {
      const uint64_t reached = wait_for(parts_.requests[next]);
      if (reached < parts_.requests[next]) break;
      // Parts of a request before the last one are passed over: they were to be seen earlier.
      int32_t end = next;
      while (end < parts_.count && parts_.requests[end] <= reached) {
        if (parts_.requests[end] != parts_.requests[next]) next = end;
        ++end;
      }
      for (; next < end && status_ == 0; ++next) {
        status_ = engine_.copy(reinterpret_cast<void*>(parts_.to[next]), parts_.from[next], parts_.nbytes[next],
                               engine_.stream);
        parts_.taken[next] = status_ == 0;
      }
    }
    const int settled = engine_.settle(engine_.stream);
    if (status_ == 0) status_ = settled;
  }

  // The word once it has reached `request`, or as it is when the sampler is to end.
  uint64_t wait_for(uint64_t request) const {
    for (;;) {
      const uint64_t reached = __atomic_load_n(word_, __ATOMIC_ACQUIRE);
      if (reached >= request || stop_) return reached;
      if (request - reached > kNear) {
        const timespec nap{0, kNapNanoseconds};
        nanosleep(&nap, nullptr);
      } else {
        relax();
      }
    }
  }

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  const Parts parts_;
  const Engine engine_;
  const uint64_t* word_;
  int status_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it begins when all else is there
};

}  // namespace

// Begins to watch the request word.
extern "C" void* pkb_sample_outputs(const Parts* parts, const Engine* engine, const uint64_t* word) {
  return new Sampler(*parts, *engine, word);
}

// Ends a sampler, when all of its copies have come; returns 0, or the status of what failed.
extern "C" int pkb_finish_sampling(void* handle) {
  Sampler* sampler = static_cast<Sampler*>(handle);
  const int status = sampler->finish();
  delete sampler;
  return status;
}
