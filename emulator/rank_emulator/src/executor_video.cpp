// Video instructions (PTX ISA, "Scalar Video Instructions" and "SIMD Video Instructions"): arithmetic on selected parts of
// words, with saturation, and a second operation or a merge.
#include <algorithm>
#include <optional>

#include "executor.h"

namespace pkb::emulator {

struct VideoOperation {
  enum Kind : uint8_t { kAdd, kSub, kAbsoluteDifference, kMin, kMax, kAverage, kShl, kShr, kSet, kMad } kind;
  enum Second : uint8_t { kNone, kSecondAdd, kSecondMin, kSecondMax } second = kNone;
  enum Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe } compare = kEq;
  uint8_t parts = 1;               // of SIMD: 2 halves or 4 bytes
  bool signed_d = false, signed_a = false, signed_b = false;
  bool saturates = false, wraps = false;
  uint8_t bits_a = 32, bits_b = 32, bits_d = 32;  // of a part
  uint8_t shift_a[4] = {}, shift_b[4] = {};       // where parts begin; of SIMD in both words, a below b
  uint8_t shift_d = 0, mask = 1;   // where a scalar result goes; parts of SIMD that are results
  bool negates_product = false, negates_c = false, plus_one = false;  // of vmad
  uint8_t scale = 0;
};

