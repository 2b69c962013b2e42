// GaussianSplatting: two kernels, of which the second stores each visible row straight to its final place on its owner.
//
// The first projects this rank's Gaussians into all cameras, keeps a bit of each pair, and counts visible ones by block
// and camera. Its last block forms their sums, tells all ranks how many rows each gets, and so knows where its own
// begin on every owner. The second projects the visible pairs again, which is cheaper than keeping them, and stores
// rows into the owners' scratch in the order of the results, which are returned from there. Meanwhile the host waits for
// the number of rows. The baseline has a hundred kernels, writes every intermediate result of all pairs, and exchanges
// counts and three kinds of rows one after another.
//
// Bound: the link, 40 + 4 (1 + D) bytes for a foreign row; at published sizes latency, of two crossings and the host's wait.
//
// Left on the table: ids and radii follow from what else is sent; where most cameras see most Gaussians, sending the
// Gaussians would take less.
#include <algorithm>
#include <vector>

#include "pkb/last_block_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/returned_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kCameraBatch = 32;  // cameras that a block holds at a time
constexpr int kMaxEach = 4;       // Gaussians of a thread
static_assert(kMaxEach * kWarps <= 32, "a lane has a word of the chunk's bits");
constexpr int kPose = 16, kCamera = kPose + 9;  // numbers of a camera: world to camera, and intrinsics

// Slots of words: rows from a sender to a receiver, Gaussians of a rank, and that a rank has stored all of its rows.
constexpr int kRowsSlot = 0, kGaussiansSlot = pkb::kMaxRanks * pkb::kMaxRanks, kStoredSlot = kGaussiansSlot + pkb::kMaxRanks;

// The results, array by array, in every rank's scratch behind some counters.
constexpr uint64_t kCounterBytes = 256;
struct Rows {
  uint64_t camera_ids, gaussian_ids, radii, means2d, depths, conics, opacities, colors;  // bytes from scratch's beginning
  int64_t capacity;

  Rows(uint64_t scratch_bytes, int colors_of_row) {
    const uint64_t row = 8 + 8 + 8 + 8 + 4 + 12 + 4 + 4 * uint64_t(colors_of_row);
    capacity = int64_t((scratch_bytes - kCounterBytes) / row / 64 * 64);
    uint64_t end = kCounterBytes;
    const auto place = [&](uint64_t bytes) {
      end += bytes * capacity;
      return end - bytes * capacity;
    };
    camera_ids = place(8), gaussian_ids = place(8), radii = place(8), means2d = place(8), depths = place(4);
    conics = place(12), opacities = place(4), colors = place(4 * uint64_t(colors_of_row));
  }
};

// What the first kernel's last block tells the second, and the host.
struct Placed {
  int64_t first_row[pkb::kMaxRanks];    // of this rank's, on each owner
  int64_t first_id[pkb::kMaxRanks];     // of a Gaussian, on each owner
  bool fits;
};
enum ForHost { kRows, kFits, kForHost };  // numbers that the host waits for

struct Globals {
  const float *means, *quats, *scales, *opacities, *colors, *viewmats, *intrinsics;
  int gaussians, cameras, colors_of_row;  // cameras: of each rank
  float width, height, eps, near, far;
  int each, chunks;          // Gaussians of a thread; blocks
  uint32_t* bits;            // (all cameras, words): who sees whom
  int* counts;               // (all cameras, chunks), then rows of the owner before the chunk's
  Placed* placed;
  int64_t* for_host;
  Rows rows;

  __host__ __device__ int words() const { return chunks * each * kWarps; }
  __host__ __device__ int in_chunk() const { return each * kThreads; }
};

struct Projection {
  float x, y, depth, conic[3];
  int radius[2];
  bool visible;
};

struct Gaussian {
  float mean[3], factor[3][3];  // factor times its transpose is the covariance

