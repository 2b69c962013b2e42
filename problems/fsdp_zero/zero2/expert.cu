// ZeRO2: every rank differentiates on its rows, adds up the gradients of its slice, and stores the new parameters to all
// ranks from registers.
//
// What moves: rank 0's parameters come in once. Five products form the gradients (pkb/mlp_step_cuda.h), with bias,
// activation, loss and mask applied to sums in registers. Then a rank loads the gradients of its slice from all ranks,
// adds them up, applies Adam, and stores each new parameter to all ranks' outputs: reduce-scatter, update and all-gather
// are one kernel between two barriers, and no reduced gradient is stored.
//
// Bound: arithmetic, 2 n hid (2 d_in + 3 d_out) operations a rank, and the link: W - 1 of W parts of the gradients and of
// the new parameters into each rank, and the old ones into all but rank 0.
//
// Left on the table: nothing is overlapped. Gradients of W2 could be added up while those of W1 are formed; four
// transposes would not be needed by products that take operands in any order.
#include "pkb/mlp_step_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView X_local, TensorView y_local, TensorView W1, TensorView b1, TensorView W2, TensorView b2,
              TensorView exp_avg_part, TensorView exp_avg_sq_part, double lr, double beta1, double beta2, double eps,
              int64_t step, TensorView new_W1, TensorView new_b1, TensorView new_W2, TensorView new_b2,
              TensorView new_exp_avg_part, TensorView new_exp_avg_sq_part, pkb::Comm comm) {
  const auto of = [](const TensorView& tensor) { return static_cast<__nv_bfloat16*>(tensor.data_ptr()); };
  const pkb::mlp::Step training(X_local, y_local, W1.size(0), comm);
  pkb::mlp::Pieces pieces{{}, 0};
  for (const TensorView* tensor : {&W1, &b1, &W2, &b2}) {
    pieces.pieces[pieces.count++] = pkb::mlp::Piece{of(*tensor), 0, tensor->numel()};
  }
  training.fetch(pieces, comm);
  training.differentiate(comm);

  pkb::mlp::Slice slice{};
  slice.elements = exp_avg_part.numel();
  slice.first = comm.rank * slice.elements;
  slice.moment = of(exp_avg_part);
  slice.square = of(exp_avg_sq_part);
  slice.new_moment = of(new_exp_avg_part);
  slice.new_square = of(new_exp_avg_sq_part);
  slice.tensors[0] = of(new_W1);
  slice.tensors[1] = of(new_b1);
  slice.tensors[2] = of(new_W2);
  slice.tensors[3] = of(new_b2);
  slice.to_all = true;
  slice.adam = pkb::Adam::of(lr, beta1, beta2, eps, step);
  pkb::mlp::update_slices(training, slice, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
