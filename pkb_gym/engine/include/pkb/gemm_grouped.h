// Grouped products: rows of A in groups, each with weights of its own, where only the device knows how many rows a group
// has; hooks for pkb/gemm_sm90.h.
//
// Groups lie in A below each other, each from a multiple of `align` rows on; a tile is of one group. Weights of all groups
// lie below each other in one matrix B, as layers keep them (TransposedB), and results where A's rows are. Groups come in
// turn: those after the first may have weights that are still on their way.
//
//   gemm::Grouped<gemm::Small> hooks(groups, cols);       // and what derives from it: see pkb/moe_layer_cuda.h
//   gemm::launch<T, gemm::TransposedB<gemm::Small>>(hooks.product(rows, depth), hooks, stream);
//
// Bound: arithmetic; a group's last tile is padded. Grouped products of experts: T. Gale et al., MegaBlocks,
// arXiv:2211.15841.
#pragma once

#include "pkb/gemm_sm90.h"

namespace pkb {
namespace gemm {

// Groups of rows in the order of their members, from this rank's on.
struct RowGroups {
  const int* counts;  // device memory: rows of each member's group
  int members, own;
  int align;

  __host__ __device__ __forceinline__ int member(int group) const {
    const int at = own + group;
    return at < members ? at : at - members;
  }
  __device__ __forceinline__ int rows(int group) const { return counts[member(group)]; }
  __device__ __forceinline__ int padded(int group) const { return (rows(group) + align - 1) / align * align; }
  __device__ __forceinline__ int64_t first(int group) const {
    int64_t row = 0;
    for (int before = 0; before < group; ++before) row += padded(before);
    return row;
  }
};

// Half of a tile's columns, for sums of which two make one result.
template <class Shape>
struct HalfOf {
  static constexpr int kBlockN = Shape::kBlockN / 2, kSums = kBlockN / 2;
  static constexpr int kStagedCols = Shape::kStagedCols, kBufferBytes = Shape::kBufferBytes;
  static constexpr int kBuffers = kBlockN / kStagedCols % Shape::kBuffers == 0 ? Shape::kBuffers : 1;
};

// `col` of a tile is the number of its weights' first box, in columns: tile.col / kBlockN = group * col_tiles + its place.
struct Grouped : Plain {
  RowGroups groups;
  int col_tiles;
  CUtensorMap out[1];  // results; stored by the hook itself
  int destinations = 1;

  __device__ __forceinline__ int tiles(const Product&) const {
    int row_tiles = 0;
    for (int group = 0; group < groups.members; ++group) row_tiles += groups.padded(group) / tile_rows;
    return row_tiles * col_tiles;
  }
  template <class Shape>
  __device__ __forceinline__ Tile tile(const Product& product, int index) const {
    int group = 0, first = 0, row_tiles = groups.padded(0) / tile_rows;
    while (index >= row_tiles * col_tiles) {
      index -= row_tiles * col_tiles;
      first += row_tiles * tile_rows;
      row_tiles = groups.padded(++group) / tile_rows;
    }
    Tile tile = tile_at<Shape>(index, row_tiles, col_tiles, product.group);
    tile.row += first;
    tile.out_row = tile.row;
    tile.col += group * col_tiles * Shape::kBlockN;
    tile.owner = group;
    return tile;
  }
  // First column of a tile's results, of kCols to a tile.
  template <class Shape, int kCols>
  __device__ __forceinline__ int first_col(const Tile& tile) const {
    return (tile.col / Shape::kBlockN - tile.owner * col_tiles) * kCols;
  }
  template <class Shape>
  __device__ __forceinline__ static int first_row(const Tile& tile, const Block& block, int consumer) {
    return tile.out_row + block.in_cluster * kBlockM + consumer * kStoreRows;
  }

  int tile_rows;

  // `cols` are columns of B's, of one group; groups have at most so many rows together, padded.
  template <class Shape>
  Product prepare(int64_t rows, int64_t cols, int64_t depth) {
    Product product = gemm::tiles<Shape>(rows, cols, depth);
    product.destinations = 0;
    col_tiles = product.col_tiles;
    tile_rows = Shape::kTileRows;
    return product;
  }
};

}  // namespace gemm
}  // namespace pkb
