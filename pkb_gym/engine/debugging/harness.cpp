// Runs the calls of a folder that `pkb eval --keep` wrote, without evaluator or sandbox: for gdb, cuda-gdb and sanitizers.
//
//     harness FOLDER LIBRARY HEAP RANK        one rank, as a process of its own; HEAP is a file that all ranks map
//     harness FOLDER LIBRARY HEAP threads     every rank as a thread of this process, each with a copy of LIBRARY
//
// FOLDER/calls.txt, FOLDER/rankR.txt and FOLDER/rankR.bin are described in `ranks/kept_block.py`. Status 0: every output
// is close to the expected one; 1: an output is not; 2: a call raised; anything else: it crashed, or a sanitizer ended it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "pkb/comm.h"

#ifdef PKB_CUDA
#include <cuda_runtime.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

namespace ffi = tvm::ffi;
using std::string;

constexpr int kPoison = 0xf5;  // what is not there yet, or no more
constexpr uint64_t kPage = 4096;
constexpr double kTolerance = 0.02, kLeast = 1e-5;  // of an element and of the root mean square: the rule decides
constexpr int64_t kMostShown = 3;

[[noreturn]] void fail(const string& what) { throw std::runtime_error(what); }

void sleep_us(uint64_t us) {
  const timespec nap{time_t(us / 1000000), long(us % 1000000 * 1000)};
  nanosleep(&nap, nullptr);
}

int device_index = 0;  // of this process's GPU

// ---- memory -------------------------------------------------------------------------------------------------------

// The first page of the heap file: where ranks meet.
struct Meeting {
  std::atomic<uint64_t> begun[pkb::kMaxRanks];  // meetings that a rank has come to
#ifdef PKB_CUDA
  cudaIpcMemHandle_t handles[pkb::kMaxRanks];
#endif

  void meet(int rank, int world_size) {
    const uint64_t count = begun[rank].load(std::memory_order_relaxed) + 1;
    begun[rank].store(count, std::memory_order_release);
    for (int r = 0; r < world_size; ++r) {
      while (begun[r].load(std::memory_order_acquire) < count) sleep_us(20);
    }
  }
};
static_assert(sizeof(Meeting) <= kPage);

