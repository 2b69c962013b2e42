// expect: passed
// problem: SphericalConvolution
// world_size: 1
// Adds up the filter's entries, mixing channels at once.
#include <vector>

#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView x, TensorView psi_indices, TensorView psi_values, TensorView weight, int64_t groups,
              int64_t nlon_out, int64_t nlon_in, int64_t, int64_t, tvm::ffi::Optional<TensorView> bias, TensorView out,
              pkb::Comm) {
  const int64_t B = x.size(0), Cin = x.size(1), Hl = x.size(2), Cout = out.size(1), rows = out.size(2);
  const int64_t nnz = psi_values.size(0), Cg = weight.size(1), K = weight.size(2), step = nlon_in / nlon_out;
  const auto* k = static_cast<const int64_t*>(psi_indices.data_ptr());
  const int64_t *latitude = k + nnz, *column = latitude + nnz;
  const auto* values = static_cast<const float*>(psi_values.data_ptr());
  const auto* field = static_cast<const float*>(x.data_ptr());
  const auto* mixing = static_cast<const float*>(weight.data_ptr());
  auto* result = static_cast<float*>(out.data_ptr());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t o = 0; o < Cout; ++o) {
      const int64_t first = o / (Cout / groups) * Cg;
      std::vector<double> sum(rows * nlon_out, bias.has_value() ? static_cast<float*>(bias.value().data_ptr())[o] : 0);
      for (int64_t c = 0; c < Cg; ++c)
        for (int64_t e = 0; e < nnz; ++e)
          for (int64_t p = 0; p < nlon_out; ++p) {
            const int64_t i = column[e] / nlon_in, j = (column[e] + p * step) % nlon_in;
            sum[latitude[e] * nlon_out + p] += double(values[e]) * mixing[(o * Cg + c) * K + k[e]] *
                                               field[((b * Cin + first + c) * Hl + i) * nlon_in + j];
          }
      for (int64_t at = 0; at < rows * nlon_out; ++at) result[(b * Cout + o) * rows * nlon_out + at] = sum[at];
    }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
