// GatedDeltaNetCP: ranks trade positions for heads in one kernel, and each scans its heads with the state in
// registers.
//
// What moves: queries, keys, values, gates and strengths go to the scratch of the rank that owns their head, where
// they belong; results go from the scan straight to the outputs of the ranks that own the positions. A block of the
// scan holds some columns of a head's state in registers for the whole sequence (pkb/delta_rule_cuda.h), where the
// baseline launches four kernels a position, each of which reads or writes the state in memory.
//
// Bound: latency, one position of the whole sequence after another, some 200 cycles each; the problem's roofline is
// memory or the link.
//
// Left on the table: in chunks of positions most of the work is products for tensor cores, with one dependent step a
// chunk; keys and queries are loaded by each block of a head again, from the L2 cache.
#include "pkb/delta_rule_cuda.h"
#include "pkb/head_exchange_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

enum Tensors { kQueries, kKeys, kValues, kGates, kStrengths };

// Heads of this rank; a matrix in scratch has a row for each head, sample and position of the whole sequence.
struct Sizes {
  int samples, positions, query_heads, value_heads, ranks;  // positions of one rank

  __host__ __device__ int own_queries() const { return query_heads / ranks; }
  __host__ __device__ int own_values() const { return value_heads / ranks; }
  __host__ __device__ int length() const { return ranks * positions; }
};

struct Places {
  Sizes sizes;
  int rank;

  __device__ pkb::HeadPlace place(int tensor, uint32_t row, uint32_t head) const {
    const uint32_t own = tensor <= kKeys ? sizes.own_queries() : sizes.own_values();
    const uint32_t sample = row / sizes.positions, position = row - sample * sizes.positions;
    return {int(head / own), 1,
            (head % own * sizes.samples + sample) * sizes.length() + rank * sizes.positions + position};
  }
};

// An item is a value head and a sample.
template <class T>
struct Hooks {
  static constexpr bool kPerChannel = false;
  pkb::Device comm;
  Sizes sizes;
  const T* tensors[5];
  const T *a_log, *dt_bias;
  T* results;
  int K, D;
  bool is_gathered;

  __device__ const T* at(int tensor, int item, int heads, int share, int width) const {
    const int head = item / sizes.samples / share, sample = item % sizes.samples;
    const int64_t row = is_gathered ? (int64_t(head) * sizes.samples + sample) * sizes.length()
                                    : int64_t(sample) * sizes.positions * heads + head;
    return tensors[tensor] + row * width;
  }
  __device__ int share() const { return sizes.value_heads / sizes.query_heads; }
  __device__ const T* q(int item) const { return at(kQueries, item, sizes.query_heads, share(), K); }
  __device__ const T* k(int item) const { return at(kKeys, item, sizes.query_heads, share(), K); }
  __device__ const T* v(int item) const { return at(kValues, item, sizes.value_heads, 1, D); }
  __device__ const T* gate(int item) const { return at(kGates, item, sizes.value_heads, 1, 1); }
  __device__ const T* beta(int item) const { return at(kStrengths, item, sizes.value_heads, 1, 1); }

  __device__ float decay(int item, float gate, int) const {
    const int head = item / sizes.samples;
    const float x = gate + pkb::to_float(dt_bias[head]);
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    return expf(-expf(pkb::to_float(a_log[head])) * softplus);
  }
  __device__ float strength(float beta) const { return beta; }

  __device__ T* out(int item, int position) const {
    const int head = comm.rank * sizes.own_values() + item / sizes.samples, sample = item % sizes.samples;
    const int rank = position / sizes.positions;
    const int64_t row = int64_t(sample) * sizes.positions + position - rank * sizes.positions;
    return comm.peer(results + (row * sizes.value_heads + head) * D, rank);
  }
  __device__ void leave() const {
    if (is_gathered) comm.barrier_blocks(1);
  }
};

template <class T>
void scan(const TensorView* const (&tensors)[5], const TensorView& a_log, const TensorView& dt_bias,
          const TensorView& out, const pkb::Comm& comm) {
  const TensorView &q = *tensors[kQueries], &v = *tensors[kValues];
  const Sizes sizes{int(q.size(0)), int(q.size(1)), int(q.size(2)), int(v.size(2)), comm.world_size};
  Hooks<T> hooks;
  hooks.comm = comm.device();
  hooks.sizes = sizes;
  hooks.a_log = static_cast<const T*>(a_log.data_ptr());
  hooks.dt_bias = static_cast<const T*>(dt_bias.data_ptr());
  hooks.results = static_cast<T*>(out.data_ptr());
  hooks.K = int(q.size(3));
  hooks.D = int(v.size(3));
  hooks.is_gathered = comm.world_size > 1;

  const int widths[5] = {hooks.K, hooks.K, hooks.D, 1, 1};
  const int64_t rows = int64_t(sizes.samples) * sizes.positions;
  pkb::HeadExchange exchange;
  uint64_t offset = 0;
  for (int i = 0; i < 5; ++i) {
    hooks.tensors[i] = static_cast<const T*>(tensors[i]->data_ptr());
    if (!hooks.is_gathered) continue;
    const int heads = i <= kKeys ? sizes.query_heads : sizes.value_heads;
    const uint64_t bytes = uint64_t(widths[i]) * sizeof(T);
    exchange.add(tensors[i]->data_ptr(), rows, heads, bytes, heads * bytes, offset);
    hooks.tensors[i] = comm.scratch<T>(offset);
    offset += (uint64_t(rows) * heads * bytes + 255) / 256 * 256;
  }
  if (offset > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds no " << offset;
  }
  if (hooks.is_gathered) pkb::exchange_heads(exchange, Places{sizes, comm.rank}, 0, comm);

  const int heads_apart_q = hooks.is_gathered ? 1 : sizes.query_heads;
  const int heads_apart_v = hooks.is_gathered ? 1 : sizes.value_heads;
  pkb::DeltaRule rule;
  rule.items = sizes.own_values() * sizes.samples;
  rule.positions = sizes.length();
  rule.K = hooks.K;
  rule.D = hooks.D;
  rule.key_step = int64_t(heads_apart_q) * hooks.K;
  rule.value_step = int64_t(heads_apart_v) * hooks.D;
  rule.gate_step = rule.beta_step = heads_apart_v;
  rule.eps = 1e-6f;
  pkb::scan_delta_rule<T>(rule, hooks, rule.items, comm.cuda_stream());
}

}  // namespace

void solution(TensorView q, TensorView k, TensorView v, TensorView gate, TensorView beta, TensorView a_log,
              TensorView dt_bias, int64_t group, TensorView out, pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  if (q.size(2) % comm.world_size != 0 || v.size(2) % q.size(2) != 0) {
    TVM_FFI_THROW(ValueError) << q.size(2) << " and " << v.size(2) << " heads do not suit " << comm.world_size
                              << " ranks";
  }
  const TensorView* const tensors[5] = {&q, &k, &v, &gate, &beta};
  pkb::with_type<__nv_bfloat16, __half, float>(q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    scan<T>(tensors, a_log, dt_bias, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
