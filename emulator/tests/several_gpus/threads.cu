// Programs with a thread for each GPU. The first argument names one, the second its mistake ("right": none).
#include <nccl.h>
#include <omp.h>
#include <pthread.h>
#include <semaphore.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#define CHECK(condition) if (!(condition)) std::printf("line %d: %s\n", __LINE__, cudaGetErrorName(cudaGetLastError())), std::exit(__LINE__ % 200 + 1)
#define CUDA(call) CHECK((call) == cudaSuccess)

const char* mistake = "right";
bool is(const char* name) { return std::strcmp(mistake, name) == 0; }

constexpr int kMost = 8, kCount = 32;
__global__ void fill(int* to, int value) { to[threadIdx.x] = value + int(threadIdx.x); }
__global__ void add(const int* from, int* to) { to[threadIdx.x] += from[threadIdx.x]; }
// A step of a stencil on a ring of GPUs: the outer cells go into the halos of the neighbours, too.
__global__ void step(const int* from, int* to, int* above, int* below) {
  const int x = int(threadIdx.x) + 1;
  const int value = from[x - 1] + from[x + 1];
  to[x] = value;
  if (x == 1) above[kCount + 1] = value;
  if (x == kCount) below[0] = value;
}

// ---- OpenMP: kernels that store into the memory of neighbours, and a barrier of the threads after each step ----

int openmp(int gpus) {
  constexpr int kSteps = 4;
  int *cells[2][kMost] = {}, results[kMost][kCount] = {};
#pragma omp parallel num_threads(gpus)
  {
    const int mine = omp_get_thread_num(), above = (mine + gpus - 1) % gpus, below = (mine + 1) % gpus;
    int initial[kCount + 2];
    CHECK(omp_get_num_threads() == gpus);
    CUDA(cudaSetDevice(mine));
    if (!is("peer") || mine != 1) {
      CUDA(cudaDeviceEnablePeerAccess(above, 0));
      if (above != below) CUDA(cudaDeviceEnablePeerAccess(below, 0));
    }
    for (int x = 0; x < kCount + 2; ++x) initial[x] = (mine * kCount + x - 1 + gpus * kCount) % (gpus * kCount) % 5;
    for (auto& each : cells) CUDA(cudaMalloc(&each[mine], sizeof initial));
    CUDA(cudaMemcpy(cells[0][mine], initial, sizeof initial, cudaMemcpyHostToDevice));
#pragma omp barrier
    for (int turn = 0; turn < kSteps; ++turn) {
      int* const* const to = cells[(turn + 1) % 2];
      step<<<1, kCount>>>(cells[turn % 2][mine], to[mine], to[above], to[below]);
      if (!is("synchronize")) CUDA(cudaDeviceSynchronize());
      if (!is("barrier")) {
#pragma omp barrier
      }
    }
    CUDA(cudaMemcpy(results[mine], cells[0][mine] + 1, sizeof results[mine], cudaMemcpyDeviceToHost));
#pragma omp critical
    CHECK(results[mine][3] >= 0);
#pragma omp single
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  std::vector<int> ring(size_t(gpus) * kCount), next = ring;
  const int length = gpus * kCount;
  for (int x = 0; x < length; ++x) ring[x] = x % 5;
  for (int turn = 0; turn < kSteps; ++turn) {
    for (int x = 0; x < length; ++x) next[x] = ring[(x + length - 1) % length] + ring[(x + 1) % length];
    std::swap(ring, next);
  }
  for (int x = 0; x < length && is("right"); ++x) CHECK(results[x / kCount][x % kCount] == ring[x]);
#pragma omp parallel num_threads(gpus)
  {
    int device = -1;  // a thread of the pool keeps its GPU
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == omp_get_thread_num());
  }
  return 0;
}

// ---- a copy that another thread's kernel waits for, in each of the ways by which threads wait ----

