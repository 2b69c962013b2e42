// What a texture object stands for: elements in linear memory, in one line or in rows.
#pragma once

#include <cstdint>

namespace pkb::emulator {

enum class TextureEdge : uint8_t { kWrap, kClamp, kMirror, kBorder };  // as cudaTextureAddressMode

struct Texture {
  uint64_t address = 0;          // as the program has it
  uint64_t width = 0;            // elements of the line, or of a row
  uint64_t height = 0, pitch = 0;  // rows, and bytes from one to the next; height 0: a line
  uint8_t channels = 0, channel_bytes = 0;
  enum Kind : uint8_t { kSigned, kUnsigned, kFloat } kind = kUnsigned;
  bool reads_fractions = false;  // integers are read as fractions of the greatest one
  bool is_normalised = false;    // coordinates are fractions of the extent
  TextureEdge edges[2] = {TextureEdge::kClamp, TextureEdge::kClamp};
};

}  // namespace pkb::emulator
