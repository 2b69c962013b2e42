// tex: the nearest element of linear memory, as tex1Dfetch and tex2D read it ("Texture Fetching", CUDA programming guide).
#include <algorithm>
#include <bit>
#include <cmath>

#include "executor.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

// The index of the element at a coordinate, below `extent`; -1: beyond a border.
int64_t index_at(double coordinate, uint64_t extent, TextureEdge edge, bool is_normalised) {
  const auto size = double(extent);
  if (std::isnan(coordinate)) coordinate = 0;
  if (is_normalised) {
    const double whole = std::floor(coordinate), part = coordinate - whole;
    if (edge == TextureEdge::kWrap) coordinate = part;
    if (edge == TextureEdge::kMirror) coordinate = std::fmod(whole, 2) == 0 ? part : 1 - part;
    coordinate *= size;
  }
  const double index = std::floor(coordinate);
  if (edge == TextureEdge::kBorder && (index < 0 || index >= size)) return -1;
  return int64_t(std::clamp(index, 0.0, size - 1));
}

// A channel of an element as 32 bits of the result.
uint32_t channel(const Texture& texture, const char* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, texture.channel_bytes);
  const int drop = 32 - 8 * texture.channel_bytes;
  if (texture.kind == Texture::kFloat) return texture.channel_bytes == 2 ? std::bit_cast<uint32_t>(half_to_float(uint16_t(bits))) : bits;
  const int32_t value = int32_t(bits << drop) >> drop;
  if (!texture.reads_fractions) return texture.kind == Texture::kSigned ? uint32_t(value) : bits;
  const uint32_t greatest = ~0u >> drop;
  if (texture.kind == Texture::kUnsigned) return std::bit_cast<uint32_t>(float(bits) / float(greatest));
  return std::bit_cast<uint32_t>(std::max(float(value) / float(greatest >> 1), -1.0f));
}

// values: four results. addresses: the texture, and coordinates. variant: dimensions; number: 1: coordinates are floats.
Step fetch(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const Address& operand = detail.addresses[0];
  alignas(64) uint64_t handles[kLanes], addresses[kLanes];
  x.raw_addresses(operand, lanes, handles);
  const Texture* texture = nullptr;
  uint32_t found = 0;
  each_lane(lanes, [&](int lane) {
    const auto named = x.engine.textures.find(handles[lane]);
    if (named == x.engine.textures.end()) x.fail(Outcome::kTrap, op, uint32_t(lane), "there is no such texture object");
    if (texture && texture != &named->second) x.fail(Outcome::kTrap, op, uint32_t(lane), "lanes of a warp read several texture objects at once, which is not modelled");
    texture = &named->second;
    if ((texture->height != 0) != (detail.variant == 2)) x.fail(Outcome::kTrap, op, uint32_t(lane), "the texture object has another number of dimensions");
    int64_t index[2] = {0, 0};
    for (int d = 0; d < detail.variant; ++d) {
      const auto bits = uint32_t(x.value(operand.coordinates[size_t(d)], lane));
      const uint64_t extent = d ? texture->height : texture->width;
      if (detail.variant == 1) {
        index[d] = detail.number ? int64_t(std::floor(std::bit_cast<float>(bits))) : int32_t(bits);
        if (index[d] < 0 || uint64_t(index[d]) >= extent) index[d] = -1;
      } else {
        index[d] = index_at(detail.number ? double(std::bit_cast<float>(bits)) : double(int32_t(bits)), extent, texture->edges[d], texture->is_normalised);
      }
    }
    if (index[0] < 0 || index[1] < 0) return;
    const uint32_t bytes = uint32_t(texture->channels) * texture->channel_bytes;
    const uint64_t seen = texture->address + uint64_t(index[1]) * texture->pitch + uint64_t(index[0]) * bytes;
    if (!x.find_reached(seen, bytes)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address of a texture: " + x.engine.memory.describe(seen, x.grid->launch.rank));
    addresses[lane] = own_address(seen);
    found |= 1u << lane;
    x.settle(addresses[lane], bytes);
  });
  for (size_t c = 0; c < detail.values.size(); ++c) {
    if (!detail.values[c].present) continue;
    each_lane(lanes, [&](int lane) {  // beyond the texture all is 0
      const bool is_there = (found >> lane & 1) && c < texture->channels;
      x.set(detail.values[c], lane, is_there ? channel(*texture, reinterpret_cast<const char*>(addresses[lane]) + c * texture->channel_bytes) : 0);
    });
  }
  if (found && x.engine.observer) {
    x.report_access(op, found, Operation::kRead, uint32_t(texture->channels) * texture->channel_bytes, texture->channels, addresses, 0);
  }
  return Step::kNext;
}

}  // namespace

Handler find_texture_handler(const Instruction& instruction, Detail& detail) {
  const auto& parts = instruction.parts;
  if (parts[0] != "tex" || parts.size() != 5 || parts[2] != "v4") return nullptr;
  detail.variant = parts[1] == "1d" ? 1 : parts[1] == "2d" ? 2 : 0;
  detail.number = parts[4] == "f32";
  const bool is_known = detail.variant && (parts[4] == "f32" || parts[4] == "s32") && (parts[3] == "f32" || parts[3] == "s32" || parts[3] == "u32");
  return is_known && detail.addresses.size() == 1 && detail.addresses[0].coordinates.size() >= size_t(detail.variant) ? fetch : nullptr;
}

}  // namespace pkb::emulator