#ifdef PKB_CUDA
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(string(what) + ": " + cudaGetErrorString(error));
}
#define CHECK(call) check((call), #call)
constexpr DLDeviceType kDeviceType = kDLCUDA;
void fill(void* to, int byte, uint64_t bytes) { CHECK(cudaMemset(to, byte, bytes)); }
void copy(void* to, const void* from, uint64_t bytes) { CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault)); }
void finish() { CHECK(cudaDeviceSynchronize()); }
#else
constexpr DLDeviceType kDeviceType = kDLCPU;
void fill(void* to, int byte, uint64_t bytes) { std::memset(to, byte, bytes); }
void copy(void* to, const void* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
void finish() {}
#endif

// The symmetric heap, as far as one process sees it: control pages in main memory, a segment for each rank.
struct Heap {
  Meeting* meeting;
  char* control;  // a page for each rank
  char* segments[pkb::kMaxRanks];
};

Heap map_heap(const char* path, int world_size, uint64_t segment_bytes) {
  const int fd = open(path, O_RDWR);
  if (fd < 0) fail(string("cannot open ") + path);
#ifdef PKB_CUDA
  const uint64_t bytes = kPage * (1 + world_size);
#else
  const uint64_t bytes = kPage * (1 + world_size) + segment_bytes * world_size;
#endif
  if (ftruncate(fd, off_t(bytes))) fail("the heap file cannot be made as large as the heap");
  char* base = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (base == MAP_FAILED) fail("the heap cannot be mapped");
  close(fd);
  Heap heap{reinterpret_cast<Meeting*>(base), base + kPage, {}};
#ifndef PKB_CUDA
  for (int r = 0; r < world_size; ++r) heap.segments[r] = base + kPage * (1 + world_size) + r * segment_bytes;
#endif
  return heap;
}

#ifdef PKB_CUDA
// Allocates the rank's own segment on its GPU (ranks share GPUs where there are fewer) and maps its peers'.
void share_segments(Heap& heap, int rank, int world_size, uint64_t segment_bytes) {
  int gpus = 0;
  CHECK(cudaGetDeviceCount(&gpus));
  device_index = rank % gpus;
  CHECK(cudaSetDevice(device_index));
  CHECK(cudaHostRegister(heap.control, kPage * world_size, cudaHostRegisterMapped));
  void* own = nullptr;
  CHECK(cudaMalloc(&own, segment_bytes));
  CHECK(cudaMemset(own, 0, segment_bytes));
  CHECK(cudaIpcGetMemHandle(&heap.meeting->handles[rank], own));
  CHECK(cudaDeviceSynchronize());
  heap.meeting->meet(rank, world_size);
  for (int r = 0; r < world_size; ++r) {
    void* segment = own;
    if (r != rank) {
      CHECK(cudaIpcOpenMemHandle(&segment, heap.meeting->handles[r], cudaIpcMemLazyEnablePeerAccess));
    }
    heap.segments[r] = static_cast<char*>(segment);
  }
}
#endif

// ---- the kept calls -----------------------------------------------------------------------------------------------

struct Condition {  // of one call; see `ranks/kept_block.py`
  int trial, together, late_rank;
  uint64_t delay_us;
  std::vector<uint64_t> holds_ns;
};

struct Plan {
  int world_size;
  uint64_t segment_bytes, scratch_offset, scratch_bytes, signal_offset;
  std::vector<Condition> calls;
};

string word(std::istream& in, const char* expected = nullptr) {
  string found;
  in >> found;
  if (!in) fail("a kept file ends too early");
  if (expected && found != expected) fail("a kept file has '" + found + "' for '" + expected + "'");
  return found;
}

template <typename T>
T number(std::istream& in) {
  T found{};
  in >> found;
  if (!in) fail("a kept file has a word for a number");
  return found;
}

std::ifstream opened(const string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("cannot read " + path);
  return in;
}

Plan read_plan(const string& folder) {
  std::ifstream in = opened(folder + "/calls.txt");
  word(in, "pkb-calls");
  if (number<int>(in) != 1) fail("calls.txt is of another version");
  Plan plan{};
  plan.world_size = number<int>(in);
  for (auto* field : {&plan.segment_bytes, &plan.scratch_offset, &plan.scratch_bytes, &plan.signal_offset}) {
    *field = number<uint64_t>(in);
  }
  plan.calls.resize(number<size_t>(in));
  for (auto& call : plan.calls) {
    call.trial = number<int>(in), call.together = number<int>(in), call.late_rank = number<int>(in);
    call.delay_us = number<uint64_t>(in);
    for (int r = 0; r < plan.world_size; ++r) call.holds_ns.push_back(number<uint64_t>(in));
  }
  return plan;
}

struct Slot {
  string name;
  uint64_t offset, bytes;
  DLDataType dtype;
  std::vector<int64_t> shape;
};

Slot read_slot(std::istream& in) {
  Slot slot;
  slot.name = word(in);
  slot.offset = number<uint64_t>(in), slot.bytes = number<uint64_t>(in);
  const int code = number<int>(in), bits = number<int>(in);
  slot.dtype = DLDataType{uint8_t(code), uint8_t(bits), 1};
  slot.shape.resize(number<size_t>(in));
  for (auto& length : slot.shape) length = number<int64_t>(in);
  return slot;
}

// Bytes that are there already.
struct Borrowed {
  void* data;
  void AllocData(DLTensor* tensor) { tensor->data = data; }
  void FreeData(DLTensor*) {}
};

ffi::Any read_argument(std::istream& in, char* segment) {
  const string kind = word(in);
  if (kind == "none") return ffi::Any(nullptr);
  if (kind == "int") return ffi::Any(number<int64_t>(in));
  if (kind == "bool") return ffi::Any(number<int>(in) != 0);
  if (kind == "float") return ffi::Any(std::strtod(word(in).c_str(), nullptr));
  if (kind == "text") {
    string text(number<size_t>(in), ' ');
    in.get();
    in.read(text.data(), std::streamsize(text.size()));
    return ffi::Any(ffi::String(text));
  }
  if (kind == "tensor") {
    const Slot slot = read_slot(in);
    const DLDevice device{kDeviceType, device_index};
    return ffi::Any(ffi::Tensor::FromNDAlloc(Borrowed{segment + slot.offset},
                                             ffi::ShapeView(slot.shape.data(), slot.shape.size()), slot.dtype, device));
  }
  if (kind != "list") fail("an argument of kind " + kind);
  ffi::Array<ffi::Any> list;
  for (auto left = number<size_t>(in); left; --left) list.push_back(read_argument(in, segment));
  return ffi::Any(list);
}

struct Call {
  std::vector<ffi::Any> arguments;
  std::vector<Slot> inputs, outputs;    // outputs with an offset of ~0 are returned
  std::vector<string> given, expected;  // their bytes
  uint64_t outputs_offset, end;         // the range that holds its outputs
};

struct Rank {
  std::vector<pkb::Group> groups;
  std::vector<Call> calls;
};

Rank read_rank(const string& folder, int rank, size_t calls, char* segment) {
  const string name = folder + "/rank" + std::to_string(rank);
  std::ifstream in = opened(name + ".txt"), data = opened(name + ".bin");
  Rank read;
  word(in, "groups");
  read.groups.resize(number<size_t>(in));
  for (auto& group : read.groups) {
    group.size = number<int32_t>(in), group.rank = number<int32_t>(in);
    for (int place = 0; place < group.size; ++place) group.ranks[place] = number<int32_t>(in);
  }
  for (size_t i = 0; i < calls; ++i) {
    Call call{};
    word(in, "call");
    call.outputs_offset = number<uint64_t>(in), call.end = number<uint64_t>(in);
    for (auto left = number<size_t>(in); left; --left) call.arguments.push_back(read_argument(in, segment));
    for (auto* slots : {&call.inputs, &call.outputs}) {
      for (auto left = number<size_t>(in); left; --left) {
        slots->push_back(read_slot(in));
        string bytes(slots->back().bytes, '\0');
        data.read(bytes.data(), std::streamsize(bytes.size()));
        if (!data) fail(name + ".bin ends too early");
        (slots == &call.inputs ? call.given : call.expected).push_back(std::move(bytes));
      }
    }
    read.calls.push_back(std::move(call));
  }
  return read;
}

// ---- comparison ---------------------------------------------------------------------------------------------------

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float half_of(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float size = exponent == 31  ? mantissa ? NAN : INFINITY
                     : exponent == 0 ? std::ldexp(float(mantissa), -24)
                                     : std::ldexp(float(mantissa + 1024), exponent - 25);
  return bits & 0x8000 ? -size : size;
}

// The real numbers of a tensor; of complex ones, real and imaginary parts in turn.
std::vector<double> numbers_of(const string& bytes, DLDataType dtype) {
  std::vector<double> numbers;
  const auto read = [&](auto example, auto convert) {
    for (size_t at = 0; at + sizeof example <= bytes.size(); at += sizeof example) {
      std::memcpy(&example, bytes.data() + at, sizeof example);
      numbers.push_back(double(convert(example)));
    }
  };
  const auto same = [](auto value) { return value; };
  const int real_bits = dtype.code == kDLComplex ? dtype.bits / 2 : dtype.bits;
  if (dtype.code == kDLBfloat) {
    read(uint16_t{}, [](uint16_t half) { return float_of(uint32_t(half) << 16); });
  } else if (dtype.code == kDLFloat && real_bits == 16) {
    read(uint16_t{}, half_of);
  } else if ((dtype.code == kDLFloat || dtype.code == kDLComplex) && real_bits == 32) {
    read(float{}, same);
  } else if ((dtype.code == kDLFloat || dtype.code == kDLComplex) && real_bits == 64) {
    read(double{}, same);
  } else if (dtype.code == kDLInt && real_bits == 64) {
    read(int64_t{}, same);
  } else if (dtype.code == kDLInt && real_bits == 32) {
    read(int32_t{}, same);
  } else {
    read(uint8_t{}, same);  // other kinds byte by byte
  }
  return numbers;
}

// Whether an output is close to the expected one; prints where it is not.
bool is_close(const Slot& slot, const string& got, const string& expected, int rank, int trial) {
  const std::vector<double> mine = numbers_of(got, slot.dtype), theirs = numbers_of(expected, slot.dtype);
  double squares = 0;
  for (double value : theirs) squares += std::isfinite(value) ? value * value : 0;
  const double scale = theirs.empty() ? 0 : std::sqrt(squares / double(theirs.size()));
  int64_t wrong = int64_t(mine.size() != theirs.size()), first = -1;
  string shown;
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i] == theirs[i] || (std::isnan(mine[i]) && std::isnan(theirs[i]))) continue;
    if (std::fabs(mine[i] - theirs[i]) <= kTolerance * (std::fabs(theirs[i]) + scale) + kLeast) continue;
    if (wrong < kMostShown) {
      std::ostringstream line;
      line << "\n    [" << i << "]: got " << mine[i] << ", expected " << theirs[i];
      shown += line.str();
    }
    if (first < 0) first = int64_t(i);
    ++wrong;
  }
  if (wrong) {
    std::printf("rank %d, trial %d, %s: %lld of %zu numbers differ%s\n", rank, trial, slot.name.c_str(),
                static_cast<long long>(wrong), theirs.size(), shown.c_str());
  }
  return !wrong;
}

