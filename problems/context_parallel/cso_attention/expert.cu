// CSOAttention: ranks trade tokens for heads in one kernel, and each computes flash attention of its heads in all
// ranges.
//
// What moves: queries go to the rank that owns their head, keys and values to the ranks that own the heads which use
// them, straight to the places of the gathered matrices in scratch; padding stays where it is. Attention stores
// results from registers to the outputs of the ranks that own the tokens. The baseline overlaps the exchange of a
// range with the attention of the one before, and pays for it with 2 R small exchanges and the copies around them.
// Ranges of keys are read where tiles begin, on the device.
//
// Bound: arithmetic, 4 D operations for each pair of a query and a key of its range, and head; at small sizes two
// launches and two crossings of the link. Other heads than of 64 or 128 elements and float32 run on CUDA cores.
//
// Left on the table: attention begins when the queries and keys of all ranges have arrived.
#include "pkb/attention_cuda.h"
#include "pkb/head_exchange_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

using pkb::attention::kTileRows;
using pkb::attention::Tile;

struct Sizes {
  int ranges, slots, keys;  // `slots` of a range on each rank; `keys` of a range on all
  int query_heads, kv_heads, ranks;

  __host__ __device__ int own_queries() const { return query_heads / ranks; }
  __host__ __device__ int own_kv() const { return kv_heads > ranks ? kv_heads / ranks : 1; }
  __host__ __device__ int range_slots() const { return ranks * slots; }
};

enum Tensors { kQueries, kKeysAndValues };

struct Places {
  Sizes sizes;
  int rank;

  __device__ pkb::HeadPlace place(int tensor, uint32_t row, uint32_t head) const {
    const uint32_t range = row / sizes.slots, slot = rank * sizes.slots + row - range * sizes.slots;
    if (tensor == kQueries) {
      const uint32_t own = sizes.own_queries(), local = head % own;
      return {int(head / own), 1, (local * sizes.ranges + range) * sizes.range_slots() + slot};
    }
    if (slot >= uint32_t(sizes.keys)) return {0, 0, 0};  // padding
    // Keys and values of a head by turns.
    const uint32_t own = sizes.own_kv(), of_head = head / 2, local = of_head % own;
    const uint32_t place = ((2 * local + head % 2) * sizes.ranges + range) * sizes.keys + slot;
    if (sizes.kv_heads >= sizes.ranks) return {int(of_head / own), 1, place};
    const int copies = sizes.ranks / sizes.kv_heads;
    return {int(of_head) * copies, copies, place};
  }
};

template <class T>
struct Hooks : pkb::attention::Plain<T> {
  pkb::Device comm;
  Sizes sizes;
  const int64_t* bounds;
  T* out;
  int head, parts;  // tiles of a range and head
  bool is_gathered;

  __device__ Tile tile(int index) const {
    const int item = index / parts, range = item % sizes.ranges, own = item / sizes.ranges;
    const int first = (index - item * parts) * kTileRows, of_kv = own * sizes.own_kv() / sizes.own_queries();
    const int begin = int(bounds[2 * range]), end = int(bounds[2 * range + 1]);
    Tile tile;
    if (is_gathered) {
      tile.q_row = item_row(own, range) + first;
      tile.q_col = tile.kv_col = 0;
      tile.kv_row = 2 * of_kv * sizes.ranges * sizes.keys + begin;
    } else {  // the arguments as they are
      tile.q_row = range * sizes.slots + first;
      tile.q_col = own * head;
      tile.kv_row = begin;
      tile.kv_col = 2 * of_kv * head;
    }
    tile.rows = min(sizes.range_slots() - first, kTileRows);
    tile.keys = end - begin;
    tile.diagonal = pkb::attention::kNoMask;
    tile.index = index;
    return tile;
  }

  __device__ T* out_row(const Tile& tile, int i) const {
    const int item = tile.index / parts, range = item % sizes.ranges, own = item / sizes.ranges;
    const int slot = (tile.index - item * parts) * kTileRows + i, rank = slot / sizes.slots;
    const int64_t row = int64_t(range) * sizes.slots + slot - rank * sizes.slots;
    return comm.peer(out + (row * sizes.query_heads + comm.rank * sizes.own_queries() + own) * head, rank);
  }

