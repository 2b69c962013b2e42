// Texture objects of linear memory, whose elements are read as they are.
#include "runtime_cuda.h"
#include "texture.h"

using namespace pkb::emulator;

extern "C" void pkb_emu_refuse(const char* what);

namespace {

cudaError_t refuse_texture(const char* what) {
  pkb_emu_refuse(what);
  return cudaErrorNotSupported;
}

// Of an element: false: there is no such one.
bool read_format(const cudaChannelFormatDesc& format, Texture& texture) {
  const int bits[] = {format.x, format.y, format.z, format.w};
  if (bits[0] != 8 && bits[0] != 16 && bits[0] != 32) return false;
  texture.channel_bytes = uint8_t(bits[0] / 8);
  while (texture.channels < 4 && bits[texture.channels] == bits[0]) ++texture.channels;
  for (int c = texture.channels; c < 4; ++c) {
    if (bits[c]) return false;
  }
  switch (format.f) {
    case cudaChannelFormatKindSigned: texture.kind = Texture::kSigned; break;
    case cudaChannelFormatKindUnsigned: texture.kind = Texture::kUnsigned; break;
    case cudaChannelFormatKindFloat: texture.kind = Texture::kFloat; break;
    default: return false;
  }
  return texture.channels != 3 && (texture.kind != Texture::kFloat || bits[0] != 8);
}

}  // namespace

PKB_CUDART cudaError_t cudaCreateTextureObject(cudaTextureObject_t* made, const cudaResourceDesc* resource, const cudaTextureDesc* how, const cudaResourceViewDesc* view) {
  return with_rank([&](RankState& rank) {
    if (!made || !resource || !how) return cudaErrorInvalidValue;
    Texture texture;
    constexpr uint64_t kAlignment = 512;  // of addresses, as on an H100; rows are a multiple of 32 bytes
    if (resource->resType == cudaResourceTypeLinear) {
      const auto& linear = resource->res.linear;
      if (!read_format(linear.desc, texture)) return cudaErrorInvalidChannelDescriptor;
      texture.address = reinterpret_cast<uint64_t>(linear.devPtr);
      texture.width = linear.sizeInBytes / (uint64_t(texture.channels) * texture.channel_bytes);
    } else if (resource->resType == cudaResourceTypePitch2D) {
      const auto& rows = resource->res.pitch2D;
      if (!read_format(rows.desc, texture)) return cudaErrorInvalidChannelDescriptor;
      texture.address = reinterpret_cast<uint64_t>(rows.devPtr);
      texture.width = rows.width;
      texture.height = rows.height;
      texture.pitch = rows.pitchInBytes;
      const uint64_t row_bytes = texture.width * texture.channels * texture.channel_bytes;
      if (texture.height == 0 || texture.pitch % 32 || texture.pitch < row_bytes) return cudaErrorInvalidValue;
    } else {
      return refuse_texture("cudaCreateTextureObject of an array");
    }
    if (view) return cudaErrorInvalidValue;  // "can only be specified if the type of resource is an array"
    if (!texture.address || !texture.width || texture.address % kAlignment) return cudaErrorInvalidValue;
    const bool filters = texture.height && how->filterMode != cudaFilterModePoint;
    if (filters) return refuse_texture("cudaCreateTextureObject with a linear filter");
    if (how->sRGB) return refuse_texture("cudaCreateTextureObject with sRGB");
    texture.reads_fractions = how->readMode == cudaReadModeNormalizedFloat;
    if (texture.reads_fractions && (texture.kind == Texture::kFloat || texture.channel_bytes == 4)) return cudaErrorInvalidNormSetting;
    texture.is_normalised = how->normalizedCoords;
    for (int d = 0; d < 2; ++d) texture.edges[d] = TextureEdge(how->addressMode[d]);
    const uint64_t handle = rank.world->engine.next_id++;
    rank.world->engine.textures[handle] = texture;
    *made = handle;
    return cudaSuccess;
  });
}

PKB_CUDART cudaError_t cudaDestroyTextureObject(cudaTextureObject_t object) {
  return with_rank([&](RankState& rank) { return rank.world->engine.textures.erase(object) ? cudaSuccess : cudaErrorInvalidValue; });
}