string bytes_of(const void* from, uint64_t bytes) {
  string read(bytes, '\0');
  copy(read.data(), from, bytes);
  return read;
}

// ---- calls --------------------------------------------------------------------------------------------------------

bool is_real(DLDataType dtype) { return dtype.code == kDLFloat || dtype.code == kDLBfloat || dtype.code == kDLComplex; }

// Before and after its call an argument holds poison; numbers that may be indices are left as they are.
void poison(char* segment, const Call& call) {
  for (const Slot& slot : call.inputs) {
    if (is_real(slot.dtype)) fill(segment + slot.offset, kPoison, slot.bytes);
  }
}

#if defined(__SANITIZE_ADDRESS__)
// No rank may touch what lies between the tensors of all ranks.
void forbid_gaps(const Heap& heap, const Plan& plan, const string& folder) {
  for (int r = 0; r < plan.world_size; ++r) {
    const Rank rank = read_rank(folder, r, plan.calls.size(), heap.segments[r]);
    const uint64_t begin = plan.scratch_offset + plan.scratch_bytes;
    __asan_poison_memory_region(heap.segments[r] + begin, plan.segment_bytes - begin);
    for (const Call& call : rank.calls) {
      for (const auto* slots : {&call.inputs, &call.outputs}) {
        for (const Slot& slot : *slots) {
          if (slot.offset != ~uint64_t(0)) __asan_unpoison_memory_region(heap.segments[r] + slot.offset, slot.bytes);
        }
      }
    }
  }
}
#endif

