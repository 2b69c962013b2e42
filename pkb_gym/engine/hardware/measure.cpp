// What one core, and all cores together, of this machine can do at best. Compiled and run once per machine by
// pkb_gym/engine/hardware/measure.py; prints one JSON object. Every figure is the best of several, because these are ceilings.
//
// usage: measure REPETITIONS CORES CACHE_BYTES...   (one core's view of each cache level, smallest first)

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLeastDram = 128 * kMiB, kMostDram = 1024 * kMiB;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Most of `amount` per second over `repetitions` timings, each of enough calls to last about 0.2 ms.
template <class Work>
double best_rate(double amount, int repetitions, Work work) {
  work();  // faults pages in, warms caches and clock
  double start = now();
  work();
  const int calls = std::clamp(static_cast<int>(2e-4 / std::max(now() - start, 1e-9)), 1, 100000);
  double best = 0;
  for (int i = 0; i < repetitions; ++i) {
    start = now();
    for (int call = 0; call < calls; ++call) work();
    best = std::max(best, amount * calls / (now() - start));
  }
  return best;
}

// ---- arithmetic ------------------------------------------------------------------------------------------------

constexpr int kSteps = 2000;

template <class T>
using Vector __attribute__((vector_size(kVectorBytes))) = T;

/// kFma chains of fused multiply-adds beside kAdd chains of additions. A function of its own, so that the compiler
/// keeps every chain in a register: inlined into the timing loop, they were spilled at each step.
template <class T, int kFma, int kAdd>
__attribute__((noinline)) void chains(Vector<T>* sum, Vector<T> scale, Vector<T> shift) {
  Vector<T> local[kFma + kAdd];
#pragma GCC unroll 16
  for (int i = 0; i < kFma + kAdd; ++i) local[i] = sum[i];
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kFma; ++i) local[i] = local[i] * scale + shift;
#pragma GCC unroll 16
    for (int i = kFma; i < kFma + kAdd; ++i) local[i] = local[i] + shift;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kFma + kAdd; ++i) sum[i] = local[i];
}

/// flop/s of one core. Additions may have ports of their own. 14 chains at most, so that 16 registers suffice.
template <class T, int kFma, int kAdd>
double arithmetic(int repetitions) {
  Vector<T> sum[kFma + kAdd] = {};
  constexpr double kFlops = double(kSteps) * (kVectorBytes / sizeof(T)) * (2 * kFma + kAdd);
  return best_rate(kFlops, repetitions, [&] {
    chains<T, kFma, kAdd>(sum, Vector<T>{} + T(0.5), Vector<T>{} + T(1));
    asm volatile("" : : "r"(sum) : "memory");
  });
}

template <class T>
double fused(int repetitions) {
  return std::max(arithmetic<T, 12, 0>(repetitions), arithmetic<T, 10, 0>(repetitions));
}

template <class T>
double mixed(int repetitions) {
  return std::max({fused<T>(repetitions), arithmetic<T, 8, 4>(repetitions), arithmetic<T, 7, 7>(repetitions)});
}

#if defined(__AVX512BF16__)
__attribute__((noinline)) void dot_chains(__m512* sum, __m512bh x, __m512bh y) {
  __m512 local[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) local[i] = sum[i];
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) local[i] = _mm512_dpbf16_ps(local[i], x, y);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sum[i] = local[i];
}

/// flop/s of one core by the instruction that multiplies pairs of bfloat16 and adds them to a float32.
double dot_bfloat16(int repetitions) {
  __m512 sum[16] = {};
  const auto one = (__m512bh)_mm512_set1_epi16(0x3f80);
  return best_rate(double(kSteps) * 16 * 16 * 4, repetitions, [&] {
    dot_chains(sum, one, one);
    asm volatile("" : : "r"(sum) : "memory");
  });
}
#endif

// ---- memory ----------------------------------------------------------------------------------------------------

void read_all(const char* source, std::size_t bytes) {
  using Word = Vector<std::uint64_t>;
  const auto* at = reinterpret_cast<const Word*>(source);
  Word sum[8] = {};
  for (std::size_t i = 0; i + 8 <= bytes / kVectorBytes; i += 8) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) sum[k] ^= at[i + k];
  }
  asm volatile("" : : "r"(sum) : "memory");
}

