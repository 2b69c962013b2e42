// RMSNorm of a row by a warp or a block, of elements that a function yields: what they are summed or dequantised from
// need not be stored first.
//
//   pkb::rms_norm<kLanes, kHeld>(team, pieces, columns, eps, [&](int piece, float (&x)[kLanes]) { ... },
//                                [&](int piece, const float (&x)[kLanes], float inverse) { ... });
//
// A row has `pieces` of kLanes elements, of which a thread holds kHeld in registers; beyond them they are asked for
// twice. Bound: memory, one read of what the function reads and one write of the row.
//
// Formula: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, equation 4, with eps under the
// root.
#pragma once

#include <cuda_runtime.h>

#include "pkb/teams_cuda.h"

namespace pkb {

// Calls value(piece, x), which must set all of x and leave zero what lies beyond the row, and then
// result(piece, x, 1 / sqrt(mean(x^2) + eps)) for every piece.
template <int kLanes, int kHeld, class Team, class Value, class Result>
__device__ __forceinline__ void rms_norm(const Team& team, int pieces, int columns, float eps, const Value& value,
                                         const Result& result) {
  float held[kHeld][kLanes], squares = 0.0f;
  const auto add = [&squares](const float(&x)[kLanes]) {
#pragma unroll
    for (float element : x) squares += element * element;
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int piece = team.thread() + j * team.threads();
    if (piece < pieces) {
      value(piece, held[j]);
      add(held[j]);
    }
  }
  const int rest = team.thread() + kHeld * team.threads();
  float x[kLanes];
  for (int piece = rest; piece < pieces; piece += team.threads()) {
    value(piece, x);
    add(x);
  }
  const float inverse = rsqrtf(team.sum(squares) / float(columns) + eps);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int piece = team.thread() + j * team.threads();
    if (piece < pieces) result(piece, held[j], inverse);
  }
  for (int piece = rest; piece < pieces; piece += team.threads()) {
    value(piece, x);
    result(piece, x, inverse);
  }
}

}  // namespace pkb
