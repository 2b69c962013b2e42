// GNNSparseFeatureFetch: one kernel pulls the rows that this rank asks for, and the tensor cores multiply them.
//
// What moves: the owner of a row, and its place there, follow from its id, so that nobody has to be asked: rows are
// loaded from the tables of their owners, 16 bytes a load and four in flight for each thread, into a matrix in the order of
// the ids, as soon as the owners' calls have begun. At the end each block tells the peers that it has read, and the product
// with this rank's matrix begins, when no other rank is needed any more.
//
// Bound: link, the rows of other ranks; on one rank memory, a read and a write of each row, and the product's read. The
// baseline sorts ids by owner, waits for counts on the host, and moves ids and rows by three collectives and two
// permutations.
//
// Left on the table: a row that is asked for twice comes in twice; the product, a quarter of the rows' time on the link, could
// begin with the first rows that are there.
#include "pkb/gemm_simt.h"
#include "pkb/gemm_sm90.h"
#include "pkb/ragged_cuda.h"

using pkb::gemm::Deep;
using pkb::gemm::Product;
using pkb::gemm::Small;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;

template <class Unit>
struct Fetch {
  const int64_t* ids;
  const Unit* table;  // this rank's rows
  Unit* rows;
  uint64_t count;     // of ids
  uint64_t of_rank;   // rows of the table of a rank
  uint32_t units;     // of a row
  bool narrow;        // ids have 32 bits
};

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    fetch_rows(const __grid_constant__ Fetch<Unit> g, const __grid_constant__ pkb::Device comm) {
  comm.signal_begun();
  comm.wait_all_begun();
  pkb::copy_rows<Unit>(
      g.count, g.units,
      [&](uint64_t i) {
        const auto id = uint64_t(g.ids[i]);
        const uint64_t owner = g.narrow ? uint32_t(id) / uint32_t(g.of_rank) : id / g.of_rank;
        return comm.peer(g.table, int(owner)) + (id - owner * g.of_rank) * g.units;
      },
      [&](uint64_t i) { return g.rows + i * g.units; }, blockIdx.x, gridDim.x);
  comm.barrier_blocks();  // this rank's table has been read
}

template <class Shape, class T>
void multiply(const T* rows, const T* matrix, T* out, int64_t count, int64_t depth, int64_t cols, cudaStream_t stream) {
  Product product = pkb::gemm::tiles<Shape>(count, cols, depth);
  product.a[0] = pkb::gemm::operand_map<T>(rows, count, depth, depth, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(matrix, depth, cols, cols, pkb::gemm::kBlockK);
  product.out[0] = pkb::gemm::operand_map<T>(out, count, cols, cols, pkb::gemm::kStoreRows);
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Plain(), stream);
}

template <class T>
void project(const T* rows, const T* matrix, T* out, int64_t count, int64_t depth, int64_t cols, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (pkb::gemm::fits(depth, cols, 1)) {
      if (pkb::gemm::is_large(count, cols)) return multiply<Deep>(rows, matrix, out, count, depth, cols, stream);
      return multiply<Small>(rows, matrix, out, count, depth, cols, stream);
    }
  }
  pkb::gemm::SimtProduct<T> product;
  product.a[0] = rows;
  product.b[0] = matrix;
  product.out[0] = out;
  product.rows = count;
  product.depth = product.a_stride = depth;
  product.cols = product.b_stride = product.out_stride = cols;
  pkb::gemm::launch_simt(product, stream);
}

}  // namespace

void solution(TensorView local_embedding_shard, TensorView input_node_ids, TensorView proj_matrix,
              int64_t num_total_nodes, int64_t group, TensorView out, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  const int64_t count = input_node_ids.size(0), depth = proj_matrix.size(0), cols = proj_matrix.size(1);
  pkb::with_type<__nv_bfloat16, __half, float>(proj_matrix.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* const rows = pkb::kept_memory<T>(std::max<int64_t>(count * depth, 1));
    pkb::with_unit(depth * sizeof(T), [&](auto wide) {
      using Unit = decltype(wide);
      Fetch<Unit> g{static_cast<const int64_t*>(input_node_ids.data_ptr()),
                    static_cast<const Unit*>(local_embedding_shard.data_ptr()), reinterpret_cast<Unit*>(rows), uint64_t(count)};
      g.of_rank = uint64_t((num_total_nodes + comm.world_size - 1) / comm.world_size);
      g.units = uint32_t(depth * sizeof(T) / sizeof(Unit));
      g.narrow = num_total_nodes <= INT32_MAX;
      fetch_rows<<<unsigned(pkb::max_blocks()), kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
      PKB_CUDA_LAUNCHED();
    });
    if (count == 0) return;
    project<T>(rows, static_cast<const T*>(proj_matrix.data_ptr()), static_cast<T*>(out.data_ptr()), count, depth, cols,
               comm.cuda_stream());
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