void copy_all(char* target, const char* source, std::size_t bytes) {
  using Word = Vector<std::uint64_t>;
  const auto* from = reinterpret_cast<const Word*>(source);
  auto* to = reinterpret_cast<Word*>(target);
  for (std::size_t i = 0; i + 4 <= bytes / kVectorBytes; i += 4) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) to[i + k] = from[i + k];
  }
  asm volatile("" : : "r"(target) : "memory");
}

/// bytes/s, reads and writes counted, of the best of reading, filling and two ways of copying within `bytes` bytes.
double traffic(char* memory, std::size_t bytes, int repetitions) {
  const std::size_t half = bytes / 2 / 1024 * 1024;
  char* upper = memory + half;
  return std::max({
      best_rate(double(half) * 2, repetitions, [=] { read_all(memory, half * 2); }),
      best_rate(double(half) * 2, repetitions, [=] { copy_all(upper, memory, half); }),
      best_rate(double(half) * 2, repetitions, [=] {
        std::memcpy(upper, memory, half);
        asm volatile("" : : "r"(upper) : "memory");
      }),
      best_rate(double(half) * 2, repetitions, [=] {
        std::memset(memory, 1, half * 2);
        asm volatile("" : : "r"(memory) : "memory");
      }),
  });
}

/// bytes/s of `cores` threads together, each in its own part.
double traffic_together(char* memory, std::size_t bytes, int cores, int repetitions) {
  const std::size_t part = bytes / cores / 2048 * 2048;
  std::atomic<int> ready{0};
  double best = 0;
  std::vector<double> start(cores), stop(cores);
  for (int kind = 0; kind < 3; ++kind) {
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      ready = 0;
      const auto work = [&](int core) {
        char* own = memory + core * part;
        const auto pass = [&] {
          if (kind == 0) read_all(own, part);
          if (kind == 1) std::memcpy(own + part / 2, own, part / 2);
          if (kind == 2) std::memset(own, kind, part);
          asm volatile("" : : "r"(own) : "memory");
        };
        pass();
        ++ready;
        while (ready < cores) std::this_thread::yield();
        start[core] = now();
        for (int i = 0; i < 3; ++i) pass();
        stop[core] = now();
      };
      std::vector<std::thread> threads;
      for (int core = 1; core < cores; ++core) threads.emplace_back(work, core);
      work(0);
      for (auto& thread : threads) thread.join();
      const double seconds =
          *std::max_element(stop.begin(), stop.end()) - *std::min_element(start.begin(), start.end());
      best = std::max(best, 3.0 * part * cores / seconds);
    }
  }
  return best;
}

// ---- between processes -----------------------------------------------------------------------------------------

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void pin(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

char* shared_memory(std::size_t bytes) {
  const int file = memfd_create("pkb-measure", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, bytes) != 0) std::exit(3);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  close(file);
  if (memory == MAP_FAILED) std::exit(3);
  return static_cast<char*>(memory);
}

/// bytes/s at which one process takes in (reads, or copies out) what another has just written on `writer_cpu`.
double link(std::size_t bytes, int writer_cpu, int repetitions) {
  char* shared = shared_memory(bytes);
  std::vector<char> private_copy(bytes + kVectorBytes);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(private_copy.data()) % kVectorBytes;
  char* target = private_copy.data() + (kVectorBytes - misaligned);
  int order[2], answer[2];
  if (pipe(order) != 0 || pipe(answer) != 0) std::exit(3);
  const pid_t writer = fork();
  if (writer < 0) std::exit(3);
  char token = 1;
  if (writer == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin({writer_cpu});
    close(order[1]);
    close(answer[0]);
    while (read(order[0], &token, 1) == 1) {
      std::memset(shared, token, bytes);
      if (write(answer[1], &token, 1) != 1) break;
    }
    _exit(0);
  }
  close(order[0]);
  close(answer[1]);
  double best = 0;
  for (int i = 0; i < 6 * repetitions; ++i) {
    token = static_cast<char>(i);
    if (write(order[1], &token, 1) != 1 || read(answer[0], &token, 1) != 1) std::exit(3);
    const double start = now();
    if (i % 2) {
      read_all(shared, bytes);
    } else {
      copy_all(target, shared, bytes);
    }
    best = std::max(best, bytes / (now() - start));
  }
  close(order[1]);
  close(answer[0]);
  waitpid(writer, nullptr, 0);
  munmap(shared, bytes);
  return best;
}

