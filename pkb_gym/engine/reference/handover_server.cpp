// The trusted side of a rank's handovers: a thread in the rank of the reference gang that has the same number.
//
// It knows which lines of a block's arguments are withheld until their call, and what they hold; candidates do not. On
// the CPU it moves the lines itself, in the candidate's heap; on a GPU it sends the kernel of mailbox.h the list.
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "mailbox.h"

using namespace pkb_handover;

namespace {

// The handovers of one block; arrays are the caller's, and stay until the server has ended.
struct Script {
  int32_t calls;
  int32_t takes_outputs;          // whether outputs are poisoned once a call's receipts are copied, 0 or 1
  const int32_t* arrival_begin;   // [calls + 1]: call c's lines are [begin[c], begin[c + 1])
  const uint32_t* arrival_lines;  // index of each line in the segment
  const int32_t* withdrawals;     // [calls]: how many of them, the first, are taken away again after the call
  const uint8_t* arrival_values;  // [lines][kLineBytes]
  const int32_t* poison_begin;
  const uint32_t* poison_lines;
  const int32_t* receipt_begin;
  const uint32_t* receipt_lines;
  uint8_t* receipts;              // [lines][kLineBytes], written by the server
  const int32_t* delays_us;       // [calls]: how much later than need be the arguments arrive
};

void sleep_us(int32_t us) {
  if (us <= 0) return;
  const timespec nap{us / 1000000, long(us % 1000000) * 1000};
  nanosleep(&nap, nullptr);
}

// The thread that makes a rank's calls, which meets the server on one processor at each handover.
//
// Where a rank may use several processors, the scheduler wakes one of the two on another than the other's at times, which
// takes several times as long as to switch on one: handovers would cost now this, now that. So the thread is held on the
// server's processor while it is woken, and free from then on, as the threads are that it starts.
class RankThread {
 public:
  // `id` is 0 where it is not known.
  explicit RankThread(pid_t id) : id_(id) {
    CPU_ZERO(&server_);
    if (id_ == 0 || sched_getaffinity(id_, sizeof own_, &own_) != 0 || CPU_COUNT(&own_) < 2) {
      id_ = 0;
      return;
    }
    // The last of them: the machine's first takes its interrupts, as a rule.
    for (processor_ = CPU_SETSIZE - 1; !CPU_ISSET(processor_, &own_);) --processor_;
    CPU_SET(processor_, &server_);
  }

  // Where the server has to run; -1 for anywhere.
  int processor() const { return processor_; }

  // A refusal costs precision alone, of these two.
  void hold() const {
    if (id_ != 0) sched_setaffinity(id_, sizeof server_, &server_);
  }
  void release() const {
    if (id_ != 0) sched_setaffinity(id_, sizeof own_, &own_);
  }

 private:
  pid_t id_;
  int processor_ = -1;
  cpu_set_t own_, server_;
};

class Server {
 public:
  Server(const Script& script, int processor) : script_(script), processor_(processor) {}
  virtual ~Server() = default;

  void start() {
    thread_ = std::thread([this] {
      if (processor_ >= 0) stay_on(processor_);
      serve();
    });
  }

  // Ends the thread, whether or not the block has ended; returns the handovers that were served.
  int32_t finish() {
    stop_ = true;
    wake();
    thread_.join();
    collect();
    return served_;
  }

 protected:
  virtual void serve() = 0;
  virtual void wake() {}
  virtual void collect() {}

  const Script script_;
  std::atomic<bool> stop_{false};
  std::atomic<int32_t> served_{0};

 private:
  static void stay_on(int processor) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(processor, &own);
    sched_setaffinity(0, sizeof own, &own);  // a refusal costs precision alone
  }

  const int processor_;
  std::thread thread_;
};

class CpuServer : public Server {
 public:
  CpuServer(const Script& script, char* segment, int request_fd, int reply_fd, const RankThread& rank)
      : Server(script, rank.processor()), segment_(segment), request_fd_(request_fd), reply_fd_(reply_fd), rank_(rank) {}

 protected:
  void serve() override {
    uint64_t one = 1, count;
    while (served_ <= script_.calls) {
      if (read(request_fd_, &count, sizeof count) != sizeof count || stop_) return;
      if (served_ > 0) depart(served_ - 1);
      if (served_ < script_.calls) arrive(served_);
      ++served_;
      rank_.hold();
      const bool replied = write(reply_fd_, &one, sizeof one) == sizeof one;
      rank_.release();
      if (!replied) return;
    }
  }

  void wake() override {
    const uint64_t one = 1;
    if (served_ <= script_.calls && write(request_fd_, &one, sizeof one) != sizeof one) return;
  }

 private:
  char* line(uint32_t index) const { return segment_ + uint64_t(index) * kLineBytes; }

  void poison(const uint32_t* lines, int32_t begin, int32_t end) const {
    for (int32_t i = begin; i < end; ++i) std::memset(line(lines[i]), kPoisonByte, kLineBytes);
  }

  void depart(int32_t call) {
    for (int32_t i = script_.receipt_begin[call]; i < script_.receipt_begin[call + 1]; ++i) {
      std::memcpy(script_.receipts + uint64_t(i) * kLineBytes, line(script_.receipt_lines[i]), kLineBytes);
    }
    if (script_.takes_outputs) poison(script_.receipt_lines, script_.receipt_begin[call], script_.receipt_begin[call + 1]);
    const int32_t begin = script_.arrival_begin[call];
    poison(script_.arrival_lines, begin, begin + script_.withdrawals[call]);
  }

