// NeighborSampling: one kernel samples all hops, looking neighbours up where their owners keep them.
//
// What moves: a node's owner is known, and its row of the graph lies in symmetric memory, so that nobody is asked: each
// rank reads the offsets and the first neighbours of its frontier over the link, as soon as the owners' calls have
// begun. Blocks meet a few times a hop (pkb/grid_cuda.h): prefix sums over the frontier give every edge its place, and an
// atomic minimum on a word of each node, of the first edge that found it, tells repeats from discoveries; prefix sums over
// these give new nodes their places. The words hold the number of the call in their upper half, and need no reset. Results
// are kept from call to call; only where they have too little room does the host launch the kernel again.
//
// Bound: link, two offsets of each frontier node and its neighbours; at small sizes about five meetings of all blocks a
// hop. The baseline sorts and exchanges thrice a hop, waiting for counts on the host each time.
//
// Left on the table: offsets and neighbours of one node are loaded in two crossings, one after the other, and loads of 8
// bytes at random places move 32 over the link.
#include <algorithm>

#include "pkb/grid_cuda.h"
#include "pkb/ragged_cuda.h"
#include "pkb/returned_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kMaxHops = 64;
constexpr uint64_t kFound = 1u << 31;  // with the place of an item in a hop; places of nodes are less

struct Graph {
  const int64_t* seeds;
  uint64_t seed_count;
  const int64_t *begins, *neighbours, *owners;  // by global id; of this rank, and peers' counterparts; by global id
  int64_t fanouts[kMaxHops];
  int hops;
};

// Memory of this rank; that of results may be too small.
struct Work {
  int64_t *node, *row, *col, *edge;
  uint64_t node_room, edge_room;
  uint64_t* places;     // a word of each node of the graph
  uint64_t serial;      // upper half of the words: less in later calls
  int64_t* first;       // of the frontier's nodes: where their neighbours begin
  uint32_t* take;       // and how many are taken
  uint8_t* discovers;   // items of a hop that find a node
  int64_t* host;        // nodes, edges, and whether there was room
};

__device__ __forceinline__ void lower(uint64_t* place, uint64_t word) {
  atomicMin(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(word));
}

// The items of this block, of so many.
struct Chunk {
  uint64_t begin, end;
  __device__ explicit Chunk(uint64_t items)
      : begin(items * blockIdx.x / gridDim.x), end(items * (blockIdx.x + 1) / gridDim.x) {}
};

// How many neighbours are taken of each node of the frontier; returns their number in this block's chunk.
__device__ __forceinline__ uint64_t count_edges(const Graph& g, const Work& work, const int64_t* frontier,
                                                const Chunk& chunk, int64_t fanout, const pkb::Device& comm) {
  uint64_t count = 0;
  for (uint64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += kThreads) {
    const int64_t v = frontier[i];
    const int64_t* begins = comm.peer(g.begins, int(g.owners[v])) + v;
    const int64_t first = begins[0], degree = begins[1] - first;
    const int64_t take = fanout < 0 ? degree : min(degree, fanout);
    work.first[i] = first;
    work.take[i] = uint32_t(take);
    count += uint64_t(take);
  }
  return pkb::reduce_block<kThreads>(count, [](uint64_t a, uint64_t b) { return a + b; });
}

// Writes this block's edges, of which the first is number `before` of the hop, and claims the nodes that they find.
__device__ __forceinline__ void take_edges(const Graph& g, const Work& work, const int64_t* frontier, const Chunk& chunk,
                                           uint64_t edges, uint64_t before, uint64_t first_item, const pkb::Device& comm) {
  __shared__ uint64_t ends[kThreads];  // of the edges of a tile's nodes
  for (uint64_t tile = chunk.begin; tile < chunk.end; tile += kThreads) {
    const uint64_t i = tile + threadIdx.x;
    const uint64_t take = i < chunk.end ? work.take[i] : 0;
    const pkb::Before sums = pkb::sums_before_thread<kThreads>(take);
    ends[threadIdx.x] = sums.before + take;
    __syncthreads();
    for (uint64_t e = threadIdx.x; e < sums.all; e += kThreads) {
      int node = -1;  // the last one whose edges end at e or before
#pragma unroll
      for (int step = kThreads / 2; step > 0; step /= 2) {
        if (ends[node + step] <= e) node += step;
      }
      ++node;
      const int64_t v = frontier[tile + node];
      const int64_t place = work.first[tile + node] + int64_t(e - (node > 0 ? ends[node - 1] : 0));
      const int64_t found = comm.peer(g.neighbours, int(g.owners[v]))[place];
      work.row[edges + before + e] = found;
      work.col[edges + before + e] = v;
      work.edge[edges + before + e] = place;
      lower(work.places + found, work.serial | kFound | (first_item + before + e));
    }
    before += sums.all;  // the next tile's sums have all threads meet before its ends are written
  }
}