// A barrier of a mutex and a condition variable.
class Meeting {
 public:
  explicit Meeting(int members) : members_(members) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++come_ == members_) {
      come_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int members_;
  int come_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Each thread fills its own memory, then adds that of the next one to it, once all have filled and not before.
template <class Wait>
int rounds(int gpus, Wait wait) {
  int* own[kMost];
  std::vector<std::thread> threads;
  for (int i = 0; i < gpus; ++i) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaMalloc(&own[i], kCount * sizeof(int)));
  }
  for (int i = 0; i < gpus; ++i) {
    threads.emplace_back([&, i] {
      int *taken, found[kCount], device = -1;
      CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);  // of a new thread
      CUDA(cudaSetDevice(i));
      CUDA(cudaMalloc(&taken, sizeof found));
      fill<<<1, kCount>>>(own[i], 100 * i);
      if (!is("synchronize")) CUDA(cudaStreamSynchronize(nullptr));
      if (!is("wait")) wait();
      CUDA(cudaMemcpyPeerAsync(taken, i, own[(i + 1) % gpus], (i + 1) % gpus, sizeof found, nullptr));
      CUDA(cudaStreamSynchronize(nullptr));
      wait();
      add<<<1, kCount>>>(taken, own[i]);
      CUDA(cudaMemcpy(found, own[i], sizeof found, cudaMemcpyDeviceToHost));
      CHECK(!is("right") || found[7] == 14 + 100 * (i + (i + 1) % gpus));
      wait();
      CUDA(cudaFree(own[i]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

int condition(int gpus) {
  Meeting meeting(gpus);
  return rounds(gpus, [&] { meeting.wait(); });
}
int posix(int gpus) {
  pthread_barrier_t barrier;
  CHECK(pthread_barrier_init(&barrier, nullptr, unsigned(gpus)) == 0);
  const int status = rounds(gpus, [&] { pthread_barrier_wait(&barrier); });
  return status + pthread_barrier_destroy(&barrier);
}
int standard(int gpus) {
  std::barrier barrier(gpus);
  return rounds(gpus, [&] { barrier.arrive_and_wait(); });
}

// ---- a main thread that waits for others: by joining them, or for a future ----

int joined(int) {
  int *first, *second, found[kCount];
  CUDA(cudaMalloc(&first, sizeof found));
  CUDA(cudaMalloc(&second, sizeof found));
  CUDA(cudaMemset(second, 0, sizeof found));
  const auto work = [&](bool waits) {
    CUDA(cudaSetDevice(1));
    fill<<<1, kCount>>>(first, 3);  // on the other GPU, which has no access by itself
    if (waits) CUDA(cudaDeviceSynchronize());
    return 5;
  };
  std::thread([&] { CHECK(cudaSetDevice(1) == cudaSuccess && cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess); }).join();
  std::future<int> later = std::async(std::launch::async, work, !is("synchronize"));
  if (!is("future")) CHECK(later.get() == 5);
  add<<<1, kCount>>>(first, second);
  CUDA(cudaDeviceSynchronize());
  if (is("future")) later.wait();
  return 0;
}

// ---- a main thread that functions in a stream tell of the work before them ----

struct Told {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  std::atomic<bool> is_seen{false};
};
int callback(int) {
  Told told;
  int *first, *second;
  cudaStream_t stream;
  CUDA(cudaMalloc(&first, kCount * sizeof(int)));
  CUDA(cudaMalloc(&second, kCount * sizeof(int)));
  CUDA(cudaSetDevice(1));
  CUDA(cudaDeviceEnablePeerAccess(0, 0));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto tell = [](void* to) {
    Told& it = *static_cast<Told*>(to);
    const std::lock_guard<std::mutex> lock(it.mutex);
    it.is_over = true;
    it.changed.notify_one();
  };
  if (is("early")) CUDA(cudaLaunchHostFunc(stream, tell, &told));
  fill<<<1, kCount, 0, stream>>>(first, 3);
  if (!is("early")) CUDA(cudaLaunchHostFunc(stream, tell, &told));
  {
    std::unique_lock<std::mutex> lock(told.mutex);
    told.changed.wait(lock, [&] { return told.is_over; });
  }
  CUDA(cudaSetDevice(0));
  CUDA(cudaMemcpyAsync(second, first, kCount * sizeof(int), cudaMemcpyDeviceToDevice, nullptr));
  CUDA(cudaDeviceSynchronize());
  fill<<<1, kCount, 0, nullptr>>>(second, 4);
  CUDA(cudaLaunchHostFunc(nullptr, [](void* to) { static_cast<Told*>(to)->is_seen = true; }, &told));
  while (!told.is_seen) std::this_thread::yield();
  CUDA(cudaSetDevice(1));
  CUDA(cudaMemcpyAsync(first, second, kCount * sizeof(int), cudaMemcpyDeviceToDevice, stream));
  CUDA(cudaDeviceSynchronize());
  return 0;
}

// ---- NCCL with a communicator of each thread ----

int nccl(int gpus) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<std::thread> threads;
  for (int i = 0; i < gpus; ++i) {
    threads.emplace_back([=] {
      ncclComm_t comm;
      int *data, found[kCount];
      CUDA(cudaSetDevice(gpus - 1 - i));
      CHECK(ncclCommInitRank(&comm, gpus, id, i) == ncclSuccess);
      CUDA(cudaMalloc(&data, sizeof found));
      fill<<<1, kCount>>>(data, i);
      CHECK(ncclAllReduce(data, data, kCount, ncclInt, ncclMax, comm, nullptr) == ncclSuccess);
      if (!is("lacking") || i) CHECK(ncclAllReduce(data, data, kCount, ncclInt, ncclSum, comm, nullptr) == ncclSuccess);
      CUDA(cudaMemcpy(found, data, sizeof found, cudaMemcpyDeviceToHost));
      CHECK(!is("right") || found[2] == gpus * (gpus + 1));
      ncclCommDestroy(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// ---- threads of POSIX, with its locks, semaphores and waits with a limit ----

struct Posix {
  pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
  pthread_spinlock_t spin;
  sem_t filled;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  int* memory = nullptr;
  int spins = 0, reads = 0;
  bool is_over = false;
};
Posix posix_state;

void* posix_thread(void* number) {
  Posix& state = posix_state;
  const bool is_first = number == nullptr;
  int host[kCount];
  if (is_first) {
    pthread_rwlock_wrlock(&state.table);
    CUDA(cudaMalloc(&state.memory, sizeof host));
    fill<<<1, kCount>>>(state.memory, 7);
    if (!is("synchronize")) CUDA(cudaDeviceSynchronize());
    pthread_rwlock_unlock(&state.table);
    sem_post(&state.filled);
    sem_post(&state.filled);
  } else {
    sem_wait(&state.filled);
    pthread_rwlock_rdlock(&state.table);
    CUDA(cudaSetDevice(1));
    CUDA(cudaMemcpyAsync(host, state.memory, sizeof host, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    CUDA(cudaStreamSynchronize(cudaStreamPerThread));
    CHECK(is("synchronize") || host[3] == 10);
    pthread_rwlock_unlock(&state.table);
  }
  pthread_spin_lock(&state.spin);
  ++state.spins;
  pthread_spin_unlock(&state.spin);
  pthread_mutex_lock(&state.mutex);
  state.is_over = state.spins == 3;
  pthread_cond_broadcast(&state.changed);
  pthread_mutex_unlock(&state.mutex);
  pthread_exit(number);
}

int pthreads(int) {
  pthread_t threads[3];
  Posix& state = posix_state;
  pthread_spin_init(&state.spin, PTHREAD_PROCESS_PRIVATE);
  sem_init(&state.filled, 0, 0);
  for (size_t i = 0; i < 3; ++i) CHECK(pthread_create(&threads[i], nullptr, posix_thread, reinterpret_cast<void*>(i)) == 0);
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 100;
  pthread_mutex_lock(&state.mutex);
  while (!state.is_over) CHECK(pthread_cond_timedwait(&state.changed, &state.mutex, &until) == 0);
  CHECK(pthread_cond_timedwait(&state.changed, &state.mutex, &until) == (state.spins == 3 ? ETIMEDOUT : 0));
  pthread_mutex_unlock(&state.mutex);
  for (size_t i = 0; i < 3; ++i) {
    void* result;
    CHECK(pthread_join(threads[i], &result) == 0 && result == reinterpret_cast<void*>(i));
  }
  return 0;
}

// ---- loops of OpenMP whose threads take iterations as they come, sections, locks ----

int loops(int gpus) {
  constexpr int kTasks = 12;
  int owner[kTasks], sum = 0, sections = 0, copied = 0, *memory[kMost] = {};
  omp_lock_t lock;
  omp_init_lock(&lock);
#pragma omp parallel num_threads(gpus)
  {
    const int mine = omp_get_thread_num();
    CUDA(cudaSetDevice(mine));
    CUDA(cudaMalloc(&memory[mine], kCount * sizeof(int)));
#pragma omp for schedule(dynamic, 2)
    for (int task = 0; task < kTasks; ++task) {
      owner[task] = mine;
      fill<<<1, kCount>>>(memory[mine], task);
      CUDA(cudaDeviceSynchronize());
      omp_set_lock(&lock);
      sum += task;
      omp_unset_lock(&lock);
    }
    CHECK(sum == kTasks * (kTasks - 1) / 2);
#pragma omp for schedule(guided) reduction(+ : copied)
    for (int task = kTasks - 1; task >= 0; --task) copied += task;
#pragma omp sections reduction(+ : sections)
    {
#pragma omp section
      sections += 1;
#pragma omp section
      sections += 10;
    }
    int shared = 0;
#pragma omp single copyprivate(shared)
    shared = 42;
    CHECK(shared == 42 && sections == 11 && copied == sum);
  }
  omp_destroy_lock(&lock);
  int owners = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    bool has_any = false;
    for (const int each : owner) has_any = has_any || each == gpu;
    owners += has_any;
  }
  CHECK(owners > 1);
  int serial = 0;
#pragma omp parallel for schedule(dynamic) num_threads(2) reduction(+ : serial)
  for (int i = 0; i < 7; ++i) serial += i;
  return serial == 21 ? 0 : 2;
}

// ---- threads that end the run ----

int ends(int) {
  std::mutex mutex;
  std::condition_variable never;
  int* memory;
  CUDA(cudaMalloc(&memory, sizeof(int)));
  std::thread thread([&] {
    if (is("exit")) std::exit(9);
    if (is("touch")) *memory = 1;
    std::unique_lock<std::mutex> lock(mutex);
    if (is("condition")) never.wait(lock, [] { return false; });
    while (is("limit") && never.wait_for(lock, std::chrono::milliseconds(1)) != std::cv_status::timeout) {}
    if (is("mutex")) const std::lock_guard<std::mutex> again(mutex);
  });
  thread.join();
  return 0;
}

int main(int, char** arguments) {
  int gpus = 0;
  CUDA(cudaGetDeviceCount(&gpus));
  mistake = arguments[2];
  const std::pair<const char*, int (*)(int)> programs[] = {{"openmp", openmp}, {"condition", condition}, {"posix", posix}, {"standard", standard}, {"joined", joined}, {"callback", callback}, {"nccl", nccl}, {"pthreads", pthreads}, {"loops", loops}, {"ends", ends}};
  for (const auto& [name, program] : programs) {
    if (std::strcmp(arguments[1], name) == 0) return program(gpus);
  }
  return 250;
}
