// What the host asks and chooses before it launches a kernel. Answers are kept, so that calls cost next to nothing.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#endif

#include "pkb/symm.h"

namespace pkb {

inline int multiprocessors() {
  static const int count = [] {
    int device = 0, found = 0;
    PKB_CUDA(cudaGetDevice(&device));
    PKB_CUDA(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
    return found;
  }();
  return count;
}

// Lets a kernel have so many bytes of dynamic shared memory.
template <auto kKernel>
void allow_shared_memory(int bytes) {
  static int allowed = 0;
  if (bytes <= allowed) return;
  PKB_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  allowed = bytes;
}

// Blocks of a kernel, of kThreads threads and kSharedBytes of dynamic shared memory, that fit onto the GPU at a time.
// Blocks that wait for each other must be no more.
template <auto kKernel, int kThreads, int kSharedBytes>
int resident_blocks() {
  static const int blocks = [] {
    int per_multiprocessor = 0;
    allow_shared_memory<kKernel>(kSharedBytes);
    PKB_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    PKB_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kKernel, kThreads, kSharedBytes));
    return per_multiprocessor * multiprocessors();
  }();
  return blocks;
}

// Device memory that grows and is kept, for what no peer touches: scratch may be smaller. One buffer for each type.
// Smaller ones before it, at most twice its size together, are kept too: cudaFree waits for all kernels of the GPU, also
// for those of other streams that wait for this one.
template <class T>
T* kept_memory(int64_t elements) {
  static T* memory = nullptr;
  static int64_t held = 0;
  if (elements > held) {
    const int64_t grown = held + held / 2;
    held = elements > grown ? elements : grown;
    PKB_CUDA(cudaMalloc(&memory, held * sizeof(T)));
  }
  return memory;
}

template <class T>
inline constexpr DLDataType kDtype{};
template <>
inline constexpr DLDataType kDtype<__nv_bfloat16>{kDLBfloat, 16, 1};
template <>
inline constexpr DLDataType kDtype<__half>{kDLFloat, 16, 1};
template <>
inline constexpr DLDataType kDtype<float>{kDLFloat, 32, 1};
template <>
inline constexpr DLDataType kDtype<double>{kDLFloat, 64, 1};

// Names of dtypes in messages.
template <class... Types>
struct Dtypes {
  template <class Stream>
  friend Stream& operator<<(Stream& stream, Dtypes) {
    const char* separator = "";
    ((stream << separator << kDtype<Types>, separator = " or "), ...);
    return stream;
  }
};

// Calls f with a zero of that one of the types which tensors of this dtype are made of:
// with_type<__nv_bfloat16, float>(x.dtype(), [&](auto zero) { launch<decltype(zero)>(x); }).
template <class... Types, class F>
void with_type(DLDataType dtype, F f) {
  if (((dtype == kDtype<Types> && (f(Types{}), true)) || ...)) return;
  TVM_FFI_THROW(TypeError) << "expected " << Dtypes<Types...>{} << ", got " << dtype;
}

}  // namespace pkb
