// Memory that kernels may touch: regions of this process, in one address space for all ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "events.h"

namespace pkb::emulator {

// A mapping of zeroed pages, given back at the end.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(uint64_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

struct Extent {
  uint64_t begin, end;
  Space space;
  int rank;
  uint64_t region;
};

class Memory {
 public:
  // Registers memory; `checked`: accesses are checked against it (regions inside others are names alone).
  uint64_t add(RegionKind kind, int rank, const std::string& name, uint64_t address, uint64_t bytes, Space space,
               bool checked, uint32_t element_bytes = 0, bool initialised = true, uint64_t launch = 0, uint32_t block = 0);
  bool remove(uint64_t region);
  // How often memory has been removed that may not be read any more.
  uint64_t removals() const { return removals_; }

  // The extent that holds all of these bytes, or null.
  const Extent* find(uint64_t address, uint64_t bytes) {
    if (last_ && address >= last_->begin && address + bytes <= last_->end) return last_;
    return find_slowly(address, bytes);
  }

  // "argument x of rank 1, byte 128" for messages.
  std::string describe(uint64_t address) const;
  void set_observer(Observer* observer);
  const Region* region(uint64_t id) const;

 private:
  const Extent* find_slowly(uint64_t address, uint64_t bytes);

  std::map<uint64_t, Extent> extents_;  // by begin
  std::map<uint64_t, Region> regions_;  // by id
  std::set<std::string> names_;
  const Extent* last_ = nullptr;
  uint64_t next_ = 1, removals_ = 0;
  Observer* observer_ = nullptr;
};

// Blocks of memory of a few sizes that are used again.
class Pool {
 public:
  explicit Pool(uint64_t alignment) : alignment_(alignment) {}
  ~Pool();
  char* take(uint64_t bytes);
  void give_back(char* memory, uint64_t bytes);

 private:
  uint64_t alignment_;
  std::unordered_map<uint64_t, std::deque<char*>> free_;
  std::deque<char*> all_;
};

}  // namespace pkb::emulator