std::vector<string> results_of(const Call& call, const ffi::Any& result, const char* segment) {
  std::vector<ffi::Tensor> returned;
  if (auto tensor = result.try_cast<ffi::Tensor>()) {
    returned.push_back(*tensor);
  } else if (auto several = result.try_cast<ffi::Array<ffi::Tensor>>()) {
    returned.assign(several->begin(), several->end());
  }
  std::vector<string> results;
  size_t next = 0;
  for (const Slot& slot : call.outputs) {
    if (slot.offset != ~uint64_t(0)) {
      results.push_back(bytes_of(segment + slot.offset, slot.bytes));
    } else if (next < returned.size()) {
      const ffi::Tensor& tensor = returned[next++];
      results.push_back(bytes_of(tensor.data_ptr(), ffi::GetDataSize(tensor)));
    } else {
      results.emplace_back();
    }
  }
  return results;
}

int run_rank(const string& folder, const string& library, Heap heap, const Plan& plan, int rank) {
#ifdef PKB_CUDA
  share_segments(heap, rank, plan.world_size, plan.segment_bytes);
#elif defined(__SANITIZE_ADDRESS__)
  forbid_gaps(heap, plan, folder);
#endif
  char* segment = heap.segments[rank];
  const Rank own = read_rank(folder, rank, plan.calls.size(), segment);
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(dlerror());
  const auto solution = reinterpret_cast<TVMFFISafeCallType>(dlsym(handle, "__tvm_ffi_solution"));
  if (!solution) fail("the library exports no `solution`");

  char* control = heap.control + kPage * rank;
  pkb::CommData comm{};
  comm.magic = pkb::kMagic, comm.version = pkb::kVersion;
  comm.rank = rank, comm.world_size = plan.world_size;
  comm.oversubscribed = unsigned(plan.world_size) > std::thread::hardware_concurrency();
  comm.segment_bytes = plan.segment_bytes, comm.signal_offset = plan.signal_offset;
  comm.scratch_offset = plan.scratch_offset, comm.scratch_bytes = plan.scratch_bytes;
  comm.place = reinterpret_cast<pkb::Place*>(control);
  comm.barrier_counts = reinterpret_cast<uint64_t*>(control + 128);
  std::copy(heap.segments, heap.segments + plan.world_size, comm.segments);
  comm.num_groups = int(own.groups.size());
  std::copy(own.groups.begin(), own.groups.end(), comm.groups);

  for (const Call& call : own.calls) {
    poison(segment, call);
    for (const Slot& slot : call.outputs) {
      if (slot.offset != ~uint64_t(0)) fill(segment + slot.offset, kPoison, slot.bytes);
    }
  }
  finish();
  heap.meeting->meet(rank, plan.world_size);

  bool right = true;
  for (size_t i = 0; i < own.calls.size(); ++i) {
    const Call& call = own.calls[i];
    const Condition& condition = plan.calls[i];
    if (condition.late_rank == rank) sleep_us(condition.delay_us);
    for (size_t k = 0; k < call.inputs.size(); ++k) {
      copy(segment + call.inputs[k].offset, call.given[k].data(), call.inputs[k].bytes);
    }
    finish();
    if (condition.together) heap.meeting->meet(rank, plan.world_size);
    comm.epoch = i + 1;
    comm.hold_ns = condition.holds_ns[rank];
    comm.place->call = i;

    std::vector<ffi::AnyView> views(call.arguments.begin(), call.arguments.end());
    views.push_back(ffi::AnyView(static_cast<void*>(&comm)));
    ffi::Any result;
    TVM_FFI_CHECK_SAFE_CALL(solution(nullptr, reinterpret_cast<const TVMFFIAny*>(views.data()), int(views.size()),
                                     reinterpret_cast<TVMFFIAny*>(&result)));
    finish();
    if (condition.together) heap.meeting->meet(rank, plan.world_size);
    const std::vector<string> results = results_of(call, result, segment);
    poison(segment, call);
    for (size_t k = 0; k < results.size(); ++k) {
      right &= is_close(call.outputs[k], results[k], call.expected[k], rank, condition.trial);
    }
  }
  heap.meeting->meet(rank, plan.world_size);
  return right ? 0 : 1;
}

