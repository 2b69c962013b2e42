// Words that signal their own arrival: 4 bytes of data and a tag, moved by one 8-byte store, or 12 and a tag by one of 16
// bytes. Small messages between ranks need no other signal, and a crossing of the link less than data followed by a
// signal.
//
// With uint32_t(comm.epoch) as the tag, words are never reset: those of other calls have other tags (until 2^32 calls
// later), and zeros are no call's. So no other data may lie in a place of tagged words, in any call. A place may be
// written again once its reader has read what it waited for; a sign of that is any signal, or any tagged word, that the
// reader sends afterwards. Call comm.hold() before a kernel's first wait.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pkb {

// Stores a word, on any rank. One 8-byte access is never torn, and nothing else hangs on it: relaxed order is enough.
__device__ __forceinline__ void store_tagged(uint64_t* to, float value, uint32_t tag) {
  const uint64_t word = uint64_t(tag) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Waits for a word of this rank's memory that has the tag.
__device__ __forceinline__ float wait_tagged(const uint64_t* from, uint32_t tag) {
  uint64_t word;
  do {
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  } while (uint32_t(word >> 32) != tag);
  return __uint_as_float(uint32_t(word));
}

// Two words side by side, for 8 bytes of data in one access. Each of them signals its own arrival alone.
struct alignas(16) TaggedPair {
  uint64_t words[2];
};

__device__ __forceinline__ void store_tagged(TaggedPair* to, uint2 values, uint32_t tag) {
  const uint64_t high = uint64_t(tag) << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(high | values.x), "l"(high | values.y)
               : "memory");
}

__device__ __forceinline__ uint2 wait_tagged(const TaggedPair* from, uint32_t tag) {
  uint64_t x, y;
  do {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(from) : "memory");
  } while (uint32_t(x >> 32) != tag || uint32_t(y >> 32) != tag);
  return make_uint2(uint32_t(x), uint32_t(y));
}

// Three quarters of a word are data. One 16-byte access is not torn either, as one of type .b128 (PTX ISA 8.3, "ld").
struct alignas(16) TaggedTriple {
  uint64_t halves[2];
};

__device__ __forceinline__ void store_tagged(TaggedTriple* to, uint3 values, uint32_t tag) {
  asm volatile("{.reg .b128 word; mov.b128 word, {%1, %2}; st.relaxed.sys.global.b128 [%0], word;}" ::"l"(to),
               "l"(uint64_t(values.y) << 32 | values.x), "l"(uint64_t(tag) << 32 | values.z)
               : "memory");
}

// Waits for the first `count` of kWords words that are `step` apart; their loads are in flight together.
template <int kWords>
__device__ __forceinline__ void wait_tagged(const TaggedTriple* from, uint64_t step, int count, uint32_t tag,
                                            uint3 (&values)[kWords]) {
  uint64_t halves[kWords][2];
  bool come;
  do {
    come = true;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (k >= count) break;
      asm volatile("{.reg .b128 word; ld.relaxed.sys.global.b128 word, [%2]; mov.b128 {%0, %1}, word;}"
                   : "=l"(halves[k][0]), "=l"(halves[k][1])
                   : "l"(from + k * step)
                   : "memory");
    }
#pragma unroll
    for (int k = 0; k < kWords; ++k) come &= k >= count || uint32_t(halves[k][1] >> 32) == tag;
  } while (!come);
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    values[k] = make_uint3(uint32_t(halves[k][0]), uint32_t(halves[k][0] >> 32), uint32_t(halves[k][1]));
  }
}

}  // namespace pkb
