// What the GPUs of one machine reach at best, one process for all of them; prints one JSON object.
//
// Rates are in bytes/s or flop/s, latencies in seconds; each is the best of several repetitions, since noise only adds
// time. Several GPUs are timed by the host's clock, over milliseconds of work, from all idle to all idle.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "gpu_ceilings.cuh"

#define CHECK(call)                                                                                     \
  do {                                                                                                  \
    const cudaError_t status = (call);                                                                  \
    if (status != cudaSuccess) {                                                                        \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status));   \
      std::exit(1);                                                                                     \
    }                                                                                                   \
  } while (0)

namespace {

constexpr int REPETITIONS = 5;
constexpr int LINK_LOOPS = 16, MEMORY_LOOPS = 32;  // transfers that one repetition times, back to back
constexpr size_t MESSAGE = 256 << 20;              // bytes of one transfer between two GPUs
constexpr size_t L2_BYTES = 16 << 20;              // well within one half of an H200's L2
constexpr int L2_PASSES = 64;
constexpr int FMA_ROUNDS = 1 << 16, FMA_BLOCKS_PER_SM = 8;
constexpr int FEWEST_BLOCKS = 8;
constexpr int LAUNCHES = 500;  // fewer than a stream's queue holds, so that the host never waits

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Machine {
public:
  Machine() {
    CHECK(cudaGetDeviceCount(&gpus));
    gpus = std::min(gpus, MAX_GPUS);
    for (int d = 0; d < gpus; ++d) {
      CHECK(cudaSetDevice(d));
      for (int peer = 0; peer < gpus; ++peer)
        if (peer != d) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
      CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, d));
      bytes = MESSAGE * size_t(std::max(gpus, 4));
      CHECK(cudaMalloc(&source[d], bytes));
      CHECK(cudaMalloc(&target[d], bytes));
      CHECK(cudaMalloc(&flags.of[d], MAX_GPUS * SLOT * sizeof(uint64_t)));
      CHECK(cudaMemset(flags.of[d], 0, MAX_GPUS * SLOT * sizeof(uint64_t)));
      fill<<<sms * 4, THREADS>>>(reinterpret_cast<uint32_t*>(source[d]), bytes / 4, 7u + d);
      CHECK(cudaMemset(target[d], 0, bytes));
      for (int k = 0; k < gpus; ++k) CHECK(cudaStreamCreateWithFlags(&streams[d][k], cudaStreamNonBlocking));
      CHECK(cudaDeviceSynchronize());
    }
  }

  // Where GPU d keeps what is meant for, or comes from, GPU `peer`.
  char* outgoing(int d, int peer) const { return source[d] + peer * MESSAGE; }
  char* incoming(int d, int peer) const { return target[d] + peer * MESSAGE; }

  void synchronize() const {
    for (int d = 0; d < gpus; ++d) {
      CHECK(cudaSetDevice(d));
      CHECK(cudaDeviceSynchronize());
    }
  }

  // Least seconds of `work`, which enqueues on any GPU.
  template <class Work>
  double best(Work work) const {
    double least = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition <= REPETITIONS; ++repetition) {
      synchronize();
      const double began = now();
      work();
      CHECK(cudaGetLastError());
      synchronize();
      if (repetition > 0) least = std::min(least, now() - began);  // the first one warms up
    }
    return least;
  }

  int gpus = 0, sms = 0;
  size_t bytes = 0;
  char* source[MAX_GPUS] = {};
  char* target[MAX_GPUS] = {};
  Flags flags = {};
  cudaStream_t streams[MAX_GPUS][MAX_GPUS] = {};
};

enum Mechanism { COPY_ENGINE, PUSH, PULL };
constexpr const char* NAMES[] = {"copy_engine", "sm_push", "sm_pull"};

Part part_of(const Machine& m, int from, int to) {
  return {reinterpret_cast<uint4*>(m.incoming(to, from)), reinterpret_cast<const uint4*>(m.outgoing(from, to))};
}

// Bytes/s from one GPU to another while all others are idle.
double pair_rate(const Machine& m, Mechanism mechanism, int from, int to, int blocks) {
  const int worker = mechanism == PULL ? to : from;
  const double seconds = m.best([&] {
    CHECK(cudaSetDevice(worker));
    const Parts parts = {{part_of(m, from, to)}, 1};
    for (int loop = 0; loop < LINK_LOOPS; ++loop) {
      if (mechanism == COPY_ENGINE)
        CHECK(cudaMemcpyPeerAsync(
          m.incoming(to, from), to, m.outgoing(from, to), from, MESSAGE, m.streams[worker][0]));
      else
        copy<<<blocks, THREADS, 0, m.streams[worker][0]>>>(parts, MESSAGE / sizeof(uint4));
    }
  });
  return double(MESSAGE) * LINK_LOOPS / seconds;
}