// As `run_rank`, with errors in words.
int run_and_tell(const string& folder, const string& library, const Heap& heap, const Plan& plan, int rank) {
  try {
    return run_rank(folder, library, heap, plan, rank);
  } catch (const std::exception& error) {
    std::printf("rank %d: %s\n", rank, error.what());
    std::fflush(stdout);
    std::_Exit(2);  // the others would wait for it for ever
  }
}

// A copy of the library for each thread: every rank has static variables of its own.
string own_copy(const string& library, const string& heap, int rank) {
  const string path = heap + ".kernel-" + std::to_string(rank) + ".so";
  std::ofstream(path, std::ios::binary) << opened(library).rdbuf();
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: harness FOLDER LIBRARY HEAP RANK|threads\n");
    return 64;
  }
  const string folder = argv[1], library = argv[2], who = argv[4];
  int status = 0;
  try {
    const Plan plan = read_plan(folder);
    const Heap heap = map_heap(argv[3], plan.world_size, plan.segment_bytes);
    if (who != "threads") {
      status = run_and_tell(folder, library, heap, plan, std::atoi(who.c_str()));
    } else {
      std::vector<int> statuses(plan.world_size);
      std::vector<std::thread> ranks;
      for (int r = 0; r < plan.world_size; ++r) {
        const string copied = own_copy(library, argv[3], r);
        ranks.emplace_back([&, r, copied] { statuses[r] = run_and_tell(folder, copied, heap, plan, r); });
      }
      for (auto& rank : ranks) rank.join();
      status = *std::max_element(statuses.begin(), statuses.end());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 2;
  }
  std::fflush(stdout);
  return status;
}
