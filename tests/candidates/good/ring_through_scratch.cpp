// expect: passed
// problem: RingAttention
// world_size: 4
// until: time
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>
#include "pkb/bf16.h"
#include "pkb/symm.h"
using tvm::ffi::TensorView;
// K and V travel round the ring through double-buffered scratch: hop t of call e lies at [(e*(P-1)+t) % 2 slots].
void solution(TensorView q, TensorView k, TensorView v, tvm::ffi::Optional<double> scale, bool causal, int64_t group, TensorView out, pkb::Comm comm) {
  const pkb::Group g = comm.group(group);
  const int P = g.size, me = g.rank;
  const int64_t B = q.size(0), S = q.size(1), h = q.size(2), d = q.size(3), n = B * S * h * d;
  const float sc = scale.has_value() ? float(scale.value()) : 1.f / std::sqrt(float(d));
  const uint64_t slot = 2 * n * sizeof(pkb::bf16), most = comm.scratch_bytes / 32;  // fixed places whatever the shapes
  if (slot > most) TVM_FFI_THROW(ValueError) << "scratch";
  std::vector<float> O(n, 0.f), L(B * S * h, -std::numeric_limits<float>::infinity());
  auto block = [&](const pkb::bf16* kk, const pkb::bf16* vv, int from) {
    if (causal && from > me) return;
    auto* qq = static_cast<const pkb::bf16*>(q.data_ptr());
    std::vector<float> s(S);
    for (int64_t b = 0; b < B; ++b) for (int64_t i = 0; i < S; ++i) for (int64_t a = 0; a < h; ++a) {
      float m = -std::numeric_limits<float>::infinity();
      const int64_t keys = causal && from == me ? i + 1 : S;
      for (int64_t j = 0; j < keys; ++j) {
        float x = 0;
        for (int64_t c = 0; c < d; ++c) x += float(qq[((b * S + i) * h + a) * d + c]) * float(kk[((b * S + j) * h + a) * d + c]);
        s[j] = x * sc; m = std::max(m, s[j]);
      }
      float z = 0; for (int64_t j = 0; j < keys; ++j) z += s[j] = std::exp(s[j] - m);
      const float l = m + std::log(z); float& old = L[(b * S + i) * h + a];
      const float both = std::max(l, old) + std::log1p(std::exp(-std::fabs(l - old)));
      const float keep = std::isinf(old) ? 0.f : std::exp(old - both), add = std::isinf(old) ? 1.f / z : std::exp(l - both) / z;
      float* o = &O[((b * S + i) * h + a) * d];
      for (int64_t c = 0; c < d; ++c) { float x = 0; for (int64_t j = 0; j < keys; ++j) x += s[j] * float(vv[((b * S + j) * h + a) * d + c]); o[c] = o[c] * keep + add * x; }
      old = std::isinf(old) ? l : both;
    }
  };
  const int next = g.ranks[(me + 1) % P], prev = g.ranks[(me + P - 1) % P];
  // slot t of a call, own parity: 16 slots per parity
  auto box = [&](int t) { return comm.scratch<pkb::bf16>(((comm.epoch & 1) * 16 + t) * most); };
  const auto* ck = static_cast<const pkb::bf16*>(k.data_ptr()); const auto* cv = static_cast<const pkb::bf16*>(v.data_ptr());

  for (int t = 0; t < P; ++t) {
    if (t + 1 < P) {
      comm.put(box(t), ck, n * 2, next); comm.put(box(t) + n, cv, n * 2, next);
      comm.signal(100 + t * 16 + comm.rank, next);
    }
    block(ck, cv, (me - t + P) % P);
    if (t + 1 < P) { comm.wait(100 + t * 16 + prev); ck = box(t); cv = ck + n; }
  }
  auto* y = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < n; ++i) y[i] = pkb::bf16(O[i]);
  // a rank must not be two calls ahead of the next one: acknowledge to the one before, wait for the one after (of this call)
  comm.barrier();

}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
