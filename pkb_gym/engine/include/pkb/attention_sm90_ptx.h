// Products of a warpgroup for pkb/attention_sm90.h and pkb/attention_backward_sm90.h, beside what
// pkb/gemm_sm90_ptx.h holds: both operands K-major in shared memory, and the left one in registers.
#pragma once

#include "pkb/gemm_sm90_ptx.h"

namespace pkb {
namespace attention {

// Sums are 64 rows by kCols columns of a warpgroup, kCols / 2 of a thread; one instruction has a depth of 16.
template <class T, int kCols>
struct Wgmma;

#define PKB_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define PKB_SUMS_16(i) PKB_SUMS_4(i), PKB_SUMS_4(i + 4), PKB_SUMS_4(i + 8), PKB_SUMS_4(i + 12)
#define PKB_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PKB_REGISTERS_64 \
  PKB_REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// by_rows: sums = (add ? sums : 0) + A B^T, with A (64, 16) and B (kCols, 16) as descriptors.
// from_registers: sums += A B, with A (64, 16) in registers, and B (16, kCols) as a descriptor, N-major.
#define PKB_WGMMA(T, type, kCols, registers, n0, n1, n2, n3, n4, n5, ...)                                          \
  template <>                                                                                                     \
  struct Wgmma<T, kCols> {                                                                                        \
    static __device__ __forceinline__ void by_rows(float (&sums)[kCols / 2], uint64_t a, uint64_t b, bool add) {  \
      asm volatile(                                                                                               \
          "{\n"                                                                                                   \
          ".reg .pred p;\n"                                                                                       \
          "setp.ne.b32 p, " n2 ", 0;\n"                                                                           \
          "wgmma.mma_async.sync.aligned.m64n" #kCols "k16.f32." type "." type " {" registers "}, " n0 ", " n1     \
          ", p, 1, 1, 0, 0;\n"                                                                                    \
          "}"                                                                                                     \
          : __VA_ARGS__                                                                                           \
          : "l"(a), "l"(b), "r"(int(add)));                                                                       \
    }                                                                                                             \
    static __device__ __forceinline__ void from_registers(float (&sums)[kCols / 2], uint32_t a0, uint32_t a1,     \
                                                          uint32_t a2, uint32_t a3, uint64_t b) {                 \
      asm volatile(                                                                                               \
          "{\n"                                                                                                   \
          ".reg .pred p;\n"                                                                                       \
          "setp.ne.b32 p, " n5 ", 0;\n"                                                                           \
          "wgmma.mma_async.sync.aligned.m64n" #kCols "k16.f32." type "." type " {" registers "}, {" n0 ", " n1    \
          ", " n2 ", " n3 "}, " n4 ", p, 1, 1, 1;\n"                                                              \
          "}"                                                                                                     \
          : __VA_ARGS__                                                                                           \
          : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));                                                  \
    }                                                                                                             \
  };
PKB_WGMMA(__nv_bfloat16, "bf16", 64, PKB_REGISTERS_32, "%32", "%33", "%34", "%35", "%36", "%37", PKB_SUMS_16(0),
          PKB_SUMS_16(16))
PKB_WGMMA(__half, "f16", 64, PKB_REGISTERS_32, "%32", "%33", "%34", "%35", "%36", "%37", PKB_SUMS_16(0),
          PKB_SUMS_16(16))
PKB_WGMMA(__nv_bfloat16, "bf16", 128, PKB_REGISTERS_64, "%64", "%65", "%66", "%67", "%68", "%69", PKB_SUMS_16(0),
          PKB_SUMS_16(16), PKB_SUMS_16(32), PKB_SUMS_16(48))
PKB_WGMMA(__half, "f16", 128, PKB_REGISTERS_64, "%64", "%65", "%66", "%67", "%68", "%69", PKB_SUMS_16(0),
          PKB_SUMS_16(16), PKB_SUMS_16(32), PKB_SUMS_16(48))
#undef PKB_WGMMA
#undef PKB_REGISTERS_64
#undef PKB_REGISTERS_32
#undef PKB_SUMS_16
#undef PKB_SUMS_4

// 2^x; 0 for -infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Matrices of kHead columns in shared memory lie as boxes of 64 columns, `rows` rows of 128 swizzled bytes each.
constexpr uint64_t kRowMajor = gemm::matrix_layout(16, 1024);  // for A, and for B of by_rows

// Descriptor of 16 columns from `column` on, of all rows from `row` on (a multiple of 8).
__device__ __forceinline__ uint64_t columns_at(uint32_t matrix, int rows, int row, int column) {
  return kRowMajor | gemm::matrix_start(matrix + column / 64 * rows * 128 + row * 128 + column % 64 * 2);
}

// Descriptor of 16 rows from `row` on, with all columns: B of from_registers.
__device__ __forceinline__ uint64_t rows_at(uint32_t matrix, int rows, int row) {
  return gemm::matrix_layout(uint64_t(rows) * 128, 1024) | gemm::matrix_start(matrix + row * 128);
}

// sums = A B^T, of 64 rows of A from `row` on and kCols rows of B; to be committed and waited for.
template <class T, int kCols, int kHead>
__device__ __forceinline__ void multiply_rows(float (&sums)[kCols / 2], uint32_t a, int rows_a, int row, uint32_t b,
                                              int rows_b) {
#pragma unroll
  for (int column = 0; column < kHead; column += 16) {
    Wgmma<T, kCols>::by_rows(sums, columns_at(a, rows_a, row, column), columns_at(b, rows_b, 0, column), column > 0);
  }
}

// sums += A B, with A (64, kDepth) as pack_rows() has left it and B kDepth rows of kCols columns.
template <class T, int kCols, int kDepth>
__device__ __forceinline__ void multiply_packed(float (&sums)[kCols / 2], const uint32_t (&a)[kDepth / 4], uint32_t b,
                                                int rows_b) {
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    Wgmma<T, kCols>::from_registers(sums, a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3],
                                    rows_at(b, rows_b, 16 * k));
  }
}

// Rounds sums (64, kCols) of a product to what the next one takes as its left operand.
template <class T, int kCols>
__device__ __forceinline__ void pack_rows(uint32_t (&packed)[kCols / 4], const float (&sums)[kCols / 2]) {
#pragma unroll
  for (int i = 0; i < kCols / 4; ++i) packed[i] = gemm::pack<T>(sums[2 * i], sums[2 * i + 1]);
}

// Keeps the compiler from reading sums before the wait that precedes this, or writing operands before it.
template <int kSums>
__device__ __forceinline__ void pin(float (&sums)[kSums]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}
template <int kWords>
__device__ __forceinline__ void pin(uint32_t (&words)[kWords]) {
#pragma unroll
  for (uint32_t& word : words) asm volatile("" : "+r"(word)::"memory");
}

// Arrives at a barrier of this block, by one thread.
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

}  // namespace attention
}  // namespace pkb
