// cp.async.bulk.tensor: boxes of a tensor, by its map.
#include <algorithm>

#include "tensor_map.h"
#include "transfer.h"

namespace pkb::emulator {
namespace {

uint32_t swizzled(uint32_t offset, int swizzle) {
  if (swizzle == 0) return offset;
  return offset ^ ((offset >> 7 & uint32_t(2 * swizzle - 1)) << 4);
}

// Pieces of a box: runs of 16 bytes (swizzling moves those), or shorter at the edge. Beyond the tensor: zeros on loads,
// nothing on stores.
std::vector<Piece> pieces_of(const TensorMap& map, const int64_t (&corner)[5], uint64_t shared, uint32_t shared_offset, bool loads) {
  std::vector<Piece> pieces;
  const uint32_t row_bytes = uint32_t(map.box[0]) * map.element_bytes;
  int64_t at[5] = {0, 0, 0, 0, 0};
  const int rank = map.rank;
  uint32_t row = 0;
  while (true) {
    bool inside = true;
    uint64_t address = map.address;
    for (int d = 1; d < rank; ++d) {
      const int64_t index = corner[d] + at[d] * map.element_strides[d];
      inside &= index >= 0 && uint64_t(index) < map.sizes[d];
      address += uint64_t(index) * map.strides[d - 1];
    }
    for (uint32_t begin = 0; begin < row_bytes; begin += 16) {
      const uint32_t length = std::min(16u, row_bytes - begin);
      const uint32_t to = swizzled(shared_offset + row * row_bytes + begin, map.swizzle) - shared_offset;
      const int64_t first = corner[0] * map.element_bytes + begin, end = int64_t(map.sizes[0]) * map.element_bytes;
      const int64_t low = std::clamp<int64_t>(0, first, first + length), high = std::clamp<int64_t>(end, low, first + length);
      const bool any = inside && high > low && first + int64_t(length) > 0;
      const auto lead = any ? uint32_t(low - first) : length, used = any ? uint32_t(high - low) : 0u;
      if (loads && lead) pieces.push_back({shared + to, 0, lead});
      if (used) {
        const uint64_t tensor = address + uint64_t(low), box = shared + to + lead;
        pieces.push_back(loads ? Piece{box, tensor, used} : Piece{tensor, box, used});
      }
      if (loads && lead + used < length) pieces.push_back({shared + to + lead + used, 0, length - lead - used});
    }
    ++row;
    int d = 1;
    while (d < rank && ++at[d] == map.box[d]) at[d++] = 0;
    if (d >= rank) break;
  }
  return pieces;
}

uint64_t box_bytes(const TensorMap& map) {
  uint64_t bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

// The PTX type of a tensor's elements, by CUtensorMapDataType; empty: there are no reductions of it.
std::string_view type_of(const TensorMap& map) {
  static constexpr std::string_view kTypes[] = {"", "", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32", "", ""};
  return map.type < std::size(kTypes) ? kTypes[map.type] : "";
}

std::string_view bits_of(std::string_view integer) {
  if (integer == "u32" || integer == "s32") return "b32";
  return integer == "u64" || integer == "s64" ? "b64" : "";
}

TensorMap read_map(Executor& x, const Op& op, uint64_t address, int lane) {
  TensorMap map;
  if (!x.find_reached(address, 128)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address of a tensor map: " + x.engine.memory.describe(address));
  if (address % 64) x.fail(Outcome::kMisaligned, op, uint32_t(lane), "a tensor map must lie at a multiple of 64 bytes");
  std::memcpy(&map, reinterpret_cast<const void*>(own_address(address)), sizeof map);
  if (map.magic != TensorMap::kMagic) x.fail(Outcome::kTrap, op, uint32_t(lane), "there is no tensor map at " + x.engine.memory.describe(address));
  return map;
}

}  // namespace

Step copy_tensor(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const Instruction& source = *op.source;
  const bool loads = detail.variant == kToShared;
  each_lane(lanes, [&](int lane) {
    const Address& tensor = detail.addresses[loads ? 1 : 0];
    const TensorMap map = read_map(x, op, raw_operand(x, tensor, lane), lane);
    if (tensor.coordinates.size() != map.rank) x.fail(Outcome::kTrap, op, uint32_t(lane), "the tensor map has " + std::to_string(map.rank) + " dimensions");
    int64_t corner[5] = {};
    for (size_t d = 0; d < tensor.coordinates.size(); ++d) corner[d] = int32_t(x.value(tensor.coordinates[d], lane));
    const auto bytes = uint32_t(box_bytes(map));
    const uint64_t shared = shared_operand(x, op, detail.addresses[loads ? 0 : 1], lane, bytes, 128);
    uint32_t offset = 0;
    Block* const block = block_of(*x.block->cluster, shared, offset);
    Transfer transfer;
    transfer.mbarrier_bytes = bytes;
    if (!loads) {
      transfer.pieces = pieces_of(map, corner, shared, offset, false);
      transfer.to_space = Space::kGlobal;
      transfer.from_space = Space::kShared;
      if (source.parts[1] == "reduce") {
        const auto operation = reduction_of(source), type = type_of(map);
        transfer.reduction = find_bulk_reduction(operation, operation == "and" || operation == "or" || operation == "xor" ? bits_of(type) : type);
        transfer.element_bytes = map.element_bytes;
        if (!transfer.reduction) {
          x.fail(Outcome::kUnknownInstruction, op, uint32_t(lane), "there is no reduction ." + std::string(operation) + " of the tensor map's type" + (type.empty() ? "" : " ." + std::string(type)));
        }
      }
    } else {
      const Target barrier = mbarrier_at(x, op, lane, shared_operand(x, op, detail.addresses[2], lane, 8, 8));
      const bool multicast = source.has("multicast::cluster");
      const uint64_t mask = multicast ? x.value(detail.values[0], lane) : 1ull << block->in_cluster;
      for (const auto& to : x.block->cluster->blocks) {
        if (!(mask >> to->in_cluster & 1)) continue;
        const auto pieces = pieces_of(map, corner, reinterpret_cast<uint64_t>(to->shared) + offset, offset, true);
        transfer.pieces.insert(transfer.pieces.end(), pieces.begin(), pieces.end());
        transfer.targets.push_back(multicast ? Target{to.get(), barrier.offset} : barrier);
      }
    }
    for (Piece& piece : transfer.pieces) {
      uint64_t& global = loads ? piece.from : piece.to;
      if (global && !x.find_reached(global, piece.bytes)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "illegal address: " + x.engine.memory.describe(global, x.grid->launch.rank));
      global = own_address(global);
    }
    queue(x, op, lane, std::move(transfer));
  });
  return Step::kNext;
}

}  // namespace pkb::emulator
