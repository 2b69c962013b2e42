// libcudart: registration of libraries, launches, attributes and occupancy of kernels.
#include <cstring>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

void to_array(uint32_t (&to)[3], dim3 from) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, dim3 cluster, void** arguments, size_t shared, cudaStream_t handle, bool cooperative, bool may_overlap = false) {
  return with_stream(handle, [&](RankState& rank, Stream& stream) {
    uint32_t g[3], b[3], c[3];
    to_array(g, grid);
    to_array(b, block);
    to_array(c, cluster);
    if (&rank != calling_rank()) return cudaErrorInvalidResourceHandle;  // "Multi-Device System" of the programming guide
    return cudaError_t(launch_kernel(rank, function, g, b, c, arguments, shared, stream, cooperative, may_overlap));
  });
}

// Calls f with the module of a handle on each GPU of its process.
template <class F>
void each_module(void** handle, F f) {
  const auto* const first = reinterpret_cast<LoadedModule*>(handle);
  if (!first) return;
  for (LoadedModule* const module : first->of_process) f(*module);
}

template <class F>
cudaError_t with_kernel(const void* function, F f) {
  return with_rank([&](RankState& rank) {
    Kernel* const kernel = rank.world->kernel(rank, function);
    if (!kernel) return rank.world->failed() ? cudaErrorLaunchFailure : cudaErrorInvalidDeviceFunction;
    return f(rank, *kernel);
  });
}

}  // namespace

// Those of relocatable code, together: where nvcc links, code that nvlink is given registers what nvlink has made.
PKB_CUDART void** __cudaRegisterLinkedBinaries(const void* const* wrappers, int count) {
  RankState* const rank = calling_rank();
  if (!rank) return nullptr;
  World& world = *rank->world;
  std::vector<const void*> fat_binaries;
  for (int i = 0; i < count; ++i) fat_binaries.push_back(static_cast<const FatWrapper*>(wrappers[i])->data);
  std::vector<LoadedModule*> modules;
  for (size_t i = 0; i < world.visible(); ++i) modules.push_back(world.load_fat_binaries(world.visible(*rank, i), fat_binaries));
  modules.front()->of_process = modules;
  return reinterpret_cast<void**>(modules.front());
}
PKB_CUDART void** __cudaRegisterFatBinary(void* wrapper) { return __cudaRegisterLinkedBinaries(&wrapper, 1); }
PKB_CUDART void __cudaRegisterFatBinaryEnd(void**) {}
PKB_CUDART void __cudaUnregisterFatBinary(void**) {}

PKB_CUDART void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  each_module(handle, [&](LoadedModule& module) { module.rank->functions[host_function] = {&module, name}; });
}

PKB_CUDART void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* name, int, size_t size, int, int) {
  each_module(handle, [&](LoadedModule& module) { module.rank->variables[host_variable] = {&module, name, size}; });
}

// Managed memory is the variable's own, and that of the first GPU for all.
PKB_CUDART void __cudaRegisterManagedVar(void** handle, void** host_pointer, char*, const char* name, int, size_t size, int, int) {
  auto* const first = reinterpret_cast<LoadedModule*>(handle);
  if (!first) return;
  const uint64_t address = first->rank->world->make_managed(*first, name);
  *host_pointer = reinterpret_cast<void*>(address);
  each_module(handle, [&](LoadedModule& module) {
    module.variables.find(std::string_view(name))->second = address;
    module.rank->variables[host_pointer] = {&module, name, size};
  });
}

PKB_CUDART char __cudaInitModule(void**) { return 1; }

PKB_CUDART unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  if (!World::current) return cudaErrorInitializationError;
  CallConfiguration configuration{{}, {}, shared, reinterpret_cast<Stream*>(stream)};
  to_array(configuration.grid, grid);
  to_array(configuration.block, block);
  World::current->configurations.push_back(configuration);
  return 0;
}

PKB_CUDART cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  HostThread* const host = World::current;
  if (!host || host->configurations.empty()) return cudaErrorMissingConfiguration;
  const CallConfiguration configuration = host->configurations.back();
  host->configurations.pop_back();
  *grid = dim3(configuration.grid[0], configuration.grid[1], configuration.grid[2]);
  *block = dim3(configuration.block[0], configuration.block[1], configuration.block[2]);
  *shared = configuration.shared;
  std::memcpy(stream, &configuration.stream, sizeof(void*));
  return cudaSuccess;
}

// A kernel's handle is its function of the host.
PKB_CUDART cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

PKB_CUDART cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(reinterpret_cast<const void*>(kernel), grid, block, dim3(1), arguments, shared, stream, false);
}

PKB_CUDART cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, dim3(1), arguments, shared, stream, false);
}

PKB_CUDART cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, dim3(1), arguments, shared, stream, true);
}

PKB_CUDART cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  dim3 cluster(1);
  bool cooperative = false, may_overlap = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) cluster = dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
    if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative != 0;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) may_overlap = attribute.val.programmaticStreamSerializationAllowed != 0;
  }
  return launch(function, config->gridDim, config->blockDim, cluster, arguments, config->dynamicSmemBytes, config->stream, cooperative, may_overlap);
}

PKB_CUDART cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return with_kernel(function, [&](RankState& rank, Kernel& kernel) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      if (value < 0 || kernel.static_shared + uint32_t(value) > rank.world->engine.device.shared_of_block) return cudaErrorInvalidValue;
      kernel.max_dynamic_shared = uint32_t(value);
    }
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }

PKB_CUDART cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return with_kernel(function, [&](RankState& rank, Kernel& kernel) {
    std::memset(attributes, 0, sizeof *attributes);
    attributes->sharedSizeBytes = kernel.static_shared;
    attributes->localSizeBytes = kernel.local_bytes;
    attributes->maxThreadsPerBlock = kernel.function->max_threads ? kernel.function->max_threads : int(rank.world->engine.device.threads_of_block);
    attributes->numRegs = kernel.registers;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = int(kernel.max_dynamic_shared);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return with_kernel(function, [&](RankState&, Kernel& kernel) {
    *name = kernel.name.c_str();
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads, size_t shared, unsigned) {
  return with_kernel(function, [&](RankState& rank, Kernel& kernel) {
    if (threads <= 0) return cudaErrorInvalidValue;
    *blocks = int(occupancy(rank.world->engine.device, kernel, uint32_t(threads), uint32_t(shared)));
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

PKB_CUDART cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const cudaLaunchConfig_t* config) {
  return with_kernel(function, [&](RankState& rank, Kernel& kernel) {
    unsigned size = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const auto& attribute = config->attrs[i];
      if (attribute.id == cudaLaunchAttributeClusterDimension) size = attribute.val.clusterDim.x * attribute.val.clusterDim.y * attribute.val.clusterDim.z;
    }
    if (size == 0) return cudaErrorInvalidClusterSize;
    const Device& device = rank.world->engine.device;
    const uint32_t blocks = occupancy(device, kernel, config->blockDim.x * config->blockDim.y * config->blockDim.z, uint32_t(config->dynamicSmemBytes));
    *clusters = int(blocks * uint32_t(device.multiprocessors) / size);
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const cudaLaunchConfig_t*) {
  *size = 8;
  return cudaSuccess;
}

PKB_CUDART cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks, int) {
  return with_kernel(function, [&](RankState& rank, Kernel& kernel) {
    const Device& device = rank.world->engine.device;
    const uint32_t share = device.shared_bytes / uint32_t(std::max(blocks, 1)) - device.reserved_shared;
    *bytes = std::min(share, device.shared_of_block) - kernel.static_shared;
    return cudaSuccess;
  });
}
