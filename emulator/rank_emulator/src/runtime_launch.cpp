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

// Memory at an address that host code uses, and that of a GPU as what the operation writes.
char* reached(const void* pointer) { return reinterpret_cast<char*>(own_address(reinterpret_cast<uint64_t>(pointer))); }

char* written(World& world, const void* pointer, uint64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (is_of_gpu(address)) world.engine.memory.set_written(own_address(address), bytes);
  return reached(pointer);
}

void report_host_access(World& world, const StreamOperation& operation, Operation what, const void* address, uint64_t bytes, const SourceLine* line) {
  if (!world.engine.observer || bytes == 0) return;
  world.engine.observer->range_access(RangeAccess{operation.id, operation.rank, what, Proxy::kHost, Space::kGlobal,
                                                  reinterpret_cast<uint64_t>(reached(address)), bytes, operation.what, line});
}

void start_kernel(World& world, const Kernel& kernel, const std::shared_ptr<KernelLaunch>& launch, std::function<void()> done) {
  const std::vector<uint8_t>& parameters = launch->parameters;
  auto grid = std::make_unique<Grid>();
  grid->launch = *launch;
  grid->launch.id = world.engine.next_id++;
  launch->id = grid->launch.id;
  launch->has_triggered = false;
  grid->on_trigger = [launch] { launch->has_triggered = true; };
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
  if (launch->is_cooperative) {
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
                  void** arguments, size_t dynamic_shared, Stream& stream, bool cooperative, bool may_overlap) {
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
  auto launch = std::make_shared<KernelLaunch>();
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
  launch->is_on_default_stream = stream.is_default();
  launch->reaches_peers = World::current->reaches_peers;
  const Capture* const capture = world.capture_of(stream);
  launch->may_overlap = may_overlap && !(capture && capture->works.empty());  // launches of a graph do not overlap
  launch->function = function;
  launch->dynamic_shared = uint32_t(dynamic_shared);
  launch->is_cooperative = cooperative;
  launch->parameters = pack_parameters(*kernel->function, arguments);
  launch->kernel = kernel->title.c_str();
  launch->shared_bytes = kernel->static_shared + uint32_t(dynamic_shared);
  Work work{StreamOperationKind::kKernel, kernel->title, {}, {}, launch, nullptr};
  work.start = [&world, kernel, launch](const StreamOperation&, std::function<void()> done) { start_kernel(world, *kernel, launch, std::move(done)); };
  world.enqueue(stream, std::move(work));
  return cudaSuccess;
}

Work copy_work(World& world, void* to, const void* from, uint64_t bytes, const char* name, const SourceLine* line) {
  Work work{StreamOperationKind::kCopy, name, {}, {}, nullptr, nullptr};
  work.start = [&world, to, from, bytes, line](const StreamOperation& operation, const std::function<void()>& done) {
    report_host_access(world, operation, Operation::kRead, from, bytes, line);
    report_host_access(world, operation, Operation::kWrite, to, bytes, line);
    std::memmove(written(world, to, bytes), reached(from), bytes);
    done();
  };
  return work;
}

Work staged_copy_work(World& world, void* to, const void* from, uint64_t bytes, const char* name, const SourceLine* line) {
  const char* const begin = reached(from);
  Work work{StreamOperationKind::kCopy, name, {}, {}, nullptr, nullptr};
  work.start = [&world, to, staged = std::vector<char>(begin, begin + bytes), line](const StreamOperation& operation, const std::function<void()>& done) {
    report_host_access(world, operation, Operation::kWrite, to, staged.size(), line);
    std::memcpy(written(world, to, staged.size()), staged.data(), staged.size());
    done();
  };
  return work;
}

Work fill_work(World& world, void* to, uint32_t value, uint64_t bytes, const char* name, uint32_t value_bytes, const SourceLine* line) {
  Work work{StreamOperationKind::kFill, name, {}, {}, nullptr, nullptr};
  work.start = [&world, to, value, bytes, value_bytes, line](const StreamOperation& operation, const std::function<void()>& done) {
    report_host_access(world, operation, Operation::kWrite, to, bytes, line);
    auto* const filled = static_cast<char*>(written(world, to, bytes));
    if (value_bytes == 1) {
      std::memset(filled, int(value), bytes);
    } else {
      for (uint64_t at = 0; at < bytes; at += value_bytes) std::memcpy(filled + at, &value, value_bytes);
    }
    done();
  };
  return work;
}

Work record_work(const std::shared_ptr<EventRecord>& record) {
  return {StreamOperationKind::kEventRecord, "cudaEventRecord", [](const StreamOperation&, const std::function<void()>& done) { done(); }, {}, nullptr, record};
}

Work wait_work(const std::shared_ptr<EventRecord>& record) {
  return {StreamOperationKind::kEventWait, "cudaStreamWaitEvent", [](const StreamOperation&, const std::function<void()>& done) { done(); }, {}, nullptr, record};
}

Work word_work(RankState& rank, Stream& stream, WordAccess access, void* address, uint32_t bytes, uint64_t value, std::function<bool()> is_met, const char* name) {
  auto launch = std::make_shared<KernelLaunch>();
  launch->rank = rank.rank;
  launch->stream = stream.id;
  launch->is_on_default_stream = stream.is_default();
  launch->kernel = name;
  launch->is_unfenced = access == WordAccess::kRelaxed;
  for (int d = 0; d < 3; ++d) launch->grid[d] = launch->block[d] = launch->cluster[d] = 1;
  Work work{StreamOperationKind::kKernel, name, {}, std::move(is_met), launch, nullptr};
  work.start = [&world = *rank.world, launch, access, address, bytes, value, name](const StreamOperation&, const std::function<void()>& done) {
    launch->id = world.engine.next_id++;
    if (Observer* const observer = world.engine.observer) {
      static constexpr SourceLine kNoLine{};
      const bool waits = access == WordAccess::kWait;
      const Order order = waits ? Order::kAcquire : access == WordAccess::kRelease ? Order::kRelease : Order::kRelaxed;
      const Warp warp{launch.get(), launch->rank, 0, 0, 0, 0, 1, 1, name, &kNoLine};
      uint64_t addresses[kLanes] = {reinterpret_cast<uint64_t>(reached(address))};
      observer->launch_begin(*launch);
      observer->block_begin(*launch, 0, 1);
      observer->access(Access{warp, waits ? Operation::kRead : Operation::kWrite, order, Scope::kSys, Space::kGlobal, Proxy::kGeneric, bytes, bytes, 1, addresses, true});
      observer->lanes_exit(warp);
      observer->block_end(*launch, 0);
      observer->launch_end(*launch);
    }
    if (access != WordAccess::kWait) std::memcpy(written(world, address, bytes), &value, bytes);
    done();
  };
  return work;
}

Work read_word_work(World& world, const void* address, const char* name, std::function<void(uint32_t)> take) {
  Work work{StreamOperationKind::kCopy, name, {}, {}, nullptr, nullptr};
  work.start = [&world, address, take = std::move(take)](const StreamOperation& operation, const std::function<void()>& done) {
    report_host_access(world, operation, Operation::kRead, address, 4, nullptr);
    uint32_t value;
    std::memcpy(&value, reached(address), sizeof value);
    take(value);
    done();
  };
  return work;
}

Work function_work(World& world, std::function<void()> function, const char* name) {
  Work work{StreamOperationKind::kHostFunction, name, {}, {}, nullptr, nullptr};
  work.start = [&world, function = std::move(function)](const StreamOperation& operation, const std::function<void()>& done) {
    world.host_operation = &operation;
    World::in_function = &world;
    function();
    World::in_function = nullptr;
    world.host_operation = nullptr;
    done();
  };
  return work;
}

}  // namespace pkb::emulator
