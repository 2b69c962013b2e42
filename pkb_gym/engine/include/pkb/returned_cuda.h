// Results whose size depends on the data: device memory that is kept from call to call, and the numbers by which the
// host learns how much of it is the result.
//
//   static pkb::Returned rows;
//   static pkb::HostNumbers numbers(1);
//   ... a kernel writes numbers.data()[0], as the stream's first part of the call ...
//   numbers.record(stream);
//   ... a kernel fills rows.data() if rows.bytes() are enough, which it finds out itself ...
//   numbers.wait();                         // the second kernel runs on
//   if (rows.reserve(...)) ... the second kernel again ...
//   return rows.tensor({numbers.data()[0], width}, dtype, device);
//
// So the host waits for sizes alone, and room that an earlier call has made is enough for most later ones. Bound: the
// host's wait, some microseconds, beside which the second kernel runs. Needs the whole FFI: results are its tensors.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include <tvm/ffi/container/tensor.h>

#include "pkb/symm.h"

namespace pkb {

// Memory of one result; `static`. A result is taken before the next call begins on the stream.
class Returned {
 public:
  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

  // Makes room for so many bytes, half as many again; what the memory held is lost. Whether there was too little.
  // Smaller memory is kept, since cudaFree waits for all kernels of the GPU.
  bool reserve(uint64_t bytes) {
    if (bytes <= bytes_ && data_) return false;
    bytes_ = std::max<uint64_t>(bytes + bytes / 2, 4096);
    PKB_CUDA(cudaMalloc(&data_, bytes_));
    return true;
  }

  tvm::ffi::Tensor tensor(std::initializer_list<int64_t> shape, DLDataType dtype, DLDevice device) const {
    return borrowed(data_, tvm::ffi::ShapeView(shape.begin(), shape.size()), dtype, device);
  }

  // A result of memory that somebody else keeps.
  static tvm::ffi::Tensor borrowed(void* data, tvm::ffi::ShapeView shape, DLDataType dtype, DLDevice device) {
    return tvm::ffi::Tensor::FromNDAlloc(Borrowed{data}, shape, dtype, device);
  }

 private:
  struct Borrowed {
    void* data;
    void AllocData(DLTensor* tensor) { tensor->data = data; }
    void FreeData(DLTensor*) {}
  };

  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Numbers in memory of the host that kernels write; `static`.
class HostNumbers {
 public:
  explicit HostNumbers(int count) {
    PKB_CUDA(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(int64_t)));
    PKB_CUDA(cudaEventCreateWithFlags(&written_, cudaEventDisableTiming));
  }
  int64_t* data() const { return data_; }
  // What has been enqueued by now writes the numbers.
  void record(cudaStream_t stream) const { PKB_CUDA(cudaEventRecord(written_, stream)); }
  void wait() const { PKB_CUDA(cudaEventSynchronize(written_)); }

 private:
  int64_t* data_ = nullptr;
  cudaEvent_t written_ = nullptr;
};

}  // namespace pkb
