// libcuda: modules that a program loads itself, and launches of their kernels. Their PTX runs; images of machine code alone
// are refused.
#include <cuda.h>
#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "runtime_cuda.h"

using namespace pkb::emulator;

namespace {

CUresult load(CUmodule* handle, const void* image) {
  return driver_result(with_rank([&](RankState& rank) {
    uint32_t magic;
    std::memcpy(&magic, image, sizeof magic);
    if (magic == kFatWrapperMagic) {
      image = static_cast<const FatWrapper*>(image)->data;
      magic = kFatMagic;
    }
    World& world = *rank.world;
    if (std::memcmp(image, ELFMAG, SELFMAG) == 0) {
      world.fail(Fault{Outcome::kBodyFailed, rank.rank, world.name_of(*World::current) + ": a module of machine code alone is not modelled by the emulator; load PTX or a fat binary with PTX"});
      return cudaErrorNotSupported;
    }
    LoadedModule* const module = magic == kFatMagic ? world.load_fat_binaries(rank, std::span(&image, 1)) : world.load_ptx(rank, static_cast<const char*>(image));
    module->of_process = {module};
    if (!module->problem.empty()) {
      world.fail(Fault{Outcome::kBodyFailed, rank.rank, world.name_of(*World::current) + ": a module cannot be loaded: " + module->problem});
      return cudaErrorInvalidPtx;
    }
    *handle = reinterpret_cast<CUmodule>(module);
    return cudaSuccess;
  }));
}

LoadedModule* module_of(CUmodule handle) { return reinterpret_cast<LoadedModule*>(handle); }
const void* function_of(CUfunction handle) { return reinterpret_cast<const void*>(handle); }

CUresult launch(CUfunction function, dim3 grid, dim3 block, unsigned shared, CUstream stream, void** arguments, void** extra, const CUlaunchAttribute* attributes, unsigned count) {
  std::vector<void*> unpacked;
  if (!arguments && extra) {  // one buffer, as the kernel's parameters lie in it
    RankState* const rank = calling_rank();
    const Kernel* const kernel = rank ? rank->world->kernel(*rank, function_of(function)) : nullptr;
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    char* buffer = nullptr;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<char*>(extra[1]);
    }
    if (!buffer) return CUDA_ERROR_INVALID_VALUE;
    for (const Variable& parameter : kernel->function->parameters) unpacked.push_back(buffer + parameter.offset);
    arguments = unpacked.data();
  }
  cudaLaunchConfig_t config{grid, block, shared, stream, reinterpret_cast<cudaLaunchAttribute*>(const_cast<CUlaunchAttribute*>(attributes)), count};
  return driver_result(cudaLaunchKernelExC(&config, function_of(function), arguments));
}

}  // namespace

PKB_CUDART CUresult cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image); }
PKB_CUDART CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) { return load(module, image); }
PKB_CUDART CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) { return load(module, image); }
PKB_CUDART CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  content.resize(std::max<size_t>(content.size(), 16));
  return load(module, content.c_str());
}
// Kernels under way go on.
PKB_CUDART CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

PKB_CUDART CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  return driver_result(with_rank([&](RankState& rank) {
    LoadedModule& module = *module_of(handle);
    const auto found = module.ptx->functions.find(name);
    if (found == module.ptx->functions.end() || !found->second.is_entry) return cudaErrorSymbolNotFound;
    const auto slot = module.kernels.try_emplace(name).first;  // whose address is the kernel's handle
    rank.functions[&slot->second] = {&module, name};
    *function = reinterpret_cast<CUfunction>(&slot->second);
    return cudaSuccess;
  }));
}
PKB_CUDART CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
  return driver_result(with_rank([&](RankState& rank) {
    const LoadedModule& module = *module_of(handle);
    const auto found = module.ptx->variables.find(name);
    const uint64_t at = rank.world->variable_address(module, name);
    if (!at || found == module.ptx->variables.end()) return cudaErrorSymbolNotFound;
    if (address) *address = at;
    if (bytes) *bytes = found->second.bytes;
    return cudaSuccess;
  }));
}

PKB_CUDART CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void** arguments, void** extra) {
  return launch(function, {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments, extra, nullptr, 0);
}
PKB_CUDART CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void** arguments) {
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  return launch(function, {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments, nullptr, &cooperative, 1);
}
PKB_CUDART CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  return launch(function, {config->gridDimX, config->gridDimY, config->gridDimZ}, {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes, config->hStream, arguments, extra, config->attrs, config->numAttrs);
}

PKB_CUDART CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return driver_result(cudaFuncSetAttribute(function_of(function), cudaFuncAttribute(attribute), value)); }
PKB_CUDART CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
PKB_CUDART CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  cudaFuncAttributes all;
  const cudaError_t error = cudaFuncGetAttributes(&all, function_of(function));
  if (error != cudaSuccess) return driver_result(error);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = all.maxThreadsPerBlock; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = int(all.sharedSizeBytes); break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = int(all.constSizeBytes); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = int(all.localSizeBytes); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = all.numRegs; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = all.ptxVersion; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = all.binaryVersion; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = all.maxDynamicSharedSizeBytes; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
PKB_CUDART CUresult cuFuncGetName(const char** name, CUfunction function) { return driver_result(cudaFuncGetName(name, function_of(function))); }

PKB_CUDART CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared) {
  return driver_result(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function_of(function), threads, shared));
}
PKB_CUDART CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads, size_t shared, unsigned flags) {
  return driver_result(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function_of(function), threads, shared, flags));
}
// The block that fills most threads of a multiprocessor, the largest of these.
PKB_CUDART CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned) {
  return driver_result(with_rank([&](RankState& rank) {
    const Kernel* const kernel = rank.world->kernel(rank, function_of(function));
    if (!kernel) return cudaErrorInvalidDeviceFunction;
    const Device& device = rank.world->engine.device;
    int most = int(device.threads_of_block), best = 0;
    if (kernel->function->max_threads) most = std::min(most, int(kernel->function->max_threads));
    if (limit > 0) most = std::min(most, limit);
    for (int threads = most; threads > 0; threads = (threads - 1) / kLanes * kLanes) {
      const int resident = int(occupancy(device, *kernel, uint32_t(threads), uint32_t(shared_of ? shared_of(threads) : shared)));
      if (resident * threads <= best) continue;
      best = resident * threads;
      *block = threads;
      *grid = resident * device.multiprocessors;
    }
    return best ? cudaSuccess : cudaErrorInvalidValue;
  }));
}
PKB_CUDART CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0);
}