  __device__ Gaussian(const Globals& g, int i) {
    float q[4], norm = 0, scale[3];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q[k] = g.quats[4 * int64_t(i) + k];
      norm += q[k] * q[k];
    }
    norm = fmaxf(sqrtf(norm), 1e-12f);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      mean[k] = g.means[3 * int64_t(i) + k];
      scale[k] = g.scales[3 * int64_t(i) + k];
    }
    const float w = q[0] / norm, x = q[1] / norm, y = q[2] / norm, z = q[3] / norm;
    const float rotation[3][3] = {{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
                                  {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
                                  {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
#pragma unroll
      for (int j = 0; j < 3; ++j) factor[k][j] = rotation[k][j] * scale[j];
    }
  }
};

__device__ Projection project(const Globals& g, const Gaussian& gaussian, const float* camera) {
  const float* K = camera + kPose;
  float m[3];
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    const float* row = camera + 4 * k;
    m[k] = row[0] * gaussian.mean[0] + row[1] * gaussian.mean[1] + row[2] * gaussian.mean[2] + row[3];
  }
  Projection p;
  p.depth = m[2];
  const float fx = K[0], fy = K[4], cx = K[2], cy = K[5];
  const float margin_x = 0.3f * (0.5f * g.width / fx), margin_y = 0.3f * (0.5f * g.height / fy);
  const float x = fminf(fmaxf(m[0] / m[2], -(cx / fx + margin_x)), (g.width - cx) / fx + margin_x);
  const float y = fminf(fmaxf(m[1] / m[2], -(cy / fy + margin_y)), (g.height - cy) / fy + margin_y);
  // The projection's derivative, times the camera's rotation, times the Gaussian's factor.
  const float slope[2][2] = {{fx / m[2], -fx * x / m[2]}, {fy / m[2], -fy * y / m[2]}};
  float t[2][3];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float turned[3];
#pragma unroll
    for (int j = 0; j < 3; ++j) turned[j] = slope[i][0] * camera[4 * i + j] + slope[i][1] * camera[8 + j];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      t[i][j] = turned[0] * gaussian.factor[0][j] + turned[1] * gaussian.factor[1][j] + turned[2] * gaussian.factor[2][j];
    }
  }
  const float a = t[0][0] * t[0][0] + t[0][1] * t[0][1] + t[0][2] * t[0][2] + g.eps;
  const float b = t[0][0] * t[1][0] + t[0][1] * t[1][1] + t[0][2] * t[1][2];
  const float d = t[1][0] * t[1][0] + t[1][1] * t[1][1] + t[1][2] * t[1][2] + g.eps;
  const float determinant = fmaxf(a * d - b * b, 1e-10f);
  p.conic[0] = d / determinant;
  p.conic[1] = -b / determinant;
  p.conic[2] = a / determinant;
  p.x = (K[0] * m[0] + K[1] * m[1] + K[2] * m[2]) / m[2];
  p.y = (K[3] * m[0] + K[4] * m[1] + K[5] * m[2]) / m[2];
  const float radius_x = ceilf(3.33f * sqrtf(a)), radius_y = ceilf(3.33f * sqrtf(d));
  p.radius[0] = int(radius_x);
  p.radius[1] = int(radius_y);
  p.visible = m[2] > g.near && m[2] < g.far && p.x + radius_x > 0 && p.x - radius_x < g.width &&
              p.y + radius_y > 0 && p.y - radius_y < g.height && radius_x > 0 && radius_y > 0;
  return p;
}

// Calls f(camera, its numbers in shared memory) for all cameras of all ranks.
template <class F>
__device__ void for_each_camera(const Globals& g, const pkb::Device& comm, F f) {
  __shared__ float batch[kCameraBatch][kCamera];
  const int all = comm.world_size * g.cameras;
  for (int first = 0; first < all; first += kCameraBatch) {
    const int size = min(kCameraBatch, all - first);
    __syncthreads();
    for (int i = int(threadIdx.x); i < size * kCamera; i += kThreads) {
      const int camera = first + i / kCamera, at = i % kCamera, r = camera / g.cameras, of_rank = camera % g.cameras;
      batch[i / kCamera][at] = at < kPose ? comm.peer(g.viewmats, r)[of_rank * kPose + at]
                                          : comm.peer(g.intrinsics, r)[of_rank * (kCamera - kPose) + at - kPose];
    }
    __syncthreads();
    for (int i = 0; i < size; ++i) f(first + i, batch[i]);
  }
}

// Exclusive sums of `size` numbers in place, by a block; returns their sum.
__device__ int sums_before(int* numbers, int size) {
  __shared__ int of_warps[kWarps];
  int carried = 0;
  for (int first = 0; first < size; first += kThreads) {
    const int i = first + int(threadIdx.x), own = i < size ? __ldcg(numbers + i) : 0;
    int sum = own;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const int other = __shfl_up_sync(pkb::kAllLanes, sum, apart);
      if (pkb::lane_id() >= apart) sum += other;
    }
    __syncthreads();  // the last sums have been read
    if (pkb::lane_id() == 31) of_warps[pkb::warp_id()] = sum;
    __syncthreads();
    int before = carried;
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp < pkb::warp_id()) before += of_warps[warp];
      carried += of_warps[warp];
    }
    if (i < size) numbers[i] = before + sum - own;
  }
  return carried;
}

