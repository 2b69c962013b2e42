// Shadow memory: of each byte the last write, the reads since then, and whether anybody has written it.
//
// A line of 16 bytes has one cell as long as it is accessed as a whole, and cells of 8, 4, 2 or 1 bytes once it is not;
// a write of the whole line makes it one cell again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "detector_agents.h"

namespace pkb::emulator::detector {

constexpr uint32_t kManyReads = ~0u >> 3;  // as `site` of a cell's read: its `time` is 1 + the index of a set

struct Cell {
  Record write;
  Record read;
};

class Shadow {
 public:
  static constexpr uint64_t kPageBytes = 4096, kLineBytes = 16;
  static constexpr size_t kMostReads = 48;  // of a set; more are of data that very many lanes read

  // Calls visit(cell, address, bytes) for the cells that make up a range; splits lines as far as needed.
  template <class Visit>
  void for_cells(uint64_t address, uint64_t bytes, const Visit& visit);

  // Begins to bring the cell of a byte into the cache: of what lanes access, more lies in memory than a cache holds.
  void prefetch(uint64_t address) {
    const Page& page = page_of(address);
    const auto line = uint32_t(address % kPageBytes / kLineBytes);
    const uint8_t shift = page.shift[line];
    __builtin_prefetch(shift == 4 ? &page.whole[line] : &page.parts[line][address % kLineBytes >> shift], 1);
  }

  // Makes each whole line of a range one cell of this write, without reads.
  void merge_lines(uint64_t address, uint64_t bytes, const Record& write);

  // The cell that holds a byte, or null where there is none yet.
  const Cell* find(uint64_t address);

  std::vector<Record>& reads_of(const Cell& cell) { return read_sets_[cell.read.time - 1]; }
  // Turns a single read into a set.
  std::vector<Record>& make_set(Cell& cell);
  void clear_reads(Cell& cell);

  // Forgets all accesses to a range. `keeps_cells`: what comes next will be accessed as it was, as by the next block that has
  // this shared memory.
  void forget(uint64_t address, uint64_t bytes, bool keeps_cells = false);

  void set_written(uint64_t address, uint64_t bytes, bool written);
  // The same of what an access has written: pages are there already.
  void mark_written(uint64_t address, uint64_t bytes) {
    for (const uint64_t end = address + bytes; address < end;) {
      const uint64_t in_word = std::min<uint64_t>(64 - address % 64, end - address);
      page_of(address).written[address % kPageBytes / 64] |= mask_of(address % 64, in_word);
      address += in_word;
    }
  }
  // The first byte of a range that nobody has written, or the range's end.
  uint64_t first_unwritten(uint64_t address, uint64_t bytes);

 private:
  static constexpr uint32_t kLines = kPageBytes / kLineBytes;

  struct Page {
    Cell whole[kLines];
    Cell* parts[kLines] = {};
    uint8_t shift[kLines];  // log2 of a cell's bytes
    uint64_t written[kPageBytes / 64];
  };

  static uint64_t mask_of(uint64_t at, uint64_t bytes) { return (bytes >= 64 ? ~0ull : (1ull << bytes) - 1) << at; }

  Page& page_of(uint64_t address) {
    const uint64_t number = address / kPageBytes;
    Cached& cached = cache_[number % kCached];
    if (cached.page && cached.number == number) return *cached.page;
    return load_page(number);
  }
  Page& load_page(uint64_t number);
  void split(Page& page, uint32_t line, uint8_t shift);
  Cell* take_cells(uint8_t shift);
  void empty_cells(Cell* cells, uint8_t shift);
  void forget_line(Page& page, uint32_t line, bool keeps_cells);

  struct Cached {
    uint64_t number;
    Page* page;
  };
  static constexpr size_t kCached = 256;
  Cached cache_[kCached] = {};
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  std::map<uint64_t, bool> defaults_;  // from this address on bytes count as written or not, where there is no page
  std::vector<std::vector<Record>> read_sets_;
  std::vector<uint32_t> free_sets_;
  std::vector<Cell*> free_cells_[4];   // by shift
  std::vector<std::unique_ptr<Cell[]>> chunks_;
};

template <class Visit>
void Shadow::for_cells(uint64_t address, uint64_t bytes, const Visit& visit) {
  const uint64_t end = address + bytes;
  while (address < end) {
    Page& page = page_of(address);
    const auto line = uint32_t(address % kPageBytes / kLineBytes);
    const uint64_t base = address - address % kLineBytes;
    const auto low = uint32_t(address - base);
    const auto high = uint32_t(std::min(end - base, kLineBytes));
    const auto needed = uint8_t(__builtin_ctz(low | high | uint32_t(kLineBytes)));
    if (page.shift[line] > needed) split(page, line, needed);
    const uint8_t shift = page.shift[line];
    if (shift == 4) {
      visit(page.whole[line], base, uint32_t(kLineBytes));
    } else {
      Cell* const parts = page.parts[line];
      for (uint32_t i = low >> shift; i < high >> shift; ++i) visit(parts[i], base + (uint64_t(i) << shift), 1u << shift);
    }
    address = base + kLineBytes;
  }
}

}  // namespace pkb::emulator::detector