// Bytes/s that each GPU sends while all send to all others.
double all_to_all_rate(const Machine& m, Mechanism mechanism) {
  const int peers = m.gpus - 1, blocks = m.sms * 2 / peers * peers;
  const double seconds = m.best([&] {
    for (int d = 0; d < m.gpus; ++d) {
      CHECK(cudaSetDevice(d));
      Parts parts = {{}, peers};
      for (int k = 1; k <= peers; ++k) {  // every GPU begins with another peer
        const int peer = (d + k) % m.gpus;
        parts.part[k - 1] = mechanism == PULL ? part_of(m, peer, d) : part_of(m, d, peer);
      }
      for (int loop = 0; loop < LINK_LOOPS; ++loop) {
        if (mechanism != COPY_ENGINE) {
          copy<<<blocks, THREADS, 0, m.streams[d][0]>>>(parts, MESSAGE / sizeof(uint4));
          continue;
        }
        for (int k = 1; k <= peers; ++k) {
          const int peer = (d + k) % m.gpus;
          CHECK(cudaMemcpyPeerAsync(
            m.incoming(peer, d), peer, m.outgoing(d, peer), d, MESSAGE, m.streams[d][peer]));
        }
      }
    }
  });
  return double(MESSAGE) * LINK_LOOPS * peers / seconds;
}

void print_memory(const Machine& m) {
  const int blocks = m.sms * 4;
  const Parts whole = {{{reinterpret_cast<uint4*>(m.target[0]), reinterpret_cast<const uint4*>(m.source[0])}}, 1};
  const auto* from = reinterpret_cast<const uint4*>(m.source[0]);
  auto* sink = reinterpret_cast<uint32_t*>(m.target[0]);
  const double kernel = m.best([&] {
    CHECK(cudaSetDevice(0));
    for (int loop = 0; loop < MEMORY_LOOPS; ++loop) copy<<<blocks, THREADS>>>(whole, m.bytes / sizeof(uint4));
  });
  const double library = m.best([&] {
    CHECK(cudaSetDevice(0));
    for (int loop = 0; loop < MEMORY_LOOPS; ++loop)
      CHECK(cudaMemcpyAsync(m.target[0], m.source[0], m.bytes, cudaMemcpyDeviceToDevice));
  });
  const double reading = m.best([&] {
    CHECK(cudaSetDevice(0));
    for (int loop = 0; loop < MEMORY_LOOPS; ++loop) read<<<blocks, THREADS>>>(from, m.bytes / sizeof(uint4), 1, sink);
  });
  const double cached = m.best([&] {
    CHECK(cudaSetDevice(0));
    for (int loop = 0; loop < MEMORY_LOOPS; ++loop)
      read<<<blocks, THREADS>>>(from, L2_BYTES / sizeof(uint4), L2_PASSES, sink);
  });
  const double moved = double(m.bytes) * MEMORY_LOOPS;
  std::printf("\"memory_bytes_per_s\": {\"copy_kernel\": %.6g, \"copy_library\": %.6g, \"read\": %.6g, ",
        2 * moved / kernel, 2 * moved / library, moved / reading);
  std::printf("\"read_l2\": %.6g},\n", double(L2_BYTES) * L2_PASSES * MEMORY_LOOPS / cached);
}

template <class T>
double vector_rate(const Machine& m, int lanes) {
  const int blocks = m.sms * FMA_BLOCKS_PER_SM;
  const double seconds = m.best([&] {
    CHECK(cudaSetDevice(0));
    multiply_adds<<<blocks, FMA_THREADS>>>(reinterpret_cast<T*>(m.target[0]), 0.999f, FMA_ROUNDS);
  });
  return 2.0 * lanes * CHAINS * FMA_ROUNDS * FMA_THREADS * blocks / seconds;
}

void print_vector(const Machine& m) {
  std::printf("\"vector_flops_per_s\": {\"bfloat16\": %.6g, \"float16\": %.6g, ", vector_rate<__nv_bfloat162>(m, 2),
        vector_rate<__half2>(m, 2));
  std::printf("\"float32\": %.6g, \"float64\": %.6g},\n", vector_rate<float>(m, 1), vector_rate<double>(m, 1));
}

