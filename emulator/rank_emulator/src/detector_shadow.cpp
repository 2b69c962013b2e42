#include "detector_shadow.h"

#include <algorithm>

namespace pkb::emulator::detector {

Shadow::Page& Shadow::load_page(uint64_t number) {
  std::unique_ptr<Page>& page = pages_[number];
  if (!page) {
    page = std::make_unique<Page>();
    std::fill(std::begin(page->shift), std::end(page->shift), uint8_t(4));
    std::fill(std::begin(page->written), std::end(page->written), 0);
    const uint64_t begin = number * kPageBytes, end = begin + kPageBytes;
    auto next = defaults_.upper_bound(begin);
    bool written = next != defaults_.begin() && std::prev(next)->second;
    for (uint64_t at = begin; at < end;) {
      const uint64_t until = next == defaults_.end() ? end : std::min(end, next->first);
      for (; written && at < until;) {
        const uint64_t in_word = std::min<uint64_t>(64 - at % 64, until - at);
        page->written[at % kPageBytes / 64] |= mask_of(at % 64, in_word);
        at += in_word;
      }
      at = until;
      if (next != defaults_.end() && at < end) written = next++->second;
    }
  }
  cache_[number % kCached] = {number, page.get()};
  return *page;
}

Cell* Shadow::take_cells(uint8_t shift) {
  std::vector<Cell*>& free = free_cells_[shift];
  if (free.empty()) {
    const uint32_t each = uint32_t(kLineBytes) >> shift;
    constexpr uint32_t kAtOnce = 256;
    chunks_.push_back(std::make_unique<Cell[]>(each * kAtOnce));
    for (uint32_t i = 0; i < kAtOnce; ++i) free.push_back(chunks_.back().get() + i * each);
  }
  Cell* const cells = free.back();
  free.pop_back();
  return cells;
}

void Shadow::empty_cells(Cell* cells, uint8_t shift) {
  for (uint32_t i = 0; i < uint32_t(kLineBytes) >> shift; ++i) {
    if (cells[i].read.site == kManyReads) clear_reads(cells[i]);
    cells[i] = Cell();
  }
}

void Shadow::split(Page& page, uint32_t line, uint8_t shift) {
  const uint8_t old_shift = page.shift[line];
  Cell* const old_parts = old_shift == 4 ? &page.whole[line] : page.parts[line];
  Cell* const parts = take_cells(shift);
  const uint32_t each = 1u << (old_shift - shift);
  for (uint32_t i = 0; i < uint32_t(kLineBytes) >> shift; ++i) {
    parts[i] = old_parts[i / each];
    if (parts[i].read.site == kManyReads && i % each) {  // a set of its own
      std::vector<Record> copy = reads_of(parts[i]);
      parts[i].read = Record();
      make_set(parts[i]) = std::move(copy);
    }
  }
  if (old_shift == 4) {
    page.whole[line] = Cell();
  } else {
    // Sets went on to the first of the new parts.
    for (uint32_t i = 0; i < uint32_t(kLineBytes) >> old_shift; ++i) old_parts[i] = Cell();
    free_cells_[old_shift].push_back(old_parts);
  }
  page.parts[line] = parts;
  page.shift[line] = shift;
}

std::vector<Record>& Shadow::make_set(Cell& cell) {
  if (free_sets_.empty()) {
    read_sets_.emplace_back();
    free_sets_.push_back(uint32_t(read_sets_.size() - 1));
  }
  const uint32_t index = free_sets_.back();
  free_sets_.pop_back();
  std::vector<Record>& set = read_sets_[index];
  set.clear();
  if (cell.read.present()) set.push_back(cell.read);
  cell.read = Record{0, index + 1, kManyReads, 0};
  return set;
}

void Shadow::clear_reads(Cell& cell) {
  if (cell.read.site == kManyReads && cell.read.present()) {
    read_sets_[cell.read.time - 1].clear();
    free_sets_.push_back(cell.read.time - 1);
  }
  cell.read = Record();
}

void Shadow::merge_lines(uint64_t address, uint64_t bytes, const Record& write) {
  const uint64_t begin = (address + kLineBytes - 1) / kLineBytes * kLineBytes;
  const uint64_t end = (address + bytes) / kLineBytes * kLineBytes;
  for (uint64_t at = begin; at < end; at += kLineBytes) {
    Page& page = page_of(at);
    const auto line = uint32_t(at % kPageBytes / kLineBytes);
    if (page.shift[line] == 4) continue;
    forget_line(page, line, false);
    page.whole[line].write = write;
  }
}

const Cell* Shadow::find(uint64_t address) {
  const auto found = pages_.find(address / kPageBytes);
  if (found == pages_.end()) return nullptr;
  Page& page = *found->second;
  const auto line = uint32_t(address % kPageBytes / kLineBytes);
  const uint8_t shift = page.shift[line];
  return shift == 4 ? &page.whole[line] : &page.parts[line][address % kLineBytes >> shift];
}

void Shadow::forget_line(Page& page, uint32_t line, bool keeps_cells) {
  const uint8_t shift = page.shift[line];
  if (shift == 4) {
    clear_reads(page.whole[line]);
    page.whole[line] = Cell();
    return;
  }
  empty_cells(page.parts[line], shift);
  if (keeps_cells) return;
  free_cells_[shift].push_back(page.parts[line]);
  page.parts[line] = nullptr;
  page.shift[line] = 4;
}

void Shadow::forget(uint64_t address, uint64_t bytes, bool keeps_cells) {
  const uint64_t end = address + bytes;
  while (address < end) {
    const uint64_t page_end = (address / kPageBytes + 1) * kPageBytes;
    const auto found = pages_.find(address / kPageBytes);
    if (found == pages_.end()) {
      address = page_end;
      continue;
    }
    for (; address < std::min(end, page_end); address = (address / kLineBytes + 1) * kLineBytes) {
      if (address % kLineBytes == 0 && end - address >= kLineBytes) {
        forget_line(*found->second, uint32_t(address % kPageBytes / kLineBytes), keeps_cells);
      } else {
        const uint64_t line_end = std::min(end, (address / kLineBytes + 1) * kLineBytes);
        for_cells(address, line_end - address, [&](Cell& cell, uint64_t, uint32_t) {
          clear_reads(cell);
          cell = Cell();
        });
      }
    }
  }
}

void Shadow::set_written(uint64_t address, uint64_t bytes, bool written) {
  if (!bytes) return;
  const uint64_t end = address + bytes;
  // Pages to come.
  const auto default_at = [&](uint64_t at) {
    const auto next = defaults_.upper_bound(at);
    return next != defaults_.begin() && std::prev(next)->second;
  };
  const bool afterwards = default_at(end);
  defaults_.erase(defaults_.lower_bound(address), defaults_.lower_bound(end));
  defaults_[address] = written;
  defaults_[end] = afterwards;
  // Pages that are there.
  const uint64_t pages = end / kPageBytes - address / kPageBytes + 1;
  const auto set_in = [&](Page& page, uint64_t begin) {
    for (uint64_t at = std::max(begin, address); at < std::min(end, begin + kPageBytes);) {
      const uint64_t in_word = std::min<uint64_t>(64 - at % 64, std::min(end, begin + kPageBytes) - at);
      const uint64_t mask = mask_of(at % 64, in_word);
      uint64_t& word = page.written[at % kPageBytes / 64];
      word = written ? word | mask : word & ~mask;
      at += in_word;
    }
  };
  if (pages > pages_.size()) {
    for (const auto& [number, page] : pages_) {
      if ((number + 1) * kPageBytes > address && number * kPageBytes < end) set_in(*page, number * kPageBytes);
    }
  } else {
    for (uint64_t number = address / kPageBytes; number <= (end - 1) / kPageBytes; ++number) {
      const auto found = pages_.find(number);
      if (found != pages_.end()) set_in(*found->second, number * kPageBytes);
    }
  }
}

uint64_t Shadow::first_unwritten(uint64_t address, uint64_t bytes) {
  const uint64_t end = address + bytes;
  while (address < end) {
    const Page& page = page_of(address);
    const uint64_t in_word = std::min<uint64_t>(64 - address % 64, end - address);
    const uint64_t missing = mask_of(address % 64, in_word) & ~page.written[address % kPageBytes / 64];
    if (missing) return address - address % 64 + uint64_t(__builtin_ctzll(missing));
    address += in_word;
  }
  return end;
}

}  // namespace pkb::emulator::detector
