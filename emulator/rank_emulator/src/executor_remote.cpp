// st.async and red.async: registers of a lane go to shared memory of the cluster, and an mbarrier there counts the bytes.
#include "transfer.h"

namespace pkb::emulator {
namespace {

// addresses: to, mbarrier. values: elements.
Step store_async(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  const uint32_t bytes = detail.element_bytes * uint32_t(detail.vector);
  each_lane(lanes, [&](int lane) {
    Transfer transfer;
    transfer.proxy = Proxy::kGeneric;
    transfer.from_space = Space::kShared;
    transfer.mbarrier_bytes = bytes;
    transfer.reduction = reinterpret_cast<BulkReduction>(detail.number);
    transfer.element_bytes = detail.element_bytes;
    transfer.content.resize(bytes);
    for (int e = 0; e < detail.vector; ++e) {
      const uint64_t bits = x.value(detail.values[size_t(e)], lane);
      std::memcpy(transfer.content.data() + e * detail.element_bytes, &bits, detail.element_bytes);
    }
    transfer.pieces.push_back({shared_operand(x, op, detail.addresses[0], lane, bytes, bytes), 0, bytes});
    transfer.targets.push_back(mbarrier_at(x, op, lane, shared_operand(x, op, detail.addresses[1], lane, 8, 8)));
    queue(x, op, lane, std::move(transfer));
  });
  return Step::kNext;
}

}  // namespace

Handler find_remote_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  if ((name != "st" && name != "red") || !instruction.has("async") || detail.addresses.size() != 2) return nullptr;
  if (name == "red") {
    const BulkReduction reduction = find_bulk_reduction(reduction_of(instruction), instruction.parts.back());
    if (!reduction) return nullptr;
    detail.number = reinterpret_cast<uint64_t>(reduction);
  }
  return store_async;
}

}  // namespace pkb::emulator