/// Seconds from one process setting a flag until another, spinning on `other_cpu`, has seen it.
double latency(int other_cpu, int repetitions) {
  constexpr int kTrips = 100;
  char* shared = shared_memory(8192);
  auto* ping = new (shared) std::atomic<int>(0);
  auto* pong = new (shared + 4096) std::atomic<int>(0);
  const int total = 1 + kTrips * 5 * repetitions;
  const pid_t other = fork();
  if (other < 0) std::exit(3);
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin({other_cpu});
    for (int trip = 1; trip <= total; ++trip) {
      while (ping->load(std::memory_order_acquire) != trip) {
      }
      pong->store(trip, std::memory_order_release);
    }
    _exit(0);
  }
  double best = 1;
  int trip = 0;
  const auto round_trip = [&] {
    ping->store(++trip, std::memory_order_release);
    while (pong->load(std::memory_order_acquire) != trip) {
    }
  };
  round_trip();
  while (trip < total) {
    const double start = now();
    for (int i = 0; i < kTrips; ++i) round_trip();
    best = std::min(best, (now() - start) / kTrips / 2);
  }
  waitpid(other, nullptr, 0);
  munmap(shared, 8192);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int repetitions = std::atoi(argv[1]), cores = std::atoi(argv[2]);
  std::vector<std::size_t> caches;
  for (int i = 3; i < argc; ++i) caches.push_back(std::strtoull(argv[i], nullptr, 10));

  const int many = 10 * repetitions;  // these take well under a millisecond each
  std::printf("{\"matrix\": {\"float32\": %.6g, \"float64\": %.6g", fused<float>(many), fused<double>(many));
#if defined(__AVX512BF16__)
  std::printf(", \"bfloat16\": %.6g", dot_bfloat16(many));
#endif
#if defined(__AVX512FP16__)
  std::printf(", \"float16\": %.6g", fused<_Float16>(many));
#endif
  std::printf("}, \"vector\": {\"float32\": %.6g, \"float64\": %.6g", mixed<float>(many), mixed<double>(many));
#if defined(__AVX512FP16__)
  std::printf(", \"float16\": %.6g", mixed<_Float16>(many));
#endif

  const std::size_t dram = std::clamp(3 * caches.back(), kLeastDram, kMostDram);
  auto* memory = static_cast<char*>(std::aligned_alloc(4096, dram));
  if (memory == nullptr) return 3;
  std::memset(memory, 1, dram);
  // Half a level, so that nothing of it is pushed out.
  std::printf("}, \"core_bytes_per_s\": [");
  for (std::size_t bytes : caches) {
    const int fewer = bytes > 4 * kMiB ? 5 : 1;
    std::printf("%.6g, ", traffic(memory, std::min(bytes, dram) / 2, many / fewer));
  }
  std::printf("%.6g], ", traffic(memory, dram / 2, repetitions));
  std::printf("\"dram_bytes_per_s\": %.6g, ", traffic_together(memory, dram, cores, repetitions));
  std::free(memory);

  const std::vector<int> cpus = allowed_cpus();
  pin({cpus.front()});
  double best_link = 0;
  for (std::size_t bytes : {kMiB / 16, kMiB / 4, kMiB, std::min(caches.back() / 4, 8 * kMiB)}) {
    bytes = bytes / 4096 * 4096;
    // Where there are more ranks than cores, a peer's data may well lie in the reader's own cache.
    for (int cpu : {cpus.front(), cpus[cpus.size() > 1], cpus.back()}) {
      best_link = std::max(best_link, link(bytes, cpu, repetitions));
    }
  }
  std::printf("\"link_bytes_per_s\": %.6g, \"link_latency_s\": ", best_link);
  if (cpus.size() > 1) {
    std::printf("%.6g}\n", std::min(latency(cpus[1], repetitions), latency(cpus.back(), repetitions)));
  } else {
    std::printf("null}\n");
  }
  return 0;
}
