// Interrupts a call of a candidate's rank: it runs for microseconds at a time, and is stopped in between.
//
// The rank may be woken on the processor of the thread that is to stop it again, and has then finished a short call before
// that thread runs. So two threads stop it, each on a processor of its own.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace {

// A call of a rank; arrays are the caller's.
struct InterruptedCall {
  int32_t pidfd;           // of the rank
  int32_t pid;             // its process; 0 if that is not known
  int32_t request_fd;      // readable once the call has ended
  int32_t order_fd;        // readable once the evaluator orders something else
  int32_t runs;            // times that the rank runs, at most
  const int64_t* runs_ns;  // [runs]: how long
  int64_t min_stop_ns;     // length of a stop,
  int64_t max_stop_ns;     // where other ranks go on meanwhile
  int64_t ahead_ns;        // how much longer a stop lasts when all others have finished the call
  int32_t others;
  const volatile uint64_t* const* reached;  // [others]: progress of each other rank
  uint64_t finished;                        // what it is at least once that rank has finished the call
  const volatile uint64_t* place;           // number of the call that the rank reports to be in; null for unknown
  uint64_t number;                          // of this call
  int64_t max_start_ns;                     // after which the rank is stopped, whatever it reports
};

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Processor time of a process; the time where it cannot be read.
int64_t processor_ns(pid_t pid) {
  clockid_t clock;
  timespec t;
  if (pid == 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0) return now_ns();
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// How long a rank runs: a rank that is woken takes longer to be there than it is to run.
struct Run {
  static constexpr int64_t kWakeNs = 200000;  // after which the rank is stopped, whether or not it has run
  pid_t pid;
  int64_t processor_end, end;
  Run(pid_t pid, int64_t ns) : pid(pid), processor_end(processor_ns(pid) + ns), end(now_ns() + ns + kWakeNs) {}
  bool is_over() const { return processor_ns(pid) >= processor_end || now_ns() >= end; }
};

void nap() {
  const timespec t{0, 10000};
  nanosleep(&t, nullptr);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void send(int pidfd, int number) { syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0); }

bool has_ended(const InterruptedCall& call) {
  pollfd fds[2] = {{call.request_fd, POLLIN, 0}, {call.order_fd, POLLIN, 0}};
  return poll(fds, 2, 0) > 0;
}

// Processors of this thread: it stays on the first of them, its assistant on the last.
class Processors {
 public:
  Processors() {
    CPU_ZERO(&all_);
    sched_getaffinity(0, sizeof all_, &all_);
  }
  void stay_on_first() const {
    int processor = 0;
    while (processor < CPU_SETSIZE - 1 && !CPU_ISSET(processor, &all_)) ++processor;
    stay_on(processor);
  }
  void stay_on_last() const {
    int processor = CPU_SETSIZE - 1;
    while (processor > 0 && !CPU_ISSET(processor, &all_)) --processor;
    stay_on(processor);
  }
  void leave() const { sched_setaffinity(0, sizeof all_, &all_); }

 private:
  static void stay_on(int processor) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);  // a refusal costs precision alone
  }
  cpu_set_t all_;
};

// The second thread that stops a rank.
class Assistant {
 public:
  Assistant(int pidfd, const Processors& processors)
      : pidfd_(pidfd), thread_([this, processors] { run(processors); }) {}
  ~Assistant() {
    wanted_ = -1;
    thread_.join();
  }
  // Has it run on its processor until it stops the rank.
  void call() {
    run_ = nullptr;
    ++wanted_;
    const int64_t began = now_ns();
    while (ready_ != wanted_ && now_ns() - began < kCallNs) nap();
  }
  // Has it stop the rank at the end of `run`, which stays until the next call.
  void stop_after(const Run* run) { run_ = run; }

 private:
  static constexpr int64_t kCallNs = 500000;
  void run(const Processors& processors) {
    processors.stay_on_last();
    for (int done = 0; wanted_ >= 0;) {
      if (wanted_ == done) {
        nap();
        continue;
      }
      done = wanted_;
      ready_ = done;
      const Run* run = nullptr;
      while (wanted_ == done && ((run = run_) == nullptr || !run->is_over())) relax();
      if (wanted_ == done) send(pidfd_, SIGSTOP);
    }
  }
  const int pidfd_;
  std::atomic<int> wanted_{0}, ready_{0};
  std::atomic<const Run*> run_{nullptr};
  std::thread thread_;
};

// Waits until the rank reports that it is in the call.
void await_start(const InterruptedCall& call) {
  const int64_t began = now_ns();
  while (*call.place != call.number && now_ns() - began < call.max_start_ns && !has_ended(call)) relax();
}

// Lets the rank stand still. Returns whether all others have finished the call.
bool stand_still(const InterruptedCall& call) {
  const int64_t began = now_ns();
  uint64_t sum_before = 0;
  int64_t finished_since = 0;
  for (int i = 0; i < call.others; ++i) sum_before += *call.reached[i];
  for (;;) {
    uint64_t sum = 0;
    bool finished = true;
    for (int i = 0; i < call.others; ++i) {
      const uint64_t reached = *call.reached[i];
      sum += reached;
      finished &= reached >= call.finished;
    }
    const int64_t now = now_ns();
    if (finished) {
      if (finished_since == 0) finished_since = now;
      if (now - finished_since >= call.ahead_ns) return true;
    } else if (now - began >= (sum == sum_before ? call.min_stop_ns : call.max_stop_ns)) {
      return false;
    }
    nap();
  }
}

}  // namespace

// Lets a stopped rank make its call, a little at a time; returns how often it was stopped, once it runs without stops.
extern "C" int32_t pkb_interrupt(const InterruptedCall* call) {
  const Processors processors;
  processors.stay_on_first();
  prctl(PR_SET_TIMERSLACK, 1);  // of this thread and its assistant
  int32_t run = 0;
  Run runs[2] = {Run(call->pid, 0), Run(call->pid, 0)};  // the assistant may still look at the one before
  {
    Assistant assistant(call->pidfd, processors);
    for (; run < call->runs && !has_ended(*call); ++run) {
      if (run > 0 && stand_still(*call)) break;
      assistant.call();
      const bool awaits_start = run == 0 && call->place != nullptr;
      if (awaits_start) {
        send(call->pidfd, SIGCONT);
        await_start(*call);
      }
      runs[run % 2] = Run(call->pid, call->runs_ns[run]);
      assistant.stop_after(&runs[run % 2]);
      if (!awaits_start) send(call->pidfd, SIGCONT);
      while (!runs[run % 2].is_over()) relax();
      send(call->pidfd, SIGSTOP);
    }
  }
  send(call->pidfd, SIGCONT);
  prctl(PR_SET_TIMERSLACK, 0);  // what it was
  processors.leave();
  return run;
}
