// Memory that kernels may touch: regions of this process, in one address space for all ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "events.h"

namespace pkb::emulator {

// Memory of a GPU has two addresses. Programs see the one that has these bits, in the half of the address space that no
// process can map: host code that touches it crashes, as it does where there is a GPU. The emulator's own address of the
// same byte lacks them, and lies a distance further that each process draws: host code cannot compute it, and what it
// makes of the bits crashes, too. All other memory has one address alone.
#if defined(__x86_64__)
constexpr uint64_t kGpuBits = ~0ull << 47;
#else
constexpr uint64_t kGpuBits = ~0ull << 48;
#endif

constexpr int kNewByte = 0xff;  // of allocations, where they are not too large; the rest is zero

inline bool is_of_gpu(uint64_t address) { return address >= kGpuBits; }
// A multiple of 1 GiB, so that both addresses are aligned alike.
extern const uint64_t kOwnDistance;
inline uint64_t own_address_of_gpu(uint64_t address) { return (address + kOwnDistance) & ~kGpuBits; }
inline uint64_t own_address(uint64_t address) { return is_of_gpu(address) ? own_address_of_gpu(address) : address; }
inline uint64_t gpu_address(uint64_t own) { return (own - kOwnDistance) | kGpuBits; }

// A mapping of zeroed pages, given back at the end.
class Mapping {
 public:
  Mapping() = default;
  // `on_gpu`: has an address that programs alone see, and a bit for each byte that says whether a GPU has written it.
  explicit Mapping(uint64_t bytes, bool on_gpu = false);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // As programs see it.
  uint64_t address() const { return written_ ? gpu_address(reinterpret_cast<uint64_t>(data_)) : reinterpret_cast<uint64_t>(data_); }
  uint8_t* written() const { return written_; }  // null: not on a GPU

 private:
  char* data_ = nullptr;
  uint64_t bytes_ = 0, mapped_ = 0;
  uint8_t* written_ = nullptr;
};

// Addresses of four lanes: the compiler makes single instructions of their operations at any level.
using FourLanes = uint64_t __attribute__((vector_size(32)));

inline FourLanes four_lanes(const uint64_t (&addresses)[kLanes], int first) {
  FourLanes four;
  __builtin_memcpy(&four, addresses + first, sizeof four);
  return four;
}

// Whether each lane's bytes follow those of the lane before it.
inline bool are_consecutive(const uint64_t (&addresses)[kLanes], uint64_t bytes) {
  FourLanes expected = FourLanes{0, 1, 2, 3} * bytes + addresses[0], wrong{};
  for (int lane = 0; lane < kLanes; lane += 4) {
    wrong |= four_lanes(addresses, lane) ^ expected;
    expected += 4 * bytes;
  }
  return !(wrong[0] | wrong[1] | wrong[2] | wrong[3]);
}

struct Extent {
  uint64_t begin, end;        // own addresses; on a GPU multiples of 8
  Space space;
  int rank;
  uint64_t region;
  bool on_gpu = false;        // programs see its `gpu_address`
  uint8_t* written = nullptr;  // a bit for each byte: whether a kernel, a copy or a fill has written it; null: nobody asks
  const uint32_t* reached_by = nullptr;  // a bit for each rank whose kernels have access; null: all have

  bool is_reached_by(int rank) const { return !reached_by || *reached_by >> rank & 1; }

