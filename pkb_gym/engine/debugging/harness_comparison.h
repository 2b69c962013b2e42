// Whether outputs are close to the expected ones: a coarse comparison, as the rules of problems are in Python.
// Included by harness.cpp alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "harness_calls.h"

namespace {

constexpr double kTolerance = 0.02, kLeast = 1e-5;  // of an element and of the root mean square: the rule decides
constexpr int64_t kMostShown = 3;

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

}  // namespace