  void arrive(int32_t call) {
    sleep_us(script_.delays_us[call]);
    poison(script_.poison_lines, script_.poison_begin[call], script_.poison_begin[call + 1]);
    for (int32_t i = script_.arrival_begin[call]; i < script_.arrival_begin[call + 1]; ++i) {
      std::memcpy(line(script_.arrival_lines[i]), script_.arrival_values + uint64_t(i) * kLineBytes, kLineBytes);
    }
  }

  char* segment_;
  int request_fd_, reply_fd_;
  const RankThread rank_;
};

class GpuServer : public Server {
 public:
  GpuServer(const Script& script, Mailbox* mailbox, uint32_t first_sequence, int processor)
      : Server(script, processor), mailbox_(mailbox), first_(first_sequence) {}

 protected:
  void serve() override {
    const volatile uint64_t* reached = &mailbox_->reached;
    while (served_ <= script_.calls) {
      const uint32_t sequence = first_ + uint32_t(served_);
      for (uint32_t polls = 0; *reached < sequence; ++polls) {
        if (stop_) return;
        if (polls % 4096 == 4095) sched_yield();
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      if (served_ > 1) keep_receipts(served_ - 2, sequence - 1);
      if (served_ < script_.calls) sleep_us(script_.delays_us[served_]);
      send(sequence);
      ++served_;
    }
  }

  // The receipts of the last call are there once the GPU has been waited for, which the caller has done.
  void collect() override {
    if (served_ == script_.calls + 1 && script_.calls > 0) keep_receipts(script_.calls - 1, first_ + served_ - 1);
  }

 private:
  void keep_receipts(int32_t call, uint32_t sequence) {
    const int32_t begin = script_.receipt_begin[call], count = script_.receipt_begin[call + 1] - begin;
    std::memcpy(script_.receipts + uint64_t(begin) * kLineBytes, mailbox_->receipts[sequence % 2],
                uint64_t(count) * kLineBytes);
  }

  void send(uint32_t sequence) {
    uint64_t words[kEntries] = {};
    const int32_t call = served_;
    uint64_t arrivals = 0, poisons = 0, receipts = 0, withdrawals = 0;
    if (call > 0) {
      receipts = put_indices(words + kReceiptWord, script_.receipt_lines, script_.receipt_begin, call - 1);
      put_indices(words + kWithdrawalWord, script_.arrival_lines, script_.arrival_begin, call - 1);
      withdrawals = uint64_t(script_.withdrawals[call - 1]);
    }
    if (call < script_.calls) {
      poisons = put_indices(words + kPoisonWord, script_.poison_lines, script_.poison_begin, call);
      arrivals = put_indices(words + kArrivalWord, script_.arrival_lines, script_.arrival_begin, call);
      std::memcpy(words + kValueWord,
                  script_.arrival_values + uint64_t(script_.arrival_begin[call]) * kLineBytes, arrivals * kLineBytes);
    }
    words[0] = arrivals | poisons << 8 | receipts << 16 | withdrawals << 24 | uint64_t(script_.takes_outputs) << 32;
    auto* halves = reinterpret_cast<volatile uint64_t*>(mailbox_->message[sequence % 2]);
    for (int i = 0; i < kEntries; ++i) {
      halves[2 * i] = uint64_t(sequence) << 32 | uint32_t(words[i]);
      halves[2 * i + 1] = uint64_t(sequence) << 32 | words[i] >> 32;
    }
  }

  static uint64_t put_indices(uint64_t* words, const uint32_t* lines, const int32_t* begin, int32_t call) {
    const int32_t first = begin[call], count = begin[call + 1] - first;
    for (int32_t i = 0; i < count; ++i) words[i / 2] |= uint64_t(lines[first + i]) << (32 * (i % 2));
    return uint64_t(count);
  }

  Mailbox* mailbox_;
  uint32_t first_;
};

void* started(Server* server) {
  server->start();
  return server;
}

}  // namespace

// Serves a block's handovers on the CPU: writes to `request_fd` (an eventfd) are the rank's, writes to `reply_fd` ours.
// `rank` is the rank's process, whose main thread makes the calls; 0 where it has none of its own.
extern "C" void* pkb_serve_on_cpu(const Script* script, void* segment, int request_fd, int reply_fd, int rank) {
  return started(new CpuServer(*script, static_cast<char*>(segment), request_fd, reply_fd, RankThread(rank)));
}

// Serves a block's handovers on a GPU, which are numbered from `first_sequence` on. The thread spins, on one processor.
extern "C" void* pkb_serve_on_gpu(const Script* script, void* mailbox, uint32_t first_sequence, int processor) {
  return started(new GpuServer(*script, static_cast<Mailbox*>(mailbox), first_sequence, processor));
}

// Ends a server; returns how many handovers it served: one more than there are calls, if all have ended.
extern "C" int32_t pkb_finish_serving(void* handle) {
  Server* server = static_cast<Server*>(handle);
  const int32_t served = server->finish();
  delete server;
  return served;
}

extern "C" uint64_t pkb_mailbox_bytes() { return sizeof(Mailbox); }