__device__ __forceinline__ uint64_t place_of(const Work& work, int64_t v) {
  return __ldcg(work.places + v) & ~(~uint64_t(0) << 32);
}

__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    sample(const __grid_constant__ Graph g, const __grid_constant__ Work work, const __grid_constant__ pkb::Device comm) {
  const pkb::Grid grid(comm.scratch<char>(pkb::kGridScratch));
  comm.signal_begun();
  comm.wait_all_begun();
  const int64_t* frontier = g.seeds;
  uint64_t nodes = g.seed_count, frontier_size = nodes, edges = 0;
  bool found_nodes = false, has_room = nodes <= work.node_room;
  int turn = 0;
  for (int hop = 0; hop < g.hops && frontier_size > 0 && has_room; ++hop) {
    const Chunk chunk(frontier_size);
    const uint64_t own = count_edges(g, work, frontier, chunk, g.fanouts[hop], comm);
    const pkb::Before taken = grid.sums_before<kThreads>(own, turn++);
    if (taken.all == 0) break;
    // Items are the seeds, before anything was found, and the hop's edges.
    const uint64_t seeds = found_nodes ? 0 : g.seed_count, items = seeds + taken.all;
    if (edges + taken.all > work.edge_room || nodes + taken.all > work.node_room) {
      has_room = false;
      edges += taken.all;
      break;
    }
    if (seeds > 0) {
      const Chunk own_seeds(seeds);
      for (uint64_t i = own_seeds.begin + threadIdx.x; i < own_seeds.end; i += kThreads) {
        lower(work.places + g.seeds[i], work.serial | kFound | i);
      }
    }
    take_edges(g, work, frontier, chunk, edges, taken.before, seeds, comm);
    grid.meet();

    const Chunk own_items(items);
    const auto item = [&](uint64_t i) { return i < seeds ? g.seeds[i] : work.row[edges + i - seeds]; };
    uint64_t discovered = 0;
    for (uint64_t i = own_items.begin + threadIdx.x; i < own_items.end; i += kThreads) {
      const bool discovers = place_of(work, item(i)) == (kFound | i);
      work.discovers[i] = discovers;
      discovered += discovers;
    }
    discovered = pkb::reduce_block<kThreads>(discovered, [](uint64_t a, uint64_t b) { return a + b; });
    const pkb::Before all = grid.sums_before<kThreads>(discovered, turn++);
    const uint64_t known = found_nodes ? nodes : 0;
    uint64_t next = known + all.before;
    for (uint64_t tile = own_items.begin; tile < own_items.end; tile += kThreads) {
      const uint64_t i = tile + threadIdx.x;
      const bool discovers = i < own_items.end && work.discovers[i];
      const pkb::Count count = pkb::count_in_block<kThreads>(discovers);
      if (discovers) {
        const int64_t v = item(i);
        work.node[next + count.before] = v;
        work.places[v] = work.serial | (next + count.before);
      }
      next += count.all;
    }
    grid.meet();
    // Repeats among the seeds have gone; as many of the new nodes are sampled for by nobody.
    frontier = work.node + nodes;
    frontier_size = known + all.all > nodes ? known + all.all - nodes : 0;
    nodes = known + all.all;
    edges += taken.all;
    found_nodes = true;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    work.host[0] = int64_t(nodes);
    work.host[1] = int64_t(edges);
    work.host[2] = has_room;
  }
  if (!has_room) return;  // the host launches this kernel again
  const uint64_t thread = blockIdx.x * uint64_t(kThreads) + threadIdx.x, threads = gridDim.x * uint64_t(kThreads);
  for (uint64_t e = thread; e < edges; e += threads) {
    work.row[e] = int64_t(place_of(work, work.row[e]));
    work.col[e] = int64_t(place_of(work, work.col[e]));
  }
  if (!found_nodes) {
    for (uint64_t i = thread; i < nodes; i += threads) work.node[i] = g.seeds[i];
  }
  comm.barrier_blocks();  // this rank's graph has been read
}

