// DDP: every rank differentiates on its rows and takes Adam's step for a slice of the parameters alone; new parameters
// and both moments go to all ranks from registers.
//
// What moves: rank 0's parameters come in once. Five products form the gradients (pkb/mlp_step_cuda.h), with bias,
// activation, loss and mask applied to sums in registers. Then a rank loads the gradients of its slice from all ranks,
// and that slice of rank 0's moments from where it lies, applies Adam, and stores the three results to all ranks'
// outputs, in one kernel between two barriers. The baseline broadcasts three states, reduces whole gradients, and has
// every rank repeat the same step.
//
// Bound: arithmetic, 2 n hid (2 d_in + 3 d_out) operations a rank, and the link: a whole state into each rank but rank
// 0, and W - 1 of W parts of the gradients and of three states into each rank.
//
// Left on the table: nothing is overlapped. Moments could come in while products run; four transposes would not be
// needed by products that take operands in any order.
#include "pkb/mlp_step_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

using T = __nv_bfloat16;
constexpr int kThreads = pkb::kTransferThreads;
enum State { kParameter, kMoment, kSquare, kStates };

struct Globals {
  const T *gradients, *parameters;  // flat
  const T* from[kStates][4];        // moments by tensor, of which rank 0's count; parameters have been fetched
  T* to[kStates][4];                // results by tensor, on all ranks
  int64_t ends[4];                  // of the tensors, in flat order
  int64_t first, end;               // of this rank's slice
  pkb::Adam adam;
};

template <int kLanes>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    update(const __grid_constant__ Globals g, const __grid_constant__ pkb::Device comm) {
  using Values = pkb::Packet<T, kLanes>;
  const int W = comm.world_size;
  const int64_t step = int64_t(gridDim.x) * kThreads * kLanes;
  for (int64_t at = g.first + (blockIdx.x * int64_t(kThreads) + threadIdx.x) * kLanes; at < g.end; at += step) {
    int tensor = 0;
    while (at >= g.ends[tensor]) ++tensor;
    const int64_t i = at - (tensor ? g.ends[tensor - 1] : 0);
    Values values[kStates];
    values[kParameter] = pkb::load_packet<T, kLanes>(g.parameters + at);
    for (int state : {kMoment, kSquare}) {
      values[state] = pkb::load_packet<T, kLanes>(comm.peer(g.from[state][tensor], 0) + i);
    }
    float sums[kLanes] = {};
#pragma unroll 4
    for (int r = 0; r < W; ++r) {
      const Values of_rank = pkb::load_packet<T, kLanes>(comm.peer(g.gradients, r) + at);
#pragma unroll
      for (int e = 0; e < kLanes; ++e) sums[e] += pkb::to_float(of_rank.lanes[e]);
    }
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      float moment = pkb::to_float(values[kMoment].lanes[e]), square = pkb::to_float(values[kSquare].lanes[e]);
      const float parameter = pkb::to_float(values[kParameter].lanes[e]);
      values[kParameter].lanes[e] = T(g.adam.update(parameter, sums[e] / float(W), moment, square));
      values[kMoment].lanes[e] = T(moment);
      values[kSquare].lanes[e] = T(square);
    }
#pragma unroll 1
    for (int k = 0; k < W; ++k) {
      const int r = (comm.rank + k) % W;
#pragma unroll
      for (int state = 0; state < kStates; ++state) {
        pkb::store_packet(comm.peer(g.to[state][tensor], r) + i, values[state]);
      }
    }
  }
}

// Each rank a slice of the parameters, in units that one access moves.
template <int kLanes>
void launch(Globals g, int64_t parameters, const pkb::Comm& comm) {
  const int64_t units = parameters / kLanes;
  g.first = units * comm.rank / comm.world_size * kLanes;
  g.end = units * (comm.rank + 1) / comm.world_size * kLanes;
  if (comm.world_size > 1) comm.barrier();  // gradients are there, and outputs may be written
  const unsigned blocks = pkb::blocks_for(g.end - g.first, uint64_t(kThreads) * kLanes);
  update<kLanes><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
  if (comm.world_size > 1) comm.barrier();
}

}  // namespace

void solution(TensorView X_local, TensorView y_local, TensorView W1, TensorView b1, TensorView W2, TensorView b2,
              TensorView exp_avg_W1, TensorView exp_avg_b1, TensorView exp_avg_W2, TensorView exp_avg_b2,
              TensorView exp_avg_sq_W1, TensorView exp_avg_sq_b1, TensorView exp_avg_sq_W2, TensorView exp_avg_sq_b2,
              double lr, double beta1, double beta2, double eps, int64_t step, TensorView new_W1, TensorView new_b1,
              TensorView new_W2, TensorView new_b2, TensorView new_exp_avg_W1, TensorView new_exp_avg_b1,
              TensorView new_exp_avg_W2, TensorView new_exp_avg_b2, TensorView new_exp_avg_sq_W1,
              TensorView new_exp_avg_sq_b1, TensorView new_exp_avg_sq_W2, TensorView new_exp_avg_sq_b2,
              pkb::Comm comm) {
  const TensorView* from[kStates][4] = {{&W1, &b1, &W2, &b2},
                                        {&exp_avg_W1, &exp_avg_b1, &exp_avg_W2, &exp_avg_b2},
                                        {&exp_avg_sq_W1, &exp_avg_sq_b1, &exp_avg_sq_W2, &exp_avg_sq_b2}};
  const TensorView* to[kStates][4] = {{&new_W1, &new_b1, &new_W2, &new_b2},
                                      {&new_exp_avg_W1, &new_exp_avg_b1, &new_exp_avg_W2, &new_exp_avg_b2},
                                      {&new_exp_avg_sq_W1, &new_exp_avg_sq_b1, &new_exp_avg_sq_W2, &new_exp_avg_sq_b2}};
  const auto of = [](const TensorView& tensor) { return static_cast<T*>(tensor.data_ptr()); };
  const pkb::mlp::Step training(X_local, y_local, W1.size(0), comm);
  pkb::mlp::Pieces pieces{{}, 0};
  for (const TensorView* tensor : from[kParameter]) {
    pieces.pieces[pieces.count++] = pkb::mlp::Piece{of(*tensor), 0, tensor->numel()};
  }
  training.fetch(pieces, comm);
  training.differentiate(comm);

  Globals g{};
  g.gradients = training.gradients;
  g.parameters = training.flat;
  for (int state = 0; state < kStates; ++state) {
    for (int i = 0; i < 4; ++i) {
      g.from[state][i] = of(*from[state][i]);
      g.to[state][i] = of(*to[state][i]);
    }
  }
  const int64_t ends[] = {training.b1(), training.W2(), training.b2(), training.parameters()};
  std::copy(ends, ends + 4, g.ends);
  g.adam = pkb::Adam::of(lr, beta1, beta2, eps, step);
  const bool is_whole = training.d_in % 8 == 0 && training.hid % 8 == 0 && training.d_out % 8 == 0;
  if (is_whole) launch<8>(g, training.parameters(), comm);
  else launch<1>(g, training.parameters(), comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
