// libcuda: tensor maps.
#include <cuda.h>

#include <cstring>

#include "runtime_cuda.h"
#include "tensor_map.h"

using namespace pkb::emulator;

namespace {

int element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return 4;
    default: return 0;
  }
}

}  // namespace

// The rules of the driver's documentation that a wrong map is most likely to break.
PKB_CUDART CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                      const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  TensorMap map{};
  const int bytes = element_bytes(type);
  const bool sound = to && bytes && rank >= 1 && rank <= 5 && reinterpret_cast<uint64_t>(address) % 16 == 0 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
  if (!sound || swizzle > CU_TENSOR_MAP_SWIZZLE_128B) return CUDA_ERROR_INVALID_VALUE;
  map.magic = TensorMap::kMagic;
  map.address = reinterpret_cast<uint64_t>(address);
  map.element_bytes = uint8_t(bytes);
  map.rank = uint8_t(rank);
  map.type = uint8_t(type);
  map.swizzle = uint8_t(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 1 << (int(swizzle) - 1));
  map.fills_with_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  for (cuuint32_t d = 0; d < rank; ++d) {
    if (sizes[d] == 0 || sizes[d] > 1ull << 32 || box[d] == 0 || box[d] > 256 || steps[d] == 0 || steps[d] > 8) return CUDA_ERROR_INVALID_VALUE;
    map.sizes[d] = sizes[d];
    map.box[d] = uint16_t(box[d]);
    map.element_strides[d] = uint8_t(steps[d]);
    if (d == 0) continue;
    if (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    map.strides[d - 1] = strides[d - 1];
  }
  const uint32_t row_bytes = box[0] * uint32_t(bytes);
  if (row_bytes % 16 || (map.swizzle && row_bytes > 32u * map.swizzle)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

PKB_CUDART CUresult cuTensorMapReplaceAddress(CUtensorMap* to, void* address) {
  TensorMap map{};
  if (!to || reinterpret_cast<uint64_t>(address) % 16) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&map, to, sizeof map);
  if (map.magic != TensorMap::kMagic) return CUDA_ERROR_INVALID_VALUE;
  map.address = reinterpret_cast<uint64_t>(address);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}
