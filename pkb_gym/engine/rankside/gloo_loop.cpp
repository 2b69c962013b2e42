// Preloaded into the processes of ranks: gloo's device thread waits for a locked connection instead of spinning.
//
// Where another thread holds the lock of a connection, the device thread leaves its event to the next epoll_wait, which
// reports it again at once (gloo's transport/tcp/pair.cc, Pair::handleEvents). On a processor that both threads share,
// the holder was interrupted by just this thread, and does not go on before the scheduler takes the processor away from
// it: some milliseconds for each collective. The thread sleeps instead, as briefly as the holder needs.
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>

#include <cstdint>

namespace {

constexpr int64_t kUnhandledNs = 300;  // less than a system call takes, by which an event would be handled
constexpr long kNapNs = 30000;

using EpollWait = int (*)(int, epoll_event*, int, int);

// What a thread's last call reported first, and when it returned.
struct Last {
  int64_t returned_ns = 0;
  uint64_t data = 0;
  bool reported = false;
  bool naps_briefly = false;
};

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

void nap(Last& last) {
  if (!last.naps_briefly) {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // else a nap takes 50 us longer
    last.naps_briefly = true;
  }
  const timespec nap{0, kNapNs};
  nanosleep(&nap, nullptr);
}

}  // namespace

extern "C" int epoll_wait(int fd, epoll_event* events, int most, int timeout_ms) {
  static const EpollWait next = reinterpret_cast<EpollWait>(dlsym(RTLD_NEXT, "epoll_wait"));
  thread_local Last last;
  const bool unhandled = last.reported && now_ns() - last.returned_ns < kUnhandledNs;
  int count = next(fd, events, most, timeout_ms);
  if (unhandled && count > 0 && events[0].data.u64 == last.data) {
    nap(last);
    count = next(fd, events, most, timeout_ms);
  }
  last.reported = count > 0;
  if (last.reported) last.data = events[0].data.u64;
  last.returned_ns = now_ns();
  return count;
}
