// Every rank gathers the whole matrix as float32, runs all iterations on it, and keeps its shard of the result.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <utility>
#include <vector>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

constexpr int kThreads = 256;

struct Coefficients {
  float a, b, c;
};

std::vector<Coefficients> table_of(const std::string& name) {
  if (name == "simple") return {{3.4445f, -4.7750f, 2.0315f}};
  if (name == "quintic") {
    return {{4.0848f, -6.8946f, 2.9270f}, {3.9505f, -6.3029f, 2.6377f}, {3.7418f, -5.5913f, 2.3037f},
            {2.8769f, -3.1427f, 1.2046f}, {2.8366f, -3.0525f, 1.2012f}};
  }
  if (name == "polar_express") {
    return {{8.2051f, -22.9019f, 16.4607f}, {4.0664f, -2.8612f, 0.5184f}, {3.9096f, -2.8234f, 0.5250f},
            {3.2856f, -2.4647f, 0.5074f},   {2.2779f, -1.6447f, 0.4162f}, {1.8726f, -1.2307f, 0.3585f},
            {1.8564f, -1.2132f, 0.3568f},   {1.8750f, -1.2500f, 0.3750f}};
  }
  if (name == "aol") {
    return {{4.0098f, -7.0585f, 2.4635f}, {3.4585f, -5.5479f, 2.5959f}, {2.7573f, -3.2939f, 1.4254f},
            {2.7215f, -3.0494f, 1.3169f}};
  }
  TVM_FFI_THROW(ValueError) << "no coefficients called " << name;
}

// Place of element (row, column) of this rank's columns in a shard, which may lie transposed.
__device__ int64_t place(int64_t row, int64_t column, int64_t m, int64_t part, bool is_transposed) {
  return is_transposed ? column * m + row : row * part + column;
}

template <class T>
__global__ void gather(const T* x, float* X, int64_t m, int64_t part, bool is_transposed, pkb::Group members,
                       pkb::Device comm) {
  const int64_t n = part * members.size, i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= m * n) return;
  const int64_t row = i / n, column = i % n;
  const T* theirs = comm.peer(x, members.ranks[column / part]);
  X[i] = float(theirs[place(row, column % part, m, part, is_transposed)]);
}

// One block.
__global__ void normalise(float* X, int64_t count) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += X[i] * X[i];
  sum = pkb::reduce_block<kThreads>(sum, [](float a, float b) { return a + b; });
  const float norm = fmaxf(sqrtf(sum), 1e-7f);
  for (int64_t i = threadIdx.x; i < count; i += kThreads) X[i] /= norm;
}

// out = alpha x y + beta added, or alpha x y^T, with out (rows, columns).
__global__ void multiply(const float* x, const float* y, bool is_transposed, const float* added, float* out,
                         int64_t rows, int64_t columns, int64_t depth, float alpha, float beta) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= rows * columns) return;
  const int64_t row = i / columns, column = i % columns;
  float sum = 0;
  for (int64_t k = 0; k < depth; ++k) {
    sum += x[row * depth + k] * (is_transposed ? y[column * depth + k] : y[k * columns + column]);
  }
  out[i] = alpha * sum + (added ? beta * added[i] : 0);
}

template <class T>
__global__ void keep_shard(const float* X, T* y, int64_t m, int64_t part, bool is_transposed, pkb::Group members) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= m * part) return;
  const int64_t row = i / part, column = i % part;
  const float value = X[row * part * members.size + members.rank * part + column];
  y[place(row, column, m, part, is_transposed)] = T(value);
}

void solution(
    tvm::ffi::TensorView x, int64_t steps, tvm::ffi::String coefficient_type, int64_t partition_dim, int64_t group,
    tvm::ffi::TensorView y, pkb::Comm comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const pkb::Group members = comm.group(group);
  const bool is_transposed = partition_dim == 0;
  const int64_t m = x.size(is_transposed ? 1 : 0), part = x.size(is_transposed ? 0 : 1), n = part * members.size;
  const std::vector<Coefficients> table = table_of(std::string(coefficient_type));
  const auto blocks = [](int64_t count) { return unsigned((count + kThreads - 1) / kThreads); };
  float *X = pkb::kept_memory<float>(2 * m * n + 2 * m * m), *next = X + m * n;
  float *gram = next + m * n, *polynomial = gram + m * m;
  pkb::with_type<__nv_bfloat16, __half, float>(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    comm.barrier();  // every rank's call has begun: its shard may be read
    if (m * n > 0) {
      gather<<<blocks(m * n), kThreads, 0, stream>>>(
          static_cast<const T*>(x.data_ptr()), X, m, part, is_transposed, members, comm.device());
      PKB_CUDA_LAUNCHED();
    }
    comm.barrier();  // every rank has read
    if (m * n == 0) return;
    normalise<<<1, kThreads, 0, stream>>>(X, m * n);
    for (int64_t step = 0; step < steps; ++step) {
      const Coefficients with = table[step % table.size()];
      multiply<<<blocks(m * m), kThreads, 0, stream>>>(X, X, true, nullptr, gram, m, m, n, 1, 0);
      multiply<<<blocks(m * m), kThreads, 0, stream>>>(gram, gram, false, gram, polynomial, m, m, m, with.c, with.b);
      multiply<<<blocks(m * n), kThreads, 0, stream>>>(polynomial, X, false, X, next, m, n, m, 1, with.a);
      std::swap(X, next);
    }
    keep_shard<<<blocks(m * part), kThreads, 0, stream>>>(
        X, static_cast<T*>(y.data_ptr()), m, part, is_transposed, members);
    PKB_CUDA_LAUNCHED();
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