// Tells all ranks how many rows this one has for each, and finds out where they begin.
__device__ void place_rows(const Globals& g, const pkb::Device& comm) {
  __shared__ int64_t rows[pkb::kMaxRanks][pkb::kMaxRanks], gaussians[pkb::kMaxRanks];  // rows: by sender and owner
  const int W = comm.world_size, thread = int(threadIdx.x);
  for (int owner = 0; owner < W; ++owner) {
    const int of_owner = g.cameras * g.chunks;
    const int sum = sums_before(g.counts + int64_t(owner) * of_owner, of_owner);
    if (thread == 0) rows[comm.rank][owner] = sum;
  }
  __syncthreads();
  const uint64_t now = comm.epoch << 32;
  for (int i = thread; i < W * W; i += kThreads) {
    const int r = i / W, owner = i % W;
    if (r == comm.rank) continue;
    comm.signal(kRowsSlot + comm.rank * pkb::kMaxRanks + owner, r, now | uint32_t(rows[comm.rank][owner]));
    if (owner == 0) comm.signal(kGaussiansSlot + comm.rank, r, now | uint32_t(g.gaussians));
  }
  const auto receive = [&](int slot) {
    comm.wait(slot, now);
    return int64_t(uint32_t(pkb::load_acquire(comm.signal_word(slot, comm.rank))));
  };
  for (int i = thread; i < W * W; i += kThreads) {
    const int r = i / W, owner = i % W;
    if (r != comm.rank) rows[r][owner] = receive(kRowsSlot + r * pkb::kMaxRanks + owner);
    if (owner == 0) gaussians[r] = r == comm.rank ? g.gaussians : receive(kGaussiansSlot + r);
  }
  __syncthreads();
  if (thread != 0) return;
  bool fits = true;
  int64_t ids = 0;
  for (int owner = 0; owner < W; ++owner) {
    int64_t before = 0, all = 0;
    for (int r = 0; r < W; ++r) {
      if (r < comm.rank) before += rows[r][owner];
      all += rows[r][owner];
    }
    g.placed->first_row[owner] = before;
    g.placed->first_id[owner] = ids;
    ids += gaussians[owner];
    fits = fits && all <= g.rows.capacity;
    if (owner == comm.rank) g.for_host[kRows] = all;
  }
  g.placed->fits = fits;
  g.for_host[kFits] = fits;
}

__global__ void __launch_bounds__(kThreads)
    count(const __grid_constant__ Globals g, const __grid_constant__ pkb::Device comm) {
  __shared__ int in_chunk;
  comm.signal_begun();
  comm.wait_all_begun();
  const int chunk = int(blockIdx.x), first = chunk * g.in_chunk();
  for_each_camera(g, comm, [&](int camera, const float* numbers) {
    __syncthreads();
    if (threadIdx.x == 0) in_chunk = 0;
    __syncthreads();
    for (int e = 0; e < g.each; ++e) {
      const int i = first + e * kThreads + int(threadIdx.x);
      const bool visible = i < g.gaussians && project(g, Gaussian(g, i), numbers).visible;
      const uint32_t word = __ballot_sync(pkb::kAllLanes, visible);
      if (pkb::lane_id() != 0) continue;
      g.bits[int64_t(camera) * g.words() + (chunk * g.each + e) * kWarps + pkb::warp_id()] = word;
      if (word) atomicAdd(&in_chunk, __popc(word));
    }
    __syncthreads();
    if (threadIdx.x == 0) g.counts[int64_t(camera) * g.chunks + chunk] = in_chunk;
  });
  if (pkb::arrives_last(comm.scratch<unsigned>())) place_rows(g, comm);
}

__device__ void store_row(const Globals& g, int owner, int64_t row, int64_t camera, int gaussian, const Projection& p,
                          const pkb::Device& comm) {
  const auto at = [&](uint64_t begin, int numbers, auto zero) {
    return comm.peer(comm.scratch<decltype(zero)>(begin) + row * numbers, owner);
  };
  *at(g.rows.camera_ids, 1, int64_t()) = camera;
  *at(g.rows.gaussian_ids, 1, int64_t()) = gaussian + g.placed->first_id[owner];
  *reinterpret_cast<int2*>(at(g.rows.radii, 2, int())) = make_int2(p.radius[0], p.radius[1]);
  *reinterpret_cast<float2*>(at(g.rows.means2d, 2, float())) = make_float2(p.x, p.y);
  *at(g.rows.depths, 1, float()) = p.depth;
  float* conic = at(g.rows.conics, 3, float());
#pragma unroll
  for (int k = 0; k < 3; ++k) conic[k] = p.conic[k];
  *at(g.rows.opacities, 1, float()) = g.opacities[gaussian];
  float* color = at(g.rows.colors, g.colors_of_row, float());
  for (int k = 0; k < g.colors_of_row; ++k) color[k] = g.colors[int64_t(gaussian) * g.colors_of_row + k];
}