// A word of each node; less than any of an earlier call's.
uint64_t* places_of(uint64_t nodes, uint64_t& serial, cudaStream_t stream) {
  static uint64_t* places = nullptr;
  static uint64_t room = 0;
  static uint32_t calls = 0;
  if (nodes > room || calls == UINT32_MAX - 1) {
    room = std::max(nodes, room);
    PKB_CUDA(cudaMalloc(&places, room * sizeof(uint64_t)));
    PKB_CUDA(cudaMemsetAsync(places, 0xff, room * sizeof(uint64_t), stream));
    calls = 0;
  }
  serial = uint64_t(~++calls) << 32;
  return places;
}

// Of the size's fanouts, as far as they tell it.
uint64_t edges_expected(uint64_t seeds, const Graph& g) {
  constexpr uint64_t kMost = 16 << 20;
  uint64_t frontier = seeds, edges = 0;
  for (int hop = 0; hop < g.hops; ++hop) {
    frontier = std::min(frontier * uint64_t(g.fanouts[hop] < 0 ? 16 : g.fanouts[hop]), kMost);
    edges += frontier;
  }
  return edges;
}

}  // namespace

Array<Tensor> solution(TensorView seed_nodes, Array<int64_t> fanouts, TensorView local_adj_row_ptr,
                       TensorView local_adj_col, TensorView node_to_rank, int64_t group, bool replace, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  if (fanouts.size() > kMaxHops) TVM_FFI_THROW(ValueError) << "expected at most " << kMaxHops << " hops";
  Graph g{static_cast<const int64_t*>(seed_nodes.data_ptr()), uint64_t(seed_nodes.size(0)),
          static_cast<const int64_t*>(local_adj_row_ptr.data_ptr()), static_cast<const int64_t*>(local_adj_col.data_ptr()),
          static_cast<const int64_t*>(node_to_rank.data_ptr())};
  g.hops = int(fanouts.size());
  for (int hop = 0; hop < g.hops; ++hop) g.fanouts[hop] = fanouts[hop];

  static pkb::Returned node, row, col, edge;
  static const pkb::HostNumbers host(3);
  constexpr uint64_t kBytes = sizeof(int64_t);
  uint64_t edges = edges_expected(g.seed_count, g), nodes = g.seed_count + edges;
  constexpr auto kKernel = sample;
  const int resident = pkb::resident_blocks<kKernel, kThreads, 0>();
  const unsigned blocks = unsigned(std::min<int>(resident, int(pkb::max_blocks())));  // as many on every rank
  do {
    node.reserve(nodes * kBytes);
    row.reserve(edges * kBytes);
    col.reserve(edges * kBytes);
    edge.reserve(edges * kBytes);
    Work work{reinterpret_cast<int64_t*>(node.data()), reinterpret_cast<int64_t*>(row.data()),
              reinterpret_cast<int64_t*>(col.data()), reinterpret_cast<int64_t*>(edge.data())};
    work.node_room = node.bytes() / kBytes;
    work.edge_room = std::min({row.bytes(), col.bytes(), edge.bytes()}) / kBytes;
    work.places = places_of(uint64_t(node_to_rank.size(0)), work.serial, comm.cuda_stream());
    work.first = pkb::kept_memory<int64_t>(int64_t(work.node_room));
    work.take = pkb::kept_memory<uint32_t>(int64_t(work.node_room));
    work.discovers = pkb::kept_memory<uint8_t>(int64_t(g.seed_count + work.edge_room));
    work.host = host.data();
    kKernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, work, comm.device());
    PKB_CUDA_LAUNCHED();
    host.record(comm.cuda_stream());
    host.wait();
    edges = uint64_t(host.data()[1]);  // as many as were found before there was no room
    nodes = g.seed_count + edges;
  } while (!host.data()[2]);
  const int64_t V = host.data()[0], E = host.data()[1];
  const auto as_result = [&](const pkb::Returned& result, int64_t n) {
    return result.tensor({n}, seed_nodes.dtype(), seed_nodes.device());
  };
  return {as_result(node, V), as_result(row, E), as_result(col, E), as_result(edge, E)};
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
