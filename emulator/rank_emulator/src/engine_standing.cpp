// Where warps stand still, for messages: one line for all that wait alike.
#include <cstring>
#include <map>
#include <set>

#include "engine.h"
#include "ptx_lexer.h"

namespace pkb::emulator {
namespace {

constexpr size_t kMaxLines = 20;
constexpr size_t kMaxOps = 16;  // between a load and the comparison of what it has loaded

// Warps that wait alike.
struct Alike {
  size_t warps = 0;
  std::set<const Block*> blocks;
  std::set<uint64_t> places;
  std::string first;  // what the first of them has read there
};

const char* why(const Split& split) {
  static constexpr const char* kWhy[] = {"runs", "polls", "waits at a barrier", "waits at barrier.cluster", "waits for lanes of its warp", "waits for copies", "waits for the kernel before its own"};
  return split.wait == Wait::kPoll && !split.polled ? "waits for time to pass" : kWhy[int(split.wait)];
}

// The comparison that follows a load, with what it compares: it is computed as the warp would.
class Comparing {
 public:
  Comparing(const WarpState& warp, const Split& split) : split_(split), values_(kMaxOps + 4) {
    bases_[kFrame] = warp.registers + split.frame_offset;
    bases_[kConstants] = reinterpret_cast<const char*>(split.code->constants.get());
    bases_[kSpecials] = warp.specials;
  }

  // "0 with 7 (setp.eq.u32)"; empty: none is near.
  std::string text() {
    const std::vector<Op>& ops = split_.code->ops;
    const auto load = size_t(split_.polling - ops.data());
    if (load >= ops.size()) return "";
    for (const Value& value : split_.polling->detail->values) {
      if (value.ref.base == kFrame) loaded_.insert(value.ref.offset);
    }
    for (size_t i = load + 1; i < std::min(ops.size(), load + kMaxOps); ++i) {
      const Op& op = ops[i];
      if (op.form == Form::kCompare && (is_loaded(op.a) || is_loaded(op.b))) return text_of(op);
      if (op.form == Form::kLanes && (is_loaded(op.a) || is_loaded(op.b) || is_loaded(op.c))) {
        auto& to = values_[computed_.size() % values_.size()];
        op.lanes(to.data(), at(op.a), at(op.b), at(op.c));
        computed_[op.d.offset] = to.data();
        loaded_.insert(op.d.offset);
      }
    }
    return "";
  }

 private:
  bool is_loaded(Ref ref) const { return ref.base == kFrame && loaded_.contains(ref.offset); }
  const char* at(Ref ref) const {
    const auto found = ref.base == kFrame ? computed_.find(ref.offset) : computed_.end();
    return found == computed_.end() ? bases_[ref.base] + ref.offset : found->second;
  }

  std::string number(Ref ref, std::string_view type, size_t bytes) const {
    uint64_t bits = 0;
    std::memcpy(&bits, at(ref) + bytes * size_t(split_.polling_lane), bytes);
    const auto drop = int(64 - 8 * bytes);
    if (type.starts_with('s')) return std::to_string(int64_t(bits << drop) >> drop);
    return std::to_string(bits);
  }

  std::string text_of(const Op& op) const {
    const auto type = op.source->parts.back();
    if (type.empty() || (type[0] != 'u' && type[0] != 's' && type[0] != 'b')) return "";
    const size_t bytes = type_bytes("." + std::string(type));
    if (bytes > 8) return "";
    const bool swapped = !is_loaded(op.a);
    return number(swapped ? op.b : op.a, type, bytes) + " with " + number(swapped ? op.a : op.b, type, bytes) + " (" + op.name + ")";
  }

  const Split& split_;
  const char* bases_[kBases];
  std::set<uint32_t> loaded_;
  std::map<uint32_t, const char*> computed_;
  struct alignas(64) Lanes {
    char bytes[16 * kLanes];
    char* data() { return bytes; }
  };
  std::vector<Lanes> values_;
};

}  // namespace

std::string Engine::standing() const {
  std::map<std::pair<std::string, const Instruction*>, Alike> places;  // instructions may lack a line
  std::string text;
  for (const Running& running : running_) {
    const Grid& grid = *running.grid;
    const std::string kernel = "rank " + std::to_string(grid.launch.rank) + ", kernel " + grid.launch.kernel;
    if (grid.next_cluster < grid.clusters) {
      const uint32_t blocks = grid.launch.cluster[0] * grid.launch.cluster[1] * grid.launch.cluster[2];
      text += "\n  " + kernel + ": blocks that are not resident: " + std::to_string((grid.clusters - grid.next_cluster) * blocks);
    }
    for (const auto& cluster : grid.resident) {
      for (const auto& block : cluster->blocks) {
        for (const WarpState& warp : block->warps) {
          for (const Split& split : warp.splits) {
            const bool polls = split.wait == Wait::kPoll;
            const Op& op = polls ? *split.polling : split.code->ops[size_t(split.pc)];
            Alike& alike = places[{kernel + ", " + op.name + (op.source ? " at " + place_of(op.source->line) : "") + ": " + why(split), op.source}];
            ++alike.warps;
            alike.blocks.insert(block.get());
            if (!polls || !split.polled) continue;
            alike.places.insert(split.polled);
            if (alike.places.size() > 1 || !alike.first.empty()) continue;
            alike.first = " " + memory.describe(split.polled);
            const std::string compared = Comparing(warp, split).text();
            if (!compared.empty()) alike.first += ", comparing " + compared;
            const std::string writer = observer ? observer->last_write(split.polled, split.polled_bytes) : "";
            if (!writer.empty()) alike.first += "; " + writer;
          }
        }
      }
    }
  }
  size_t lines = 0;
  for (const auto& [place, alike] : places) {
    if (++lines > kMaxLines) {
      text += "\n  and " + std::to_string(places.size() - kMaxLines) + " more places";
      break;
    }
    text += "\n  " + place.first + alike.first;
    if (alike.warps < 2) continue;
    text += " (" + std::to_string(alike.warps) + " warps";
    if (alike.blocks.size() > 1) text += " of " + std::to_string(alike.blocks.size()) + " blocks";
    if (alike.places.size() > 1) text += ", " + std::to_string(alike.places.size()) + " places, of which this is the first";
    text += ")";
  }
  return text;
}

}  // namespace pkb::emulator
