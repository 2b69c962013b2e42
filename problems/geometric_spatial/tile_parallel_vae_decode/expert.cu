// TileParallelVAEDecode: latent cells travel, not pixels, and each pixel of the video is made and blended in registers.
//
// A pixel is up to four trilinear interpolations, of its own tile and of the one before it along t, h and w, which are
// joined in that order. They need a few latent cells, of which there are 256 times fewer than pixels. So each rank
// pushes the cells of its tiles to all others, into two halves of scratch in turn, and all decode the whole video: a
// thread makes eight neighbouring pixels and stores them at once. The baseline exchanges decoded tiles twice, and each
// pixel goes through memory a dozen times. Blends are float32, rounded once.
//
// Bound: memory, one write of the video on every rank.
//
// Left on the table: decoding own tiles while cells arrive; interpolations along t and h that neighbouring rows share.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kRun = 8;  // pixels of a thread
constexpr int kChannels = 3, kMaxTiles = 4096;

// Tiles along t, h or w.
struct Axis {
  int cells;   // of the latent video
  int tile;    // cells of a tile that is not cut off
  int step;    // cells from one tile to the next
  int up;      // pixels of a cell
  int extent;  // pixels that fade at most
  int keep;    // pixels from one tile to the next
  int tiles, pixels;

  Axis(int cells, int tile, double overlap, int up)
      : cells(cells), tile(tile), step(int(tile * (1 - overlap))), up(up), extent(int(tile * up * overlap)),
        keep(tile * up - extent) {
    if (step <= 0) TVM_FFI_THROW(ValueError) << "strides must be positive: the overlap is too large for the tile";
    tiles = (cells + step - 1) / step;
    pixels = (tiles - 1) * keep + std::min(length(tiles - 1) * up, keep);
  }
  __host__ __device__ int length(int i) const {
    const int left = cells - i * step;
    return left < tile ? left : tile;
  }
  // Pixels of tile i that fade in.
  __device__ int fading(int i) const { return i == 0 ? 0 : min(min(length(i - 1), length(i)) * up, extent); }
};

// Cells that a pixel of a tile lies between, and how far from the first.
struct Between {
  int first, second;
  float share;

  __device__ Between(const Axis& axis, int tile, int pixel) {
    const float at = fmaxf((float(pixel) + 0.5f) / float(axis.up) - 0.5f, 0.0f);
    first = int(at);
    share = at - float(first);
    second = min(first + 1, axis.length(tile) - 1);
    first += tile * axis.step;
    second += tile * axis.step;
  }
};

template <class T>
struct Globals {
  Axis t, h, w;
  int channels;  // of the latent video that count
  int samples;
  int64_t sample_stride;           // of this rank's latent video
  const T* latent;
  __nv_bfloat16* video;
  T* boxes;                        // of all ranks, in this half of scratch; each as the cells of the channels that count
  int own, ranks;                  // in the group
  uint8_t owners[kMaxTiles];

  __host__ __device__ int64_t cells() const { return int64_t(t.cells) * h.cells * w.cells; }
  __device__ int owner(int it, int ih, int iw) const { return owners[(it * h.tiles + ih) * w.tiles + iw]; }
  __device__ T* box(int rank) const { return boxes + rank * samples * channels * cells(); }
};

// Whether a tile of this rank's has the cell.
template <class T>
__device__ bool owns(const Globals<T>& g, int t, int h, int w) {
  const auto first = [](const Axis& axis, int cell) { return max(0, (cell - axis.tile) / axis.step); };
  const auto has = [](const Axis& axis, int i, int cell) { return cell - i * axis.step < axis.tile; };
  for (int it = first(g.t, t); it < g.t.tiles && it * g.t.step <= t; ++it) {
    if (!has(g.t, it, t)) continue;
    for (int ih = first(g.h, h); ih < g.h.tiles && ih * g.h.step <= h; ++ih) {
      if (!has(g.h, ih, h)) continue;
      for (int iw = first(g.w, w); iw < g.w.tiles && iw * g.w.step <= w; ++iw) {
        if (has(g.w, iw, w) && g.owner(it, ih, iw) == g.own) return true;
      }
    }
  }
  return false;
}

