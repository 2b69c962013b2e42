// Arithmetic on 32 lanes at once: functions of whole registers, without control, memory or predication.
//
// A register of n bytes a lane is an array of 32 values; a predicate is a mask of 32 bits. A result may be the very
// register of an operand, and overlaps none otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ptx_module.h"

namespace pkb::emulator {

using LaneFunction = void (*)(void* result, const void* a, const void* b, const void* c);
using CompareFunction = uint32_t (*)(const void* a, const void* b);

// Bytes a lane; a predicate counts as 0 bytes.
struct LaneOperation {
  LaneFunction run;
  uint8_t result_bytes;
  uint8_t operands;
  uint8_t operand_bytes[3];
  // If not 0: the third operand is this number, of 8 bytes, in every lane (a description that the function reads).
  uint64_t constant = 0;
};

struct Comparison {
  CompareFunction run;
  uint8_t operand_bytes;
};

// The operation of an instruction; none: it is not one of these.
std::optional<LaneOperation> find_integer(const Instruction& instruction);
std::optional<LaneOperation> find_bits(const Instruction& instruction);
std::optional<LaneOperation> find_float(const Instruction& instruction);
std::optional<LaneOperation> find_half(const Instruction& instruction);
std::optional<LaneOperation> find_approximation(const Instruction& instruction);
// Arithmetic of a rounding mode other than to nearest even.
std::optional<LaneOperation> find_directed(const Instruction& instruction);
// cvt; registers may be wider than the types, so their widths in bytes are given.
std::optional<LaneOperation> find_conversion(const Instruction& instruction, int result_bytes, int source_bytes);
// Of setp: comparison `name` ("lt") of `type` ("f32").
std::optional<Comparison> find_comparison(std::string_view name, std::string_view type, bool ftz);

}  // namespace pkb::emulator
