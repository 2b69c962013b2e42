// What streams do: kernels, copies, fills, functions of the host.
#include <driver_types.h>

#include <cstring>

#include "runtime_world.h"

namespace pkb::emulator {
namespace {

constexpr uint64_t kWorkspaceBytes = 64;

std::vector<uint8_t> pack_parameters(const Function& function, void** arguments) {
  std::vector<uint8_t> parameters(function.parameter_bytes + 64);
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    const Variable& parameter = function.parameters[i];
    std::memcpy(parameters.data() + parameter.offset, arguments[i], parameter.bytes);
  }
  return parameters;
}

void report_host_access(World& world, const StreamOperation& operation, Operation what, const void* address, uint64_t bytes) {
  if (!world.engine.observer || bytes == 0) return;
  world.engine.observer->range_access(RangeAccess{operation.id, operation.rank, what, Proxy::kHost, Space::kGlobal,
                                                  reinterpret_cast<uint64_t>(address), bytes, operation.what, nullptr});
}

void start_kernel(World& world, const Kernel& kernel, const std::shared_ptr<Launch>& launch, bool cooperative, const std::vector<uint8_t>& parameters, std::function<void()> done) {
  auto grid = std::make_unique<Grid>();
  grid->launch = *launch;
  grid->launch.id = world.engine.next_id++;
  launch->id = grid->launch.id;
  grid->kernel = &kernel;
  grid->parameters = aligned_bytes(parameters.size());
  grid->parameter_bytes = parameters.size();
  std::memcpy(grid->parameters.get(), parameters.data(), parameters.size());
  const uint32_t* const size = launch->cluster;
  grid->clusters = launch->grid[0] / size[0] * (launch->grid[1] / size[1]) * (launch->grid[2] / size[2]);
  auto& engine = world.engine;
  const auto address = reinterpret_cast<uint64_t>(grid->parameters.get());
  const uint64_t region = engine.memory.add(RegionKind::kParameters, launch->rank, launch->kernel, address, parameters.size(), Space::kParameter, true, 0, true, launch->id);
  uint64_t workspace = 0;
  if (cooperative) {
    grid->workspace = aligned_bytes(kWorkspaceBytes);
    std::memset(grid->workspace.get(), 0, kWorkspaceBytes);
    workspace = engine.memory.add(RegionKind::kGlobalVariable, launch->rank, "workspace of grid.sync", reinterpret_cast<uint64_t>(grid->workspace.get()), kWorkspaceBytes, Space::kGlobal, true);
  }
  ++world.launches;
  engine.start(std::move(grid), [&engine, region, workspace, done = std::move(done)] {
    engine.memory.remove(region);
    if (workspace) engine.memory.remove(workspace);
    done();
  });
}

}  // namespace

int launch_kernel(RankState& rank, const void* function, const uint32_t (&grid)[3], const uint32_t (&block)[3], const uint32_t (&cluster)[3],
                  void** arguments, size_t dynamic_shared, Stream& stream, bool cooperative) {
  World& world = *rank.world;
  if (world.failed()) return cudaErrorLaunchFailure;
  const Kernel* const kernel = world.kernel(rank, function);
  if (!kernel) return world.failed() ? cudaErrorLaunchFailure : cudaErrorInvalidDeviceFunction;
  const Device& device = world.engine.device;
  const uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
  if (threads == 0 || uint64_t(grid[0]) * grid[1] * grid[2] == 0) return cudaErrorInvalidConfiguration;
  if (threads > device.threads_of_block || grid[1] > 65535 || grid[2] > 65535) return cudaErrorInvalidConfiguration;
  if (kernel->function->max_threads && threads > uint64_t(kernel->function->max_threads)) return cudaErrorInvalidValue;
  if (dynamic_shared > kernel->max_dynamic_shared || kernel->static_shared + dynamic_shared > device.shared_of_block) return cudaErrorInvalidValue;
  auto launch = std::make_shared<Launch>();
  for (int d = 0; d < 3; ++d) {
    launch->grid[d] = grid[d];
    launch->block[d] = block[d];
    launch->cluster[d] = kernel->function->cluster[0] && cluster[0] * cluster[1] * cluster[2] == 1 ? kernel->function->cluster[d] : cluster[d];
    if (launch->cluster[d] == 0 || grid[d] % launch->cluster[d]) return cudaErrorInvalidConfiguration;
  }
  const uint32_t resident = occupancy(device, *kernel, uint32_t(threads), uint32_t(dynamic_shared));
  if (resident == 0) return cudaErrorLaunchOutOfResources;
  const uint32_t cluster_blocks = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
  if (cluster_blocks > 16 || cluster_blocks > resident * uint32_t(device.multiprocessors)) return cudaErrorInvalidClusterSize;
  if (cooperative && uint64_t(grid[0]) * grid[1] * grid[2] > uint64_t(resident) * uint64_t(device.multiprocessors)) return cudaErrorCooperativeLaunchTooLarge;
  if (kernel->uses_heap) world.engine.heap(rank.rank).open();
  launch->rank = rank.rank;
  launch->stream = stream.id;
  launch->kernel = kernel->title.c_str();
  launch->shared_bytes = kernel->static_shared + uint32_t(dynamic_shared);
  Work work{StreamOperationKind::kKernel, kernel->title, {}, {}, launch};
  work.start = [&world, kernel, launch, cooperative, parameters = pack_parameters(*kernel->function, arguments)](const StreamOperation&, std::function<void()> done) {
    start_kernel(world, *kernel, launch, cooperative, parameters, std::move(done));
  };
  world.enqueue(stream, std::move(work));
  return cudaSuccess;
}

Work copy_work(World& world, void* to, const void* from, uint64_t bytes, const char* name) {
  Work work{StreamOperationKind::kCopy, name, {}, {}, nullptr};
  work.start = [&world, to, from, bytes](const StreamOperation& operation, const std::function<void()>& done) {
    report_host_access(world, operation, Operation::kRead, from, bytes);
    report_host_access(world, operation, Operation::kWrite, to, bytes);
    std::memmove(to, from, bytes);
    done();
  };
  return work;
}

Work fill_work(World& world, void* to, int byte, uint64_t bytes, const char* name) {
  Work work{StreamOperationKind::kFill, name, {}, {}, nullptr};
  work.start = [&world, to, byte, bytes](const StreamOperation& operation, const std::function<void()>& done) {
    report_host_access(world, operation, Operation::kWrite, to, bytes);
    std::memset(to, byte, bytes);
    done();
  };
  return work;
}

Work function_work(World& world, std::function<void()> function, const char* name) {
  Work work{StreamOperationKind::kHostFunction, name, {}, {}, nullptr};
  work.start = [&world, function = std::move(function)](const StreamOperation& operation, const std::function<void()>& done) {
    world.host_operation = &operation;
    function();
    world.host_operation = nullptr;
    done();
  };
  return work;
}

}  // namespace pkb::emulator