// Two halves of scratch are enough: every rank waits, in each call, for all that it sends to.
template <class T>
__global__ void __launch_bounds__(kThreads)
    push(const __grid_constant__ Globals<T> g, int64_t group, const __grid_constant__ pkb::Device comm) {
  const int64_t cells = g.cells(), of_sample = cells * g.channels;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < of_sample * g.samples;
       i += int64_t(gridDim.x) * kThreads) {
    const int cell = int(i % cells), row = cell / g.w.cells;
    if (!owns(g, row / g.h.cells, row % g.h.cells, cell % g.w.cells)) continue;
    const T value = g.latent[i / of_sample * g.sample_stride + i % of_sample];
    T* to = g.box(g.own) + i;
    for (int k = 1; k < g.ranks; ++k) {
      const int r = g.own + k < g.ranks ? g.own + k : g.own + k - g.ranks;
      *comm.peer(to, comm.group_member(group, r)) = value;
    }
  }
  comm.barrier_blocks(0, group);
}

template <class T>
__global__ void __launch_bounds__(kThreads) decode(const __grid_constant__ Globals<T> g) {
  const unsigned runs = (g.w.keep + kRun - 1) / kRun, of_row = runs * g.w.tiles;
  const unsigned rows = unsigned(g.samples * kChannels) * g.t.pixels * g.h.pixels;
  const bool in_vectors = g.w.keep % kRun == 0 && g.w.pixels % kRun == 0;
  for (uint64_t unit = blockIdx.x * uint64_t(kThreads) + threadIdx.x; unit < uint64_t(rows) * of_row;
       unit += uint64_t(gridDim.x) * kThreads) {
    const unsigned row = unsigned(unit / of_row), in_row = unsigned(unit % of_row);
    const int y = row % g.h.pixels, frame = row / g.h.pixels % g.t.pixels, plane = row / g.h.pixels / g.t.pixels;
    const int place[3] = {min(frame / g.t.keep, g.t.tiles - 1), min(y / g.h.keep, g.h.tiles - 1), int(in_row / runs)};
    const int at[3] = {frame - place[0] * g.t.keep, y - place[1] * g.h.keep, int(in_row % runs) * kRun};
    const int count = min(kRun, min(g.w.keep, g.w.length(place[2]) * g.w.up) - at[2]);
    if (count <= 0) continue;
    const int channel = plane % kChannels % g.channels, sample = plane / kChannels;
    const int64_t x = int64_t(row) * g.w.pixels + place[2] * g.w.keep + at[2];

    float pixels[kRun];
#pragma unroll 1
    for (int source = 0; source < 4; ++source) {  // the tile itself, and those before it along t, h and w
      const int dim = source - 1;
      const Axis& axis = dim <= 0 ? g.t : dim == 1 ? g.h : g.w;
      const int here = dim <= 0 ? place[0] : dim == 1 ? place[1] : place[2];
      const int before = dim <= 0 ? at[0] : dim == 1 ? at[1] : at[2];
      const int fading = dim < 0 ? 0 : axis.fading(here);
      if (dim >= 0 && before >= fading) continue;
      const int shift = dim < 0 ? 0 : axis.length(here - 1) * axis.up - fading;  // from this tile's pixel to the other's
      const int it = place[0] - (dim == 0), ih = place[1] - (dim == 1), iw = place[2] - (dim == 2);
      const Between t(g.t, it, at[0] + (dim == 0 ? shift : 0)), h(g.h, ih, at[1] + (dim == 1 ? shift : 0));
      const int from = at[2] + (dim == 2 ? shift : 0), last = g.w.length(iw) * g.w.up - 1;

      const int owner = g.owner(it, ih, iw);
      const T* latent = owner == g.own ? g.latent + sample * g.sample_stride + channel * g.cells()
                                       : g.box(owner) + (int64_t(sample) * g.channels + channel) * g.cells();
      const auto column = [&](int w) {  // interpolated along t and h
        const auto along_h = [&](int t) {
          const T* plane = latent + (int64_t(t) * g.h.cells) * g.w.cells + w;
          const float a = pkb::to_float(plane[int64_t(h.first) * g.w.cells]);
          const float b = pkb::to_float(plane[int64_t(h.second) * g.w.cells]);
          return a + h.share * (b - a);
        };
        const float a = along_h(t.first), b = along_h(t.second);
        return a + t.share * (b - a);
      };
      int held = -2;
      float left = 0, right = 0;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const Between w(g.w, iw, min(from + i, last));
        if (w.first != held) {  // pixels of a cell share its columns, and the next cell one of them
          left = w.first == held + 1 ? right : column(w.first);
          right = column(w.second);
          held = w.first;
        }
        const float pixel = left + w.share * (right - left);
        const int faded = before + (dim == 2 ? i : 0);
        const float rise = float(faded) / float(max(fading, 1));
        if (dim < 0) pixels[i] = pixel;
        else if (faded < fading) pixels[i] = pixel * (1.0f - rise) + pixels[i] * rise;
      }
    }

    pkb::Pack<__nv_bfloat16> packed;
#pragma unroll
    for (int i = 0; i < kRun; i += 2) pkb::round_to(packed.values[i], packed.values[i + 1], pixels[i], pixels[i + 1]);
    if (in_vectors && count == kRun) {
      __stcs(reinterpret_cast<uint4*>(g.video + x), reinterpret_cast<const uint4&>(packed));
      continue;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i < count) g.video[x + i] = packed.values[i];
    }
  }
}

