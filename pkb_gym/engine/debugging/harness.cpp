// Runs the calls of a folder that `pkb eval --keep` wrote, without evaluator or sandbox: for gdb, cuda-gdb and sanitizers.
//
//     harness FOLDER LIBRARY HEAP RANK        one rank, as a process of its own; HEAP is a file that all ranks map
//     harness FOLDER LIBRARY HEAP threads     every rank as a thread of this process, each with a copy of LIBRARY
//
// FOLDER/calls.txt, FOLDER/rankR.txt and FOLDER/rankR.bin are described in `reference/kept_block.py`. Status 0: every output
// is close to the expected one; 1: an output is not; 2: a call raised; anything else: it crashed, or a sanitizer ended it.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include "harness_calls.h"
#include "harness_comparison.h"
#include "harness_heap.h"
#include "pkb/comm.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

constexpr int kPoison = 0xf5;  // what is not there yet, or no more

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

string bytes_of(const void* from, uint64_t bytes) {
  string read(bytes, '\0');
  copy(read.data(), from, bytes);
  return read;
}

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

TVMFFISafeCallType load_solution(const string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(dlerror());
  const auto solution = reinterpret_cast<TVMFFISafeCallType>(dlsym(handle, "__tvm_ffi_solution"));
  if (!solution) fail("the library exports no `solution`");
  return solution;
}

pkb::CommData make_comm(const Heap& heap, const Plan& plan, const std::vector<pkb::Group>& groups, int rank) {
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
  comm.num_groups = int(groups.size());
  std::copy(groups.begin(), groups.end(), comm.groups);
  return comm;
}

ffi::Any call_solution(TVMFFISafeCallType solution, const Call& call, pkb::CommData& comm) {
  std::vector<ffi::AnyView> views(call.arguments.begin(), call.arguments.end());
  views.push_back(ffi::AnyView(static_cast<void*>(&comm)));
  ffi::Any result;
  TVM_FFI_CHECK_SAFE_CALL(solution(nullptr, reinterpret_cast<const TVMFFIAny*>(views.data()), int(views.size()),
                                   reinterpret_cast<TVMFFIAny*>(&result)));
  return result;
}

int run_rank(const string& folder, const string& library, Heap heap, const Plan& plan, int rank) {
#ifdef PKB_CUDA
  share_segments(heap, rank, plan.world_size, plan.segment_bytes);
#elif defined(__SANITIZE_ADDRESS__)
  forbid_gaps(heap, plan, folder);
#endif
  char* segment = heap.segments[rank];
  const Rank own = read_rank(folder, rank, plan.calls.size(), segment);
  const TVMFFISafeCallType solution = load_solution(library);
  pkb::CommData comm = make_comm(heap, plan, own.groups, rank);
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
    const ffi::Any result = call_solution(solution, call, comm);
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

// As `run_rank`; prints an error and ends the process.
int run_and_report(const string& folder, const string& library, const Heap& heap, const Plan& plan, int rank) {
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
      status = run_and_report(folder, library, heap, plan, std::atoi(who.c_str()));
    } else {
      std::vector<int> statuses(plan.world_size);
      std::vector<std::thread> ranks;
      for (int r = 0; r < plan.world_size; ++r) {
        const string copied = own_copy(library, argv[3], r);
        ranks.emplace_back([&, r, copied] { statuses[r] = run_and_report(folder, copied, heap, plan, r); });
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
