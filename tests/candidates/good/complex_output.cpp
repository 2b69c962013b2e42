// expect: passed
// problem: DistributedRFFT
// The definition as it stands: every frequency is a sum over the columns of all ranks.
#include <algorithm>
#include <cmath>
#include <complex>
#include <string>

#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView x, tvm::ffi::Array<int64_t> s, tvm::ffi::Array<int64_t> dim, tvm::ffi::String norm, int64_t,
              TensorView y, pkb::Comm comm) {
  const int64_t axes = x.ndim(), d0 = (dim[0] + axes) % axes, d1 = (dim[1] + axes) % axes;
  const int64_t n0 = s[0], n1 = s[1], H = x.size(d0), Wl = x.size(d1), rows = y.size(d0);
  const std::string name = norm;
  const double n = double(n0) * n1, scale = name == "ortho" ? 1 / std::sqrt(n) : name == "forward" ? 1 / n : 1;
  // Neighbours along the two transformed axes and the third one, if any, in memory.
  int64_t x_step[3] = {0, 0, 0}, y_step[3] = {0, 0, 0}, batch = 1;
  for (int64_t axis = axes - 1, a = 1, b = 1; axis >= 0; a *= x.size(axis), b *= y.size(axis), --axis) {
    const int kind = axis == d0 ? 0 : axis == d1 ? 1 : 2;
    x_step[kind] = a, y_step[kind] = b;
    if (kind == 2) batch = x.size(axis);
  }
  auto* result = static_cast<std::complex<float>*>(y.data_ptr());
  comm.barrier();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t r0 = 0; r0 < rows; ++r0)
      for (int64_t k1 = 0; k1 <= n1 / 2; ++k1) {
        std::complex<double> sum = 0;
        for (int64_t h = 0; h < std::min(n0, H); ++h)
          for (int64_t w = 0; w < std::min(n1, Wl * comm.world_size); ++w) {
            const float* column = comm.peer<float>(x, w / Wl);
            const double turns = double((comm.rank * rows + r0) * h) / n0 + double(k1 * w) / n1;
            sum += std::polar(double(column[b * x_step[2] + h * x_step[0] + w % Wl * x_step[1]]), -2 * M_PI * turns);
          }
        result[b * y_step[2] + r0 * y_step[0] + k1 * y_step[1]] = std::complex<float>(scale * sum);
      }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
