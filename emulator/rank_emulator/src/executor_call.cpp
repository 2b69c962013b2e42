// Calls of functions, by name and through pointers, and their ends.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {

Handler end_of_function();

namespace {

// Bytes of local memory that a call takes at the least, so that the stack ends for functions without variables, too.
constexpr uint32_t kLeast = 16;

// Where the registers of a function begin that the split calls: behind its own, and beside those of other functions that
// other lanes of the warp are in (the same function at the same place has its lanes apart).
uint32_t place_frame(const WarpState& warp, const Split& split, const Code& callee) {
  const uint32_t top = split.frame_offset + split.code->frame_bytes;
  uint32_t end = top;
  bool overlaps = false;
  const auto look = [&](const Code* code, uint32_t offset) {
    end = std::max(end, offset + code->frame_bytes);
    overlaps |= offset < top + callee.frame_bytes && top < offset + code->frame_bytes && (code != &callee || offset != top);
  };
  const auto look_at_all = [&](const auto& of) {
    look(of.code, of.frame_offset);
    for (const Call& call : of.calls) look(call.code, call.frame_offset);
  };
  for (const Split& other : warp.splits) {
    if (&other != &split) look_at_all(other);
  }
  for (const Join& join : warp.joins) {
    if (!join.free) look_at_all(join);
  }
  return overlaps ? end : top;
}

// Registers of deeper calls than the kernel's direct ones.
void grow(WarpState& warp, uint32_t bytes) {
  const uint32_t size = std::max(bytes, 2 * warp.frame_bytes);
  AlignedBytes larger = aligned_bytes(size);
  std::memcpy(larger.get(), warp.registers, warp.frame_bytes);
  std::memset(larger.get() + warp.frame_bytes, 0, size - warp.frame_bytes);
  warp.grown = std::move(larger);
  warp.registers = reinterpret_cast<char*>(warp.grown.get());
  warp.frame_bytes = size;
}

void enter_function(Executor& x, const Op& op, const Code& callee) {
  const Detail& detail = *op.detail;
  Split& split = *x.split;
  const Kernel& kernel = *x.grid->kernel;
  const uint32_t least = kernel.local_of_stack ? kLeast : 0;
  const uint32_t local = split.local_offset + std::max(split.code->local_bytes, split.calls.empty() ? 0u : least);
  if (local + std::max(callee.local_bytes, least) > kernel.local_bytes) {
    x.fail(Outcome::kTrap, op, uint32_t(__builtin_ctz(split.lanes)),
           "calls are nested " + std::to_string(split.calls.size() + 1) + " deep: the stack of " +
               std::to_string((kernel.local_bytes - kernel.bounded_local) / kernel.local_of_stack) +
               " bytes of a thread is exhausted; cudaDeviceSetLimit(cudaLimitStackSize) gives it more");
  }
  const uint32_t frame = place_frame(*x.warp, split, callee);
  if (frame + callee.frame_bytes > x.warp->frame_bytes) grow(*x.warp, frame + callee.frame_bytes);
  for (size_t i = 0; i < detail.arguments.size(); ++i) {
    const Variable &from = detail.arguments[i], &to = callee.function->parameters[i];
    each_lane(split.lanes, [&](int lane) {
      std::memcpy(x.local_memory(lane, local + uint32_t(to.offset)), x.local_memory(lane, split.local_offset + uint32_t(from.offset)), to.bytes);
    });
  }
  split.calls.push_back({split.code, split.pc + 1, split.frame_offset, split.local_offset, &op});
  split.frame_offset = frame;
  split.local_offset = local;
  split.code = &callee;
  split.pc = 0;
  x.rebase();
}

// Of lanes that part: these execute the call again, alone.
Step part(Executor& x, const Op& op, uint32_t lanes) {
  x.branch(op, lanes, x.split->pc);
  --x.split->pc;  // the others, whether they call or not
  return Step::kJumped;
}

Step call(Executor& x, const Op& op, uint32_t lanes) {
  if (lanes != x.split->lanes) return part(x, op, lanes);
  enter_function(x, op, *op.detail->callee);
  return Step::kJumped;
}

bool alike(const std::vector<Variable>& a, const std::vector<Variable>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Variable& x, const Variable& y) { return x.bytes == y.bytes; });
}