  __device__ void leave() const {
    if (is_gathered) comm.barrier_blocks(1);
  }

 private:
  __device__ int item_row(int own, int range) const { return (own * sizes.ranges + range) * sizes.range_slots(); }
};

template <class T>
void attend(const TensorView& query, const TensorView& key_value, const TensorView& k_ranges, const Sizes& sizes,
            const TensorView& out, const pkb::Comm& comm) {
  const int64_t rows = query.size(0), head = query.size(2);
  Hooks<T> hooks;
  hooks.comm = comm.device();
  hooks.sizes = sizes;
  hooks.bounds = static_cast<const int64_t*>(k_ranges.data_ptr());
  hooks.out = static_cast<T*>(out.data_ptr());
  hooks.head = int(head);
  hooks.parts = (sizes.range_slots() + kTileRows - 1) / kTileRows;
  hooks.is_gathered = sizes.ranks > 1 || sizes.keys < sizes.slots;

  pkb::attention::Forward<T> work;
  work.head = int(head);
  work.scale = float(1.0 / std::sqrt(double(head)));
  work.tiles = sizes.own_queries() * sizes.ranges * hooks.parts;
  if (hooks.is_gathered) {
    const int64_t q_rows = int64_t(sizes.own_queries()) * sizes.ranges * sizes.range_slots();
    const int64_t keys = int64_t(sizes.ranges) * sizes.keys, kv_rows = 2 * sizes.own_kv() * keys;
    const uint64_t kv_begin = (uint64_t(q_rows * head) * sizeof(T) + 255) / 256 * 256;
    const uint64_t bytes = kv_begin + uint64_t(kv_rows * head) * sizeof(T);
    if (bytes > comm.scratch_bytes) {
      TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds no " << bytes;
    }
    pkb::HeadExchange exchange;
    exchange.add(query.data_ptr(), rows, sizes.query_heads, head * sizeof(T), sizes.query_heads * head * sizeof(T), 0);
    exchange.add(key_value.data_ptr(), rows, 2 * sizes.kv_heads, head * sizeof(T),
                 2 * sizes.kv_heads * head * sizeof(T), kv_begin);
    pkb::exchange_heads(exchange, Places{sizes, comm.rank}, 0, comm);
    work.q = {comm.scratch<T>(0), q_rows, head, head};
    work.k = {comm.scratch<T>(kv_begin), kv_rows, head, head};
    work.v = {work.k.data + keys * head, kv_rows - keys, head, head};
  } else {
    const T* key = static_cast<const T*>(key_value.data_ptr());
    const int64_t width = 2 * sizes.kv_heads * head;
    work.q = {static_cast<const T*>(query.data_ptr()), rows, sizes.query_heads * head, sizes.query_heads * head};
    work.k = {key, rows, width, width};
    work.v = {key + head, rows, width - head, width};
  }
  pkb::attention::launch(work, hooks, std::min(pkb::multiprocessors(), work.tiles), comm.cuda_stream());
}

}  // namespace

void solution(TensorView query, TensorView key_value, TensorView k_ranges, int64_t cp_shuffle_num,
              tvm::ffi::Optional<int64_t> clip_token_nums, int64_t group, TensorView out, pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  Sizes sizes;
  sizes.ranks = comm.world_size;
  sizes.ranges = int(cp_shuffle_num);
  sizes.slots = int(query.size(0) / cp_shuffle_num);
  sizes.query_heads = int(query.size(1));
  sizes.kv_heads = int(key_value.size(1));
  const int64_t keys = clip_token_nums.value_or(0);
  sizes.keys = keys ? int(keys) : sizes.range_slots();
  if (sizes.query_heads % sizes.ranks != 0 ||
      (sizes.kv_heads % sizes.ranks != 0 && sizes.ranks % sizes.kv_heads != 0)) {
    TVM_FFI_THROW(ValueError) << sizes.query_heads << " and " << sizes.kv_heads << " heads do not suit "
                              << sizes.ranks << " ranks";
  }
  pkb::with_type<__nv_bfloat16, __half, float>(query.dtype(), [&](auto zero) {
    using T = decltype(zero);
    attend<T>(query, key_value, k_ranges, sizes, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
