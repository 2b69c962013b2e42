// Branches, calls, ends of threads.
#include "executor.h"

namespace pkb::emulator {
namespace {

Step branch(Executor& x, const Op& op, uint32_t lanes) {
  x.branch(op, lanes, op.source->target);
  return Step::kJumped;
}

// brx.idx: each lane jumps to the entry of a table. Lanes of one entry part from the others, one entry after the other.
Step branch_by_index(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  uint64_t first = x.value(detail.values[0], __builtin_ctz(lanes));
  uint32_t same = 0;
  each_lane(lanes, [&](int lane) { same |= uint32_t(x.value(detail.values[0], lane) == first) << lane; });
  if (first >= detail.targets.size()) x.fail(Outcome::kTrap, op, uint32_t(__builtin_ctz(lanes)), "index beyond the table of branch targets");
  x.branch(op, same, detail.targets[first]);
  if (same != lanes) --x.split->pc;  // the others execute this instruction again
  return Step::kJumped;
}

Step exit(Executor& x, const Op& op, uint32_t lanes) {
  if (x.engine.observer) x.engine.observer->lanes_exit(x.seen(op, lanes));
  x.exit_lanes(lanes);
  if (x.warp->alive() == 0) --x.block->alive_warps;
  recheck_barriers(x.engine, *x.block);
  return x.split ? Step::kNext : Step::kEnded;
}

char* local_memory(Executor& x, int lane, uint32_t offset) {
  return x.warp->local + uint64_t(lane) * x.grid->kernel->local_bytes + offset;
}

Step call(Executor& x, const Op& op, uint32_t lanes) {
  const Detail& detail = *op.detail;
  Split& split = *x.split;
  if (lanes != split.lanes) x.fail(Outcome::kUnknownInstruction, op, 0, "a call under a predicate is not supported");
  const Code& callee = *detail.callee;
  const uint32_t local = split.local_offset + split.code->local_bytes;
  if (split.frame_offset + split.code->frame_bytes + callee.frame_bytes > x.grid->kernel->frame_bytes ||
      local + callee.local_bytes > x.grid->kernel->local_bytes) {
    x.fail(Outcome::kTrap, op, 0, "calls are nested deeper than the emulator's stack");
  }
  for (size_t i = 0; i < detail.arguments.size(); ++i) {
    const Variable &from = detail.arguments[i], &to = callee.function->parameters[i];
    each_lane(lanes, [&](int lane) {
      std::memcpy(local_memory(x, lane, local + uint32_t(to.offset)), local_memory(x, lane, split.local_offset + uint32_t(from.offset)), to.bytes);
    });
  }
  split.calls.push_back({split.code, split.pc + 1, split.frame_offset, split.local_offset, &op});
  split.frame_offset += split.code->frame_bytes;
  split.local_offset = local;
  split.code = &callee;
  split.pc = 0;
  x.rebase();
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
      std::memcpy(local_memory(x, lane, back.local_offset + uint32_t(to.offset)), local_memory(x, lane, split.local_offset + uint32_t(from.offset)), from.bytes);
    });
  }
  split.code = back.code;
  split.pc = back.return_to;
  split.frame_offset = back.frame_offset;
  split.local_offset = back.local_offset;
  x.rebase();
  return Step::kJumped;
}

Step jump_to_end(Executor& x, const Op& op, uint32_t lanes) {
  x.branch(op, lanes, int(x.split->code->ops.size()) - 1);
  return Step::kJumped;
}

Step trap(Executor& x, const Op& op, uint32_t lanes) {
  x.fail(Outcome::kTrap, op, uint32_t(__builtin_ctz(lanes)), "trap");
}

Step failed_assertion(Executor& x, const Op& op, uint32_t lanes) {
  const int lane = __builtin_ctz(lanes);
  const Detail& detail = *op.detail;
  const auto text = [&](size_t i) {
    uint64_t address;
    std::memcpy(&address, local_memory(x, lane, x.split->local_offset + uint32_t(detail.arguments[i].offset)), 8);
    return x.engine.memory.find(address, 1) ? std::string(reinterpret_cast<const char*>(address)) : std::string("?");
  };
  x.fail(Outcome::kTrap, op, uint32_t(lane), "assertion failed: " + (detail.arguments.empty() ? std::string() : text(0)));
}

Step sleep(Executor& x, const Op& op, uint32_t lanes) {
  x.engine.pass_time(x.value(op.detail->values[0], __builtin_ctz(lanes)));
  return Step::kYield;
}

Step no_operation(Executor&, const Op&, uint32_t) { return Step::kNext; }

}  // namespace

Handler find_control_handler(const Instruction& instruction, Detail& detail) {
  const auto name = instruction.parts[0];
  if (name == "bra") return branch;
  if (name == "brx") return branch_by_index;
  if (name == "exit") return exit;
  if (name == "ret") return detail.variant ? jump_to_end : exit;  // variant: 1: of a function
  if (name == "trap" || name == "brkpt") return trap;
  if (name == "nanosleep") return sleep;
  if (name == "setmaxnreg" || name == "griddepcontrol" || name == "pmevent") return no_operation;
  if (name == "call") {
    if (detail.callee) return call;
    if (detail.number == 1) return failed_assertion;
    if (detail.number == 2) return print_call;
  }
  return nullptr;
}

Handler end_of_function() { return leave_function; }

}  // namespace pkb::emulator
