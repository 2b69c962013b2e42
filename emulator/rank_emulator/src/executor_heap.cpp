// Calls of malloc and free.
#include "executor.h"

namespace pkb::emulator {

// Arguments: bytes; of an aligned allocation its alignment, too.
Step allocate_call(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const bool aligned = detail.calls == Callee::kAlignedMalloc;
  DeviceHeap& heap = x.engine.heap(x.grid->launch.rank);
  each_lane(lanes, [&](int lane) {
    const uint64_t bytes = x.argument(detail, 0, lane), alignment = aligned ? x.argument(detail, 1, lane) : 1;
    if (alignment == 0 || (alignment & (alignment - 1))) x.fail(Outcome::kTrap, op, uint32_t(lane), "an alignment of " + std::to_string(alignment) + " is no power of two");
    const uint64_t own = heap.allocate(bytes, alignment), address = own ? gpu_address(own) : 0;
    for (const Variable& result : detail.results) std::memcpy(x.local_memory(lane, x.split->local_offset + uint32_t(result.offset)), &address, 8);
  });
  x.wrote();
  return Step::kNext;
}

// Counts as a write of the whole allocation: whoever still uses it must be ordered before.
Step free_call(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  DeviceHeap& heap = x.engine.heap(x.grid->launch.rank);
  each_lane(lanes, [&](int lane) {
    const uint64_t seen = x.argument(detail, 0, lane), address = own_address(seen);
    if (seen == 0) return;
    const int64_t bytes = is_of_gpu(seen) ? heap.size_of(address) : -1;
    if (bytes < 0) {
      x.fail(Outcome::kIllegalAddress, op, uint32_t(lane), "free of an address that malloc has not returned, or that is freed: " + x.engine.memory.describe(address));
    }
    if (x.engine.observer && bytes) {
      uint64_t addresses[kLanes] = {};
      addresses[lane] = address;
      Warp warp = x.seen(op, 1u << lane);
      warp.opcode = "free";
      x.engine.observer->access(Access{warp, Operation::kWrite, Order::kWeak, Scope::kNone, Space::kGlobal, Proxy::kGeneric, uint32_t(bytes),
                                       uint32_t(bytes), 1u << lane, addresses, true});
    }
    heap.release(address, place_of(op.source->line));
  });
  x.wrote();
  return Step::kNext;
}

}  // namespace pkb::emulator