// Deals tiles out, the largest first; of equal ones the first.
template <class T>
void deal(Globals<T>& g) {
  const int tiles = g.t.tiles * g.h.tiles * g.w.tiles;
  std::vector<int> cells(tiles), order(tiles);
  for (int i = 0; i < tiles; ++i) {
    order[i] = i;
    cells[i] = g.t.length(i / g.w.tiles / g.h.tiles) * g.h.length(i / g.w.tiles % g.h.tiles) * g.w.length(i % g.w.tiles);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cells[a] > cells[b]; });
  for (int i = 0; i < tiles; ++i) g.owners[order[i]] = uint8_t(i % g.ranks);
}

template <class T>
void launch(const TensorView& z, const TensorView& video, const Axis& t, const Axis& h, const Axis& w, int64_t group,
            const pkb::Comm& comm) {
  if (int64_t(t.tiles) * h.tiles * w.tiles > kMaxTiles) {
    TVM_FFI_THROW(ValueError) << "expected at most " << kMaxTiles << " tiles, got " << t.tiles << " x " << h.tiles
                              << " x " << w.tiles;
  }
  if (video.size(2) != t.pixels || video.size(3) != h.pixels || video.size(4) != w.pixels) {
    TVM_FFI_THROW(ValueError) << "tiles make a video of " << t.pixels << " x " << h.pixels << " x " << w.pixels;
  }
  const pkb::Group members = comm.group(group);
  Globals<T> g{t, h, w};
  g.samples = int(z.size(0));
  g.channels = int(std::min<int64_t>(z.size(1), kChannels));
  g.sample_stride = z.size(1) * g.cells();
  g.latent = static_cast<const T*>(z.data_ptr());
  g.video = static_cast<__nv_bfloat16*>(video.data_ptr());
  g.own = members.rank;
  g.ranks = members.size;
  deal(g);
  if (g.ranks > 1) {
    const uint64_t half = comm.scratch_bytes / 2 / 256 * 256, cells = uint64_t(g.samples) * g.channels * g.cells();
    if (cells * sizeof(T) * g.ranks > half) {
      TVM_FFI_THROW(ValueError) << "half of scratch holds " << half << " bytes, fewer than the latent videos of all ranks";
    }
    g.boxes = comm.scratch<T>(comm.epoch % 2 * half);
    push<T><<<pkb::blocks_for(cells, kThreads), kThreads, 0, comm.cuda_stream()>>>(g, group, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  const uint64_t units = uint64_t(video.numel()) / w.pixels * ((w.keep + kRun - 1) / kRun) * w.tiles;
  decode<T><<<pkb::blocks_for(units / 2, kThreads), kThreads, 0, comm.cuda_stream()>>>(g);
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView z, int64_t tile_latent_min_length, int64_t tile_latent_min_height,
              int64_t tile_latent_min_width, double spatial_tile_overlap_factor, double temporal_tile_overlap_factor,
              int64_t spatial_upsample, int64_t temporal_upsample, int64_t sr_ratio, bool first_frame_as_image,
              int64_t group, TensorView video, pkb::Comm comm) {
  const int up = int(spatial_upsample * sr_ratio);
  const Axis t(int(z.size(2)), int(tile_latent_min_length + first_frame_as_image), temporal_tile_overlap_factor,
               int(temporal_upsample));
  const Axis h(int(z.size(3)), int(tile_latent_min_height), spatial_tile_overlap_factor, up);
  const Axis w(int(z.size(4)), int(tile_latent_min_width), spatial_tile_overlap_factor, up);
  pkb::with_type<__nv_bfloat16, __half, float>(z.dtype(), [&](auto zero) {
    launch<decltype(zero)>(z, video, t, h, w, group, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