__global__ void __launch_bounds__(kThreads)
    store(const __grid_constant__ Globals g, const __grid_constant__ pkb::Device comm) {
  const int chunk = int(blockIdx.x), in_chunk = g.each * kWarps, lane = pkb::lane_id();
  if (g.placed->fits) {
    for_each_camera(g, comm, [&](int camera, const float* numbers) {
      const int owner = camera / g.cameras;
      const uint32_t* bits = g.bits + int64_t(camera) * g.words() + chunk * in_chunk;
      const uint32_t own = lane < in_chunk ? bits[lane] : 0;
      int before = __popc(own);  // in words before this lane's
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int other = __shfl_up_sync(pkb::kAllLanes, before, apart);
        if (lane >= apart) before += other;
      }
      before -= __popc(own);
      const int64_t first = g.placed->first_row[owner] + g.counts[int64_t(camera) * g.chunks + chunk];
      for (int e = 0; e < g.each; ++e) {
        const int word_at = e * kWarps + pkb::warp_id();
        const uint32_t word = __shfl_sync(pkb::kAllLanes, own, word_at);
        const int64_t row = first + __shfl_sync(pkb::kAllLanes, before, word_at) + pkb::lanes_before(word);
        if (!(word >> lane & 1)) continue;
        const int i = chunk * g.in_chunk() + word_at * 32 + lane;
        store_row(g, owner, row, camera % g.cameras, i, project(g, Gaussian(g, i), numbers), comm);
      }
    });
  }
  pkb::meet_in_last_block(comm.scratch<unsigned>() + 1, kStoredSlot, comm);
}

}  // namespace

Array<Tensor> solution(TensorView means, TensorView quats, TensorView scales, TensorView opacities, TensorView colors,
                       TensorView viewmats, TensorView Ks, int64_t image_width, int64_t image_height, double eps2d,
                       double near_plane, double far_plane, tvm::ffi::String camera_model, pkb::Comm comm) {
  if (camera_model != "pinhole") TVM_FFI_THROW(ValueError) << "camera_model must be 'pinhole', got " << camera_model;
  const auto of = [](const TensorView& x) { return static_cast<const float*>(x.data_ptr()); };
  static const pkb::HostNumbers for_host(kForHost);
  const int D = int(colors.size(1));
  Globals g{of(means),
            of(quats),
            of(scales),
            of(opacities),
            of(colors),
            of(viewmats),
            of(Ks),
            int(means.size(0)),
            int(viewmats.size(0)),
            D,
            float(image_width),
            float(image_height),
            float(eps2d),
            float(near_plane),
            float(far_plane),
            means.size(0) > kThreads * pkb::multiprocessors() ? kMaxEach : 1,
            0,
            nullptr,
            nullptr,
            pkb::kept_memory<Placed>(1),
            for_host.data(),
            Rows(comm.scratch_bytes, D)};
  g.chunks = std::max(1, (g.gaussians + g.in_chunk() - 1) / g.in_chunk());
  const int64_t cameras = int64_t(comm.world_size) * g.cameras;
  g.bits = pkb::kept_memory<uint32_t>(cameras * g.words());
  g.counts = pkb::kept_memory<int>(cameras * g.chunks);
  count<<<g.chunks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
  for_host.record(comm.cuda_stream());
  store<<<g.chunks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
  for_host.wait();
  if (!for_host.data()[kFits]) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds " << g.rows.capacity << " rows";
  }
  const int64_t rows = for_host.data()[kRows];
  const DLDataType kId{kDLInt, 64, 1}, kWhole{kDLInt, 32, 1}, kReal{kDLFloat, 32, 1};
  const auto result = [&](uint64_t begin, DLDataType dtype, int64_t columns) {
    const int64_t shape[2] = {rows, columns};
    return pkb::Returned::borrowed(comm.scratch<char>(begin), tvm::ffi::ShapeView(shape, columns ? 2 : 1), dtype,
                                   means.device());
  };
  const std::vector<Tensor> results{result(g.rows.camera_ids, kId, 0),  result(g.rows.gaussian_ids, kId, 0),
                                    result(g.rows.radii, kWhole, 2),    result(g.rows.means2d, kReal, 2),
                                    result(g.rows.depths, kReal, 0),    result(g.rows.conics, kReal, 3),
                                    result(g.rows.opacities, kReal, 0), result(g.rows.colors, kReal, D)};
  return Array<Tensor>(results.begin(), results.end());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
