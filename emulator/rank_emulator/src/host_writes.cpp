#include "host_writes.h"

#include <algorithm>
#include <cstring>

namespace pkb::emulator {

void HostWrites::watch(uint64_t address, uint64_t bytes, bool is_on) {
  ranges_.erase(address);
  if (!is_on) return;
  const auto* const now = reinterpret_cast<const char*>(address);
  ranges_[address].assign(now, now + bytes);
}

void HostWrites::accept(uint64_t address, uint64_t bytes) {
  for (auto& [begin, content] : ranges_) {
    const uint64_t first = std::max(address, begin), last = std::min(address + bytes, begin + content.size());
    if (first < last) std::memcpy(content.data() + (first - begin), reinterpret_cast<const void*>(first), last - first);
  }
}

void HostWrites::begin() {
  for (auto& [address, content] : ranges_) std::memcpy(content.data(), reinterpret_cast<const void*>(address), content.size());
}

void HostWrites::end(Memory& memory) {
  for (const auto& [address, content] : ranges_) {
    const auto* const now = reinterpret_cast<const char*>(address);
    if (std::memcmp(content.data(), now, content.size()) == 0) continue;
    for (uint64_t i = 0; i < content.size(); ++i) {
      if (now[i] != content[i]) memory.set_written(address + i, 1, false);
    }
  }
}

}  // namespace pkb::emulator
