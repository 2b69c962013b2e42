// FSDPStep: every rank gathers the parameters, differentiates on its rows, and adds up and applies the gradients of its
// slice in one kernel.
//
// What moves: the slices of all ranks come in once, into memory that is kept. Five products form the gradients
// (pkb/mlp_step_cuda.h), with bias, activation, loss and mask applied to sums in registers. Then a rank loads the
// gradients of its slice from all ranks, adds them up, and applies Adam with decoupled decay where they are: no reduced
// gradient is stored. A kernel's waits for the ranks' beginning stand before the gathering, a barrier before the sums, and
// one at the end.
//
// Bound: arithmetic, 2 n hid (2 d_in + 3 d_out) operations a rank, and the link: W - 1 of W parts of the parameters and of
// the gradients into each rank.
//
// Left on the table: nothing is overlapped. W2 could come in while the first product runs, and gradients of W2 be added up
// while those of W1 are formed; four transposes would not be needed by products that take operands in any order.
#include "pkb/mlp_step_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Array;
using tvm::ffi::TensorView;

void solution(TensorView X_local, TensorView y_local, TensorView flat_param_shard,
              Array<Array<int64_t>> param_shapes, TensorView exp_avg_shard, TensorView exp_avg_sq_shard, double lr,
              double beta1, double beta2, double eps, double weight_decay, int64_t step, TensorView theta, TensorView m,
              TensorView v, pkb::Comm comm) {
  const auto of = [](const TensorView& tensor) { return static_cast<__nv_bfloat16*>(tensor.data_ptr()); };
  const pkb::mlp::Step training(X_local, y_local, param_shapes[0][0], comm);
  pkb::mlp::Pieces pieces{{}, comm.world_size};
  for (int r = 0; r < comm.world_size; ++r) {
    pieces.pieces[r] = pkb::mlp::Piece{of(flat_param_shard), r, flat_param_shard.numel()};
  }
  training.fetch(pieces, comm);
  training.differentiate(comm);

  pkb::mlp::Slice slice{};
  slice.elements = flat_param_shard.numel();
  slice.first = comm.rank * slice.elements;
  slice.moment = of(exp_avg_shard);
  slice.square = of(exp_avg_sq_shard);
  slice.new_moment = of(m);
  slice.new_square = of(v);
  slice.tensors[0] = of(theta);
  slice.adam = pkb::Adam::of(lr, beta1, beta2, eps, step, weight_decay);
  pkb::mlp::update_slices(training, slice, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