// Lanes that call the same function do so together, one function after the other.
Step call_pointer(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const int first = __builtin_ctz(lanes);
  const uint64_t address = x.value(detail.values[0], first);
  uint32_t same = 0;
  each_lane(lanes, [&](int lane) { same |= uint32_t(x.value(detail.values[0], lane) == address) << lane; });
  if (same != x.split->lanes) return part(x, op, same);
  const auto& codes = x.grid->kernel->code_at;
  const auto found = codes.find(address);
  if (found == codes.end()) x.fail(Outcome::kIllegalAddress, op, uint32_t(first), "call through a pointer: " + x.engine.describe_function(address, x.grid->launch.rank));
  const Function& function = *found->second->function;
  if (!alike(function.parameters, detail.arguments) || !alike(function.results, detail.results)) {
    x.fail(Outcome::kTrap, op, uint32_t(first), "call through a pointer: the function '" + std::string(function.name) + "' has other parameters or results");
  }
  enter_function(x, op, *found->second);
  return Step::kJumped;
}

// At the end of a function, where its paths have met.
Step leave_function(Executor& x, const Op&, uint32_t lanes) {
  Split& split = *x.split;
  const Call back = split.calls.back();
  split.calls.pop_back();
  const Detail& detail = *back.op->detail;
  for (size_t i = 0; i < detail.results.size(); ++i) {
    const Variable &from = split.code->function->results[i], &to = detail.results[i];
    each_lane(lanes, [&](int lane) {
      std::memcpy(x.local_memory(lane, back.local_offset + uint32_t(to.offset)), x.local_memory(lane, split.local_offset + uint32_t(from.offset)), from.bytes);
    });
  }
  split.code = back.code;
  split.pc = back.return_to;
  split.frame_offset = back.frame_offset;
  split.local_offset = back.local_offset;
  x.rebase();
  return Step::kJumped;
}

Step failed_assertion(Executor& x, const Op& op, uint32_t lanes) {
  const int lane = __builtin_ctz(lanes);
  const uint64_t address = x.argument(*op.detail, 0, lane);
  const bool known = x.engine.memory.find_seen(address, 1);
  x.fail(Outcome::kTrap, op, uint32_t(lane), std::string("assertion failed: ") + (known ? reinterpret_cast<const char*>(own_address(address)) : "?"));
}

// A conditional node's word in memory, by its handle.
Step set_conditional(Executor& x, const Op& op, uint32_t lanes) {
  uint64_t addresses[kLanes] = {};
  uint32_t changed = 0;
  each_lane(lanes, [&](int lane) {
    const uint64_t handle = x.argument(*op.detail, 0, lane);
    const auto value = uint32_t(x.argument(*op.detail, 1, lane));
    if (!x.find_reached(handle, sizeof value)) x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "cudaGraphSetConditional of a handle that cudaGraphConditionalHandleCreate has not made");
    addresses[lane] = own_address(handle);
    auto* const word = reinterpret_cast<char*>(addresses[lane]);
    changed |= uint32_t(std::memcmp(word, &value, sizeof value) != 0) << lane;
    std::memcpy(word, &value, sizeof value);
    x.engine.memory.set_written(addresses[lane], sizeof value);
  });
  if (x.engine.observer) {
    Warp warp = x.seen(op, lanes);
    warp.opcode = "cudaGraphSetConditional";
    x.engine.observer->access(Access{warp, Operation::kWrite, Order::kWeak, Scope::kNone, Space::kGlobal, Proxy::kGeneric, 4, 4, changed, addresses, true});
  }
  x.wrote();
  return Step::kNext;
}

}  // namespace

Handler end_of_function() { return leave_function; }

Handler find_call_handler(const Instruction& instruction, Detail& detail) {
  if (instruction.parts[0] != "call") return nullptr;
  switch (detail.calls) {
    case Callee::kFunction: return call;
    case Callee::kPointer: return call_pointer;
    case Callee::kAssertion: return failed_assertion;
    case Callee::kPrint: return print_call;
    case Callee::kMalloc:
    case Callee::kAlignedMalloc: return allocate_call;
    case Callee::kFree: return free_call;
    case Callee::kSetConditional: return set_conditional;
  }
  return nullptr;
}

}  // namespace pkb::emulator