void print_link(const Machine& m) {
  const int blocks = m.sms * 2;
  std::printf("\"link_bytes_per_s\": {\n");
  for (const Mechanism mechanism : {COPY_ENGINE, PUSH, PULL}) {
    std::printf(" \"%s\": {\"pairs\": [", NAMES[mechanism]);
    const char* separator = "";
    for (int from = 0; from < m.gpus; ++from)
      for (int to = 0; to < m.gpus; ++to) {
        if (from == to) continue;
        const double rate = pair_rate(m, mechanism, from, to, blocks);
        std::printf("%s{\"from\": %d, \"to\": %d, \"rate\": %.6g}", separator, from, to, rate);
        separator = ", ";
      }
    std::printf("], \"all_to_all_per_gpu\": %.6g", all_to_all_rate(m, mechanism));
    if (mechanism != COPY_ENGINE) {
      std::printf(", \"by_blocks\": {");
      separator = "";
      for (int few = FEWEST_BLOCKS; few <= m.sms * 4; few *= 2) {
        std::printf("%s\"%d\": %.6g", separator, few, pair_rate(m, mechanism, 0, 1, few));
        separator = ", ";
      }
      std::printf("}");
    }
    std::printf("}%s\n", mechanism == PULL ? "" : ",");
  }
  std::printf("},\n");
}

// Seconds from a store on one GPU until another one sees it: half of a round trip.
double signal_latency(const Machine& m, int one, int other, uint64_t* base) {
  const double seconds = m.best([&] {
    for (const int d : {other, one}) {
      const int peer = one + other - d;
      CHECK(cudaSetDevice(d));
      ping_pong<<<1, 1, 0, m.streams[d][0]>>>(
        m.flags.of[d] + peer * SLOT, m.flags.of[peer] + d * SLOT, *base, d == one);
    }
    *base += SIGNAL_ROUNDS;
  });
  return seconds / (2.0 * SIGNAL_ROUNDS);
}

double barrier_latency(const Machine& m, uint64_t* base) {
  const double seconds = m.best([&] {
    for (int d = 0; d < m.gpus; ++d) {
      CHECK(cudaSetDevice(d));
      barriers<<<1, 32, 0, m.streams[d][0]>>>(m.flags, d, m.gpus, *base);
    }
    *base += SIGNAL_ROUNDS;
  });
  return seconds / SIGNAL_ROUNDS;
}

void print_signals(const Machine& m) {
  uint64_t base = 0;  // flags only rise, so that none is ever reset
  std::printf("\"signal_latency_s\": [");
  const char* separator = "";
  for (int one = 0; one < m.gpus; ++one)
    for (int other = one + 1; other < m.gpus; ++other) {
      const double latency = signal_latency(m, one, other, &base);
      std::printf("%s{\"between\": [%d, %d], \"one_way\": %.6g}", separator, one, other, latency);
      separator = ", ";
    }
  std::printf("],\n\"barrier_s\": %.6g,\n", barrier_latency(m, &base));
}

void print_launches(const Machine& m) {
  CHECK(cudaSetDevice(0));
  cudaStream_t stream = m.streams[0][0];
  double enqueue = std::numeric_limits<double>::infinity();
  const double together = m.best([&] {
    CHECK(cudaSetDevice(0));
    const double began = now();
    for (int launch = 0; launch < LAUNCHES; ++launch) nothing<<<1, 32, 0, stream>>>();
    enqueue = std::min(enqueue, now() - began);
  });
  const double alone = m.best([&] {
    CHECK(cudaSetDevice(0));
    for (int launch = 0; launch < LAUNCHES; ++launch) {
      nothing<<<1, 32, 0, stream>>>();
      CHECK(cudaStreamSynchronize(stream));
    }
  });
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaSetDevice(0));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  nothing<<<1, 32, 0, stream>>>();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  const double replayed = m.best([&] {
    CHECK(cudaSetDevice(0));
    for (int launch = 0; launch < LAUNCHES; ++launch) CHECK(cudaGraphLaunch(executable, stream));
  });
  std::printf("\"launch_s\": {\"host\": %.6g, \"back_to_back\": %.6g, ", enqueue / LAUNCHES, together / LAUNCHES);
  std::printf("\"to_completion\": %.6g, \"graph\": %.6g},\n", alone / LAUNCHES, replayed / LAUNCHES);
}

}  // namespace

int main() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // loading a kernel must not wait for one that waits for it
  const Machine machine;
  std::printf("{\n");
  print_memory(machine);
  print_vector(machine);
  if (machine.gpus > 1) {
    print_link(machine);
    print_signals(machine);
  }
  print_launches(machine);
  std::printf("\"gpus\": %d\n}\n", machine.gpus);
  return 0;
}
