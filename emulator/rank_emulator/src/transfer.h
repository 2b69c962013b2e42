// Bulk copies: the memory that one accesses, and the mbarriers that its end is signalled to.
#pragma once

#include <string_view>
#include <vector>

#include "executor.h"

namespace pkb::emulator {

// What a copy touches: pieces of contiguous bytes.
struct Piece {
  uint64_t to, from;  // own addresses; from 0: `bytes` of `Transfer::content`, or of zeros
  uint32_t bytes;
};

struct Target {
  Block* block;
  uint32_t offset;    // of the mbarrier
};

// Reduces elements into others of so many bytes.
using BulkReduction = void (*)(char* to, const char* from, uint32_t bytes);
// Null: PTX has no such reduction.
BulkReduction find_bulk_reduction(std::string_view operation, std::string_view type);
// "add" of cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32; empty: it is none.
std::string_view reduction_of(const Instruction& instruction);

struct Transfer {
  AsyncOperation operation;
  std::vector<Piece> pieces;
  std::vector<char> content;          // of st.async and red.async, which bring values of registers
  Proxy proxy = Proxy::kAsync;
  uint32_t mbarrier_bytes = 0;
  std::vector<Target> targets;        // mbarriers that are notified
  CopyGroups* groups = nullptr;       // of the lane that waits by groups
  uint64_t group = 0;
  WarpState* warp = nullptr;
  Space to_space = Space::kShared, from_space = Space::kGlobal;
  BulkReduction reduction = nullptr;      // of cp.reduce.async.bulk and red.async
  uint32_t element_bytes = 0;         // of its elements
  const char* name = "";
};

// Queues a copy of a lane: it runs when the scheduler lets it, at once, or late and out of order.
void queue(Executor& x, const Op& op, int lane, Transfer transfer);

// ---- operands of copies ----
Target mbarrier_at(Executor& x, const Op& op, int lane, uint64_t address);
uint64_t shared_operand(Executor& x, const Op& op, const Address& address, int lane, uint32_t bytes, uint32_t alignment);
// As it stands in the operand.
uint64_t raw_operand(Executor& x, const Address& address, int lane);

// variant of cp.async.bulk
enum Direction { kToShared, kToGlobal, kSharedToShared };

// Copies of boxes of tensors. variant: Direction. Loads: addresses: to, map and corner, mbarrier. Stores: map and corner, from.
Step copy_tensor(Executor& x, const Op& op, uint32_t lanes);

}  // namespace pkb::emulator
