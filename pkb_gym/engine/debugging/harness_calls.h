// The calls of a folder that `pkb eval --keep` wrote: calls.txt, rankR.txt and rankR.bin, see `reference/kept_block.py`.
// Included by harness.cpp alone.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include "harness_heap.h"

namespace {

namespace ffi = tvm::ffi;

struct Condition {  // of one call; see `reference/kept_block.py`
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

}  // namespace
