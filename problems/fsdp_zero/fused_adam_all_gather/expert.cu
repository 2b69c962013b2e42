// FusedAdamAllGather: one kernel updates the slice, and stores each updated vector to all ranks from its registers.
//
// What moves: gradient, parameters and both moments once from device memory, and the updated slice once to each rank's
// output. Small slices go as words that carry the number of the call, into scratch; larger ones straight into the
// outputs of peers whose call has begun (pkb/gather_made_cuda.h). Nothing is stored to be read again, where the baseline
// has ten kernels for the update alone. Adam is computed in float32 and rounded once (pkb/adam_cuda.h).
//
// Bound: link, W - 1 slices into each rank; on one rank memory, five slices. The reads of 8 bytes a parameter run beside
// the stores over the link, which take longer from W = 2 on.
//
// Left on the table: stores to peers move whole lines, but each is 16 bytes of a thread; bulk copies from shared memory
// would take fewer instructions. NVLink multicast would send each slice once.
#include "pkb/adam_cuda.h"
#include "pkb/gather_made_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

using T = __nv_bfloat16;

template <int kLanes>
struct UpdatedSlice {
  using Made = pkb::Packet<T, kLanes>;
  static constexpr int kMade = 1;
  uint32_t units;
  const T *gradient, *master, *moment, *square;
  T* out;
  pkb::Adam adam;

  __device__ void make(uint32_t unit, Made (&made)[kMade]) const {
    const uint64_t at = uint64_t(unit) * kLanes;
    const Made g = pkb::load_packet<T, kLanes>(gradient + at), x = pkb::load_packet<T, kLanes>(master + at);
    const Made m = pkb::load_packet<T, kLanes>(moment + at), v = pkb::load_packet<T, kLanes>(square + at);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      float mean = float(m.lanes[i]), mean_square = float(v.lanes[i]);
      made[0].lanes[i] = T(adam.update(float(x.lanes[i]), float(g.lanes[i]), mean, mean_square));
    }
  }

  __device__ Made* place(int rank, uint32_t unit, int) const {
    return reinterpret_cast<Made*>(out) + uint64_t(rank) * units + unit;
  }
};

template <int kLanes>
void launch(const TensorView& gradient, const TensorView& master, const TensorView& moment, const TensorView& square,
            const TensorView& out, const pkb::Adam& adam, const pkb::Comm& comm) {
  const auto of = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
  const auto units = uint32_t(gradient.numel() / kLanes);
  pkb::gather_made(UpdatedSlice<kLanes>{units, of(gradient), of(master), of(moment), of(square), of(out), adam}, comm);
}

}  // namespace

void solution(TensorView grad_shard, TensorView master_shard, TensorView exp_avg, TensorView exp_avg_sq, double lr,
              double beta1, double beta2, double eps, int64_t step, TensorView out, pkb::Comm comm) {
  if (grad_shard.dtype() != pkb::kDtype<T>) TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << grad_shard.dtype();
  const pkb::Adam adam = pkb::Adam::of(lr, beta1, beta2, eps, step);
  if (grad_shard.numel() % 8 == 0) launch<8>(grad_shard, master_shard, exp_avg, exp_avg_sq, out, adam, comm);
  else launch<1>(grad_shard, master_shard, exp_avg, exp_avg_sq, out, adam, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