  // Notes writes of lanes, each of so many bytes, a power of two whose multiple its address is.
  void note_written(uint32_t lanes, const uint64_t (&addresses)[kLanes], uint32_t bytes) const {
    if (!written) return;
    if (lanes == ~0u && (addresses[0] - begin) % 8 == 0 && are_consecutive(addresses, bytes)) {
      __builtin_memset(written + (addresses[0] - begin) / 8, 0xff, kLanes / 8 * bytes);
    } else if (bytes < 8) {
      each_lane(lanes, [&](int lane) {
        const uint64_t at = addresses[lane] - begin;
        written[at / 8] = uint8_t(written[at / 8] | ((1u << bytes) - 1) << at % 8);
      });
    } else {
      each_lane(lanes, [&](int lane) { __builtin_memset(written + (addresses[lane] - begin) / 8, 0xff, bytes / 8); });
    }
  }
};

// Addresses that stand for the same place in the memory of several GPUs (NVLink multicast).
struct Multicast {
  uint64_t begin, end;            // own addresses
  std::vector<uint64_t> members;  // own address on each GPU of what lies at `begin`
};

// Addresses are the emulator's own, unless something else is said.
class Memory {
 public:
  // Registers memory; `checked`: accesses are checked against it (regions inside others are names alone).
  uint64_t add(RegionKind kind, int rank, const std::string& name, uint64_t address, uint64_t bytes, Space space,
               bool checked, uint32_t element_bytes = 0, bool initialised = true, uint64_t launch = 0, uint32_t block = 0);
  // The same for memory of a GPU, at an address in a mapping.
  uint64_t add_on_gpu(RegionKind kind, int rank, const std::string& name, const Mapping& mapping, uint64_t address, uint64_t bytes, Space space,
                      bool initialised = true);
  // Lets programs reach memory of a GPU at a further address; `region` is the one that it belongs to.
  void add_alias(uint64_t region, int rank, uint64_t address, uint64_t bytes, uint8_t* written);
  void remove_alias(uint64_t address);
  // Addresses that instructions for multicast alone may use.
  void add_multicast(uint64_t begin, uint64_t bytes, std::vector<uint64_t> members);
  // Those from `begin` to `end`.
  void remove_multicasts(uint64_t begin, uint64_t end);
  // Where all of these bytes lie, at an address that a program uses; null: nowhere.
  const Multicast* find_multicast(uint64_t address, uint64_t bytes) const;
  // Lets kernels of those ranks alone have access that have a bit in `ranks`, which lives as long as the region.
  void restrict(uint64_t region, const uint32_t* ranks);
  // Gives memory of a GPU the one address that host code may touch, too.
  void share_with_host(uint64_t region);
  bool remove(uint64_t region);
  // How often memory has been removed that may not be read any more.
  uint64_t removals() const { return removals_; }

  // The extent that holds all of these bytes, or null.
  const Extent* find(uint64_t address, uint64_t bytes) {
    if (last_ && address >= last_->begin && address <= last_->end && bytes <= last_->end - address) return last_;
    return find_slowly(address, bytes);
  }

  // The extent that holds all of the bytes at an address that a program uses, or null.
  const Extent* find_seen(uint64_t address, uint64_t bytes) {
    const Extent* const found = find(own_address(address), bytes);
    return found && found->on_gpu == is_of_gpu(address) ? found : nullptr;
  }

  // The same for kernels of a rank, which may lack access.
  const Extent* find_reached(int rank, uint64_t address, uint64_t bytes) {
    const Extent* const found = find_seen(address, bytes);
    return found && found->is_reached_by(rank) ? found : nullptr;
  }

  // ---- which bytes of GPUs their kernels, copies and fills have written ----
  void set_written(uint64_t address, uint64_t bytes, bool written = true);
  // The place of the first of these bytes that nothing of a GPU has written, though it is no longer as `before`; null: as
  // in new memory. `bytes`: there is none.
  uint64_t first_foreign(uint64_t address, uint64_t bytes, const char* before);

  // "argument x of rank 1, byte 128" for messages. The address may be one that programs see.
  std::string describe(uint64_t address) const;
  // The same, with the reason where a rank's kernels lack access.
  std::string describe(uint64_t address, int rank);
  void set_observer(Observer* observer);
  const Region* region(uint64_t id) const;

 private:
  const Extent* find_slowly(uint64_t address, uint64_t bytes);

  std::map<uint64_t, Extent> extents_;  // by begin
  std::map<uint64_t, Multicast> multicasts_;  // by begin
  std::map<uint64_t, Region> regions_;  // by id
  struct Freed {
    uint64_t address, bytes;
    int rank;
  };
  void note_freed(uint64_t address, uint64_t bytes, int rank);
  std::deque<Freed> freed_;  // the last ones
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
