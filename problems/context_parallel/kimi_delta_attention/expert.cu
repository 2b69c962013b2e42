// KimiDeltaAttention: ranks of a cp_group trade positions for heads, scan their heads with the state in registers, and
// the sum over a tp_group is taken where results are stored.
//
// What moves: queries, keys, values, gates and strengths go to the scratch of the rank of the cp_group that owns their
// head; results go from the scan to the ranks that own the positions: into their outputs, or, where a tp_group sums
// them, into scratch, from where each rank adds up its own and the others' in one pass. The baseline gathers
// everything on every rank, scans all heads there, and keeps its own positions: C times the work, in four kernels a
// position. A block of the scan holds some columns of a head's state in registers (pkb/delta_rule_cuda.h).
//
// Bound: latency, one position of the whole sequence after another, some 200 cycles each; the problem's roofline is
// memory or the link.
//
// Left on the table: in chunks of positions most of the work is products for tensor cores; with fewer heads than ranks
// some ranks have nothing to scan.
#include "pkb/delta_rule_cuda.h"
#include "pkb/head_exchange_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kTensors = 5;
constexpr float kLowerBound = -5.0f;  // of the log decay

template <class T>
struct Hooks {
  static constexpr bool kPerChannel = true;
  pkb::Device comm;
  pkb::HeadItems items;
  const T* tensors[kTensors];
  const T *a_log, *dt_bias;
  T* results;       // the output, or its place in scratch
  int64_t cp_group;
  int own, K, D;    // place in the cp_group
  bool is_gathered;

  __device__ const T* at(int tensor, int item, int width) const {
    const int64_t row = is_gathered ? int64_t(item) * items.length()
                                    : int64_t(item / items.heads) * items.positions * items.heads + item % items.heads;
    return tensors[tensor] + row * width;
  }
  __device__ const T* q(int item) const { return at(0, item, K); }
  __device__ const T* k(int item) const { return at(1, item, K); }
  __device__ const T* v(int item) const { return at(2, item, D); }
  __device__ const T* gate(int item) const { return at(3, item, K); }
  __device__ const T* beta(int item) const { return at(4, item, 1); }
  __device__ int head_of(int item) const { return (items.first_of(own) + item) % items.heads; }

  __device__ float decay(int item, float gate, int channel) const {
    const int head = head_of(item);
    const float x = expf(pkb::to_float(a_log[head])) * (gate + pkb::to_float(dt_bias[head * K + channel]));
    return expf(kLowerBound / (1.0f + expf(-x)));
  }
  __device__ float strength(float beta) const { return 1.0f / (1.0f + expf(-beta)); }

  __device__ T* out(int item, int position) const {
    const int sample = (items.first_of(own) + item) / items.heads, place = position / items.positions;
    const int64_t row = int64_t(sample) * items.positions + position - place * items.positions;
    return comm.peer(results + (row * items.heads + head_of(item)) * D, comm.group_member(cp_group, place));
  }
  // Ranks of a tp_group read the results of all cp_groups: all meet.
  __device__ void leave() const {
    if (comm.world_size > 1) comm.barrier_blocks(1);
  }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(pkb::kTransferThreads)
    add_parts(const T* parts, T* out, uint64_t count, int64_t tp_group, const __grid_constant__ pkb::Device comm) {
  pkb::add_up_packets<T, kLanes>(
      count, comm.group_size(tp_group), [&](int place) { return comm.peer(parts, comm.group_member(tp_group, place)); },
      1, [&](int) { return out; }, blockIdx.x, gridDim.x);
  comm.barrier_blocks(2);  // nobody writes parts of the next call before they have been read
}

template <class T>
void scan(const TensorView* const (&tensors)[kTensors], const TensorView& a_log, const TensorView& dt_bias,
          int64_t cp_group, int64_t tp_group, const TensorView& out, const pkb::Comm& comm) {
  const TensorView &q = *tensors[0], &v = *tensors[2];
  const int ranks = cp_group < 0 ? comm.world_size : comm.group(cp_group).size;
  const pkb::HeadItems items{int(q.size(0)), int(q.size(1)), int(q.size(2)), ranks};
  const bool sums = tp_group >= 0 && comm.group(tp_group).size > 1;
  Hooks<T> hooks;
  hooks.comm = comm.device();
  hooks.items = items;
  hooks.a_log = static_cast<const T*>(a_log.data_ptr());
  hooks.dt_bias = static_cast<const T*>(dt_bias.data_ptr());
  hooks.cp_group = cp_group;
  hooks.own = cp_group < 0 ? comm.rank : comm.group(cp_group).rank;
  hooks.K = int(q.size(3));
  hooks.D = int(v.size(3));
  hooks.is_gathered = ranks > 1;

  const int widths[kTensors] = {hooks.K, hooks.K, hooks.D, hooks.K, 1};
  const int64_t rows = int64_t(items.samples) * items.positions;
  pkb::HeadExchange exchange;
  uint64_t offset = sums ? (pkb::contiguous_bytes(out) + 255) / 256 * 256 : 0;
  hooks.results = sums ? comm.scratch<T>(0) : static_cast<T*>(out.data_ptr());
  for (int i = 0; i < kTensors; ++i) {
    hooks.tensors[i] = static_cast<const T*>(tensors[i]->data_ptr());
    if (!hooks.is_gathered) continue;
    const uint64_t bytes = uint64_t(widths[i]) * sizeof(T);
    exchange.add(tensors[i]->data_ptr(), rows, items.heads, bytes, items.heads * bytes, offset);
    hooks.tensors[i] = comm.scratch<T>(offset);
    offset += (uint64_t(items.most()) * items.length() * bytes + 255) / 256 * 256;
  }
  if (offset > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds no " << offset;
  }
  if (hooks.is_gathered) pkb::exchange_heads(exchange, pkb::ItemPlaces{items, hooks.own}, 0, comm, cp_group);

  const int heads_apart = hooks.is_gathered ? 1 : items.heads;
  pkb::DeltaRule rule;
  rule.items = items.owned_by(hooks.own);
  rule.positions = items.length();
  rule.K = hooks.K;
  rule.D = hooks.D;
  rule.key_step = rule.gate_step = int64_t(heads_apart) * hooks.K;
  rule.value_step = int64_t(heads_apart) * hooks.D;
  rule.beta_step = heads_apart;
  rule.eps = 1e-12f;
  pkb::scan_delta_rule<T>(rule, hooks, items.most(), comm.cuda_stream());

  if (sums) {
    const uint64_t count = uint64_t(out.numel());
    const unsigned blocks = pkb::blocks_for(count * sizeof(T), pkb::kSumTile);
    add_parts<T, pkb::kPerVector<T>><<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(
        hooks.results, static_cast<T*>(out.data_ptr()), count, tp_group, comm.device());
    PKB_CUDA_LAUNCHED();
  }
}

}  // namespace

void solution(TensorView q, TensorView k, TensorView v, TensorView g, TensorView beta, TensorView a_log,
              TensorView dt_bias, int64_t cp_group, int64_t tp_group, TensorView out, pkb::Comm comm) {
  const TensorView* const tensors[kTensors] = {&q, &k, &v, &g, &beta};
  pkb::with_type<__nv_bfloat16, __half, float>(q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    scan<T>(tensors, a_log, dt_bias, cp_group, tp_group, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