namespace {

using Wide = __int128;
using Video = VideoOperation;

Wide extended(uint64_t bits, int shift, int width, bool is_signed) {
  const uint64_t part = bits >> shift & (~0ull >> (64 - width));
  return is_signed && (part >> (width - 1) & 1) ? Wide(part) - (Wide(1) << width) : Wide(part);
}

Wide saturated(Wide value, int bits, bool is_signed) {
  const Wide one = 1;
  return is_signed ? std::clamp(value, -(one << (bits - 1)), (one << (bits - 1)) - 1) : std::clamp<Wide>(value, 0, (one << bits) - 1);
}

bool compares(Video::Compare how, Wide a, Wide b) {
  switch (how) {
    case Video::kEq: return a == b;
    case Video::kNe: return a != b;
    case Video::kLt: return a < b;
    case Video::kLe: return a <= b;
    case Video::kGt: return a > b;
    case Video::kGe: return a >= b;
  }
  return false;
}

Wide combined(const Video& video, Wide a, Wide b) {
  switch (video.kind) {
    case Video::kAdd: return a + b;
    case Video::kSub: return a - b;
    case Video::kAbsoluteDifference: return a < b ? b - a : a - b;
    case Video::kMin: return std::min(a, b);
    case Video::kMax: return std::max(a, b);
    case Video::kAverage: return (a + b + (a + b >= 0)) >> 1;
    case Video::kShl: return a << int(video.wraps ? b & 31 : std::min<Wide>(b, 32));
    case Video::kShr: return a >> int(video.wraps ? b & 31 : std::min<Wide>(b, 32));
    case Video::kSet: return compares(video.compare, a, b);
    case Video::kMad: return 0;
  }
  return 0;
}

uint32_t scalar(const Video& video, uint32_t a, uint32_t b, uint32_t c) {
  Wide value = combined(video, extended(a, video.shift_a[0], video.bits_a, video.signed_a), extended(b, video.shift_b[0], video.bits_b, video.signed_b));
  if (video.saturates) value = saturated(value, video.bits_d, video.signed_d);
  const Wide with = extended(c, 0, 32, video.signed_d);
  switch (video.second) {
    case Video::kNone: break;
    case Video::kSecondAdd: return uint32_t(value + with);
    // The first result is one of 32 bits.
    case Video::kSecondMin: return uint32_t(std::min(extended(uint32_t(value), 0, 32, video.signed_d), with));
    case Video::kSecondMax: return uint32_t(std::max(extended(uint32_t(value), 0, 32, video.signed_d), with));
  }
  if (video.bits_d == 32) return uint32_t(value);
  const uint32_t field = ((1u << video.bits_d) - 1) << video.shift_d;
  return (uint32_t(value) << video.shift_d & field) | (c & ~field);
}

uint32_t parallel(const Video& video, uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t both = a | uint64_t(b) << 32;
  uint32_t result = c;
  for (int i = 0; i < video.parts; ++i) {
    if (!(video.mask >> i & 1)) continue;
    Wide value = combined(video, extended(both, video.shift_a[i], video.bits_a, video.signed_a), extended(both, video.shift_b[i], video.bits_b, video.signed_b));
    if (video.saturates) value = saturated(value, video.bits_d, video.signed_d);
    if (video.second == Video::kSecondAdd) {
      result += uint32_t(value);
    } else {
      const int shift = i * video.bits_d;
      const uint32_t field = ((1u << video.bits_d) - 1) << shift;
      result = (uint32_t(value) << shift & field) | (result & ~field);
    }
  }
  return result;
}

uint32_t product(const Video& video, uint32_t a, uint32_t b, uint32_t c) {
  const bool is_signed = video.signed_a || video.signed_b || video.negates_product || video.negates_c;
  Wide value = extended(a, video.shift_a[0], video.bits_a, video.signed_a) * extended(b, video.shift_b[0], video.bits_b, video.signed_b);
  bool one = video.plus_one;
  if (!one && video.negates_product) {
    value = ~value;
    one = true;
  } else if (!one && video.negates_c) {
    c = ~c;
    one = true;
  }
  value = (value + extended(c, 0, 32, is_signed) + one) >> video.scale;
  return uint32_t(video.saturates ? saturated(value, 32, is_signed) : value);
}

template <uint32_t (*kOne)(const Video&, uint32_t, uint32_t, uint32_t)>
Step run(Executor& x, const Op& op, uint32_t lanes) {
  const auto& values = op.detail->values;
  const Video& video = *op.detail->video;
  each_lane(lanes, [&](int lane) {
    const auto word = [&](size_t i) { return uint32_t(x.value(values[i], lane)); };
    x.set(values[0], lane, kOne(video, word(1), word(2), values.size() > 3 ? word(3) : 0));
  });
  return Step::kNext;
}

// A selection of one part, ".b2" or ".h1". False: it is none.
bool read_part(std::string_view text, uint8_t& bits, uint8_t& shift) {
  if (text.empty()) return true;
  bits = text[0] == 'b' ? 8 : 16;
  shift = uint8_t(bits * (text.back() - '0'));
  return text.size() == 2 && (text[0] == 'b' || text[0] == 'h') && shift < 32 && text[1] >= '0';
}

// A selection of as many parts as the operation has, the last one first: ".b7654".
bool read_parts(std::string_view text, const Video& video, char letter, int first, uint8_t (&shifts)[4]) {
  for (int i = 0; i < video.parts; ++i) shifts[i] = uint8_t((first + i) * video.bits_d);
  if (text.empty()) return true;
  if (text.size() != size_t(video.parts) + 1 || text[0] != letter) return false;
  for (int i = 0; i < video.parts; ++i) {
    const int index = text[text.size() - 1 - size_t(i)] - '0';
    if (index < 0 || index >= 2 * video.parts) return false;
    shifts[i] = uint8_t(index * video.bits_d);
  }
  return true;
}

bool read_mask(std::string_view text, Video& video, char letter) {
  video.mask = uint8_t((1 << video.parts) - 1);
  if (text.empty()) return true;
  video.mask = 0;
  if (text[0] != letter) return false;
  for (const char digit : text.substr(1)) {
    if (digit < '0' || digit >= '0' + video.parts) return false;
    video.mask = uint8_t(video.mask | 1 << (digit - '0'));
  }
  return true;
}

std::optional<Video> read_video(const Instruction& instruction) {
  static constexpr std::pair<std::string_view, Video::Kind> kNames[] = {
      {"vadd", Video::kAdd}, {"vsub", Video::kSub}, {"vabsdiff", Video::kAbsoluteDifference}, {"vmin", Video::kMin}, {"vmax", Video::kMax},
      {"vavrg", Video::kAverage}, {"vshl", Video::kShl}, {"vshr", Video::kShr}, {"vset", Video::kSet}, {"vmad", Video::kMad}};
  std::string_view name = instruction.parts[0];
  Video video{};
  video.mask = 1;
  if (name.ends_with('2') || name.ends_with('4')) {
    video.parts = uint8_t(name.back() - '0');
    video.bits_a = video.bits_b = video.bits_d = uint8_t(32 / video.parts);
    name.remove_suffix(1);
  }
  const auto found = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& each) { return each.first == name; });
  const auto& operands = instruction.operands;
  if (found == std::end(kNames) || operands.size() < 3 || operands.size() > 4) return std::nullopt;
  video.kind = found->second;
  std::vector<bool> signs;
  for (const auto part : instruction.parts) {
    if (part == "u32" || part == "s32") signs.push_back(part == "s32");
    if (part == "sat") video.saturates = true;
    if (part == "wrap") video.wraps = true;
    if (part == "po") video.plus_one = true;
    if (part == "shr7" || part == "shr15") video.scale = part == "shr7" ? 7 : 15;
    if (part == "add") video.second = Video::kSecondAdd;
    if (part == "min") video.second = Video::kSecondMin;
    if (part == "max") video.second = Video::kSecondMax;
    static constexpr std::string_view kCompares[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    for (int i = 0; i < 6; ++i) {
      if (part == kCompares[i]) video.compare = Video::Compare(i);
    }
  }
  if (video.kind == Video::kSet) signs.insert(signs.begin(), false);  // its result is unsigned
  if (signs.size() != 3) return std::nullopt;
  video.signed_d = signs[0];
  video.signed_a = signs[1];
  video.signed_b = signs[2];
  const auto &d = operands[0], &a = operands[1], &b = operands[2];
  if (video.parts == 1) {
    const bool sound = read_part(d.part, video.bits_d, video.shift_d) && read_part(a.part, video.bits_a, video.shift_a[0]) && read_part(b.part, video.bits_b, video.shift_b[0]);
    if (!sound || (operands.size() < 4 && (video.second != Video::kNone || !d.part.empty() || video.kind == Video::kMad))) return std::nullopt;
    video.negates_product = a.negated != b.negated;
    video.negates_c = operands.size() > 3 && operands[3].negated;
    return video;
  }
  const char letter = video.parts == 2 ? 'h' : 'b';
  const bool sound = operands.size() == 4 && read_parts(a.part, video, letter, 0, video.shift_a) && read_parts(b.part, video, letter, video.parts, video.shift_b) && read_mask(d.part, video, letter);
  return sound ? std::optional(video) : std::nullopt;
}

}  // namespace

Handler find_video_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0][0] != 'v') return nullptr;
  const auto video = read_video(instruction);
  if (!video) return nullptr;
  detail.video = std::make_shared<const VideoOperation>(*video);
  return video->kind == Video::kMad ? run<product> : video->parts == 1 ? run<scalar> : run<parallel>;
}

}  // namespace pkb::emulator
