// Branches, ends of threads.
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
  if (x.warp->alive() == 0 && --x.block->alive_warps == 0) x.block->ended_at = op.source->line;
  recheck_barriers(x.engine, *x.block);
  return x.split ? Step::kNext : Step::kEnded;
}

Step jump_to_end(Executor& x, const Op& op, uint32_t lanes) {
  x.branch(op, lanes, int(x.split->code->ops.size()) - 1);
  return Step::kJumped;
}

Step trap(Executor& x, const Op& op, uint32_t lanes) {
  x.fail(Outcome::kTrap, op, uint32_t(__builtin_ctz(lanes)), "trap");
}

Step sleep(Executor& x, const Op& op, uint32_t lanes) {
  x.engine.pass_time(x.value(op.detail->values[0], __builtin_ctz(lanes)));
  return Step::kYield;
}

// griddepcontrol. variant: 1: wait, else launch_dependents (PTX ISA 9.7.13, "griddepcontrol").
Step grid_dependency(Executor& x, const Op& op, uint32_t lanes) {
  if (!op.detail->variant) {
    x.engine.trigger(*x.block);
    return Step::kNext;
  }
  const uint64_t prerequisite = x.grid->launch.prerequisite;
  if (prerequisite && x.engine.is_running(prerequisite)) {
    x.split->wait = Wait::kPrerequisite;
    return Step::kBlocked;
  }
  if (x.engine.observer) x.engine.observer->prerequisite_wait(x.seen(op, lanes));
  return Step::kNext;
}

// Which stores are late, and which are in time.
void follow_mark(Executor& x, LibraryMark mark, uint32_t lanes) {
  const int rank = x.grid->launch.rank;
  switch (mark) {
    case LibraryMark::kPut: x.warp->late_puts |= x.engine.late_puts.draw() ? lanes : 0; break;
    case LibraryMark::kGet: x.warp->late_gets |= x.engine.late_puts.draw() ? lanes : 0; break;
    case LibraryMark::kEnd:
      x.warp->late_puts &= ~lanes;
      x.warp->late_gets &= ~lanes;
      break;
    case LibraryMark::kFence: x.engine.took_effect(x.engine.late_puts.complete(rank, false)); break;
    case LibraryMark::kQuiet: x.engine.took_effect(x.engine.late_puts.complete(rank, true)); break;
    default: break;
  }
}

// What a library's header says of its functions; to the program it is nothing.
Step mark(Executor& x, const Op& op, uint32_t lanes) {
  const auto bits = uint32_t(x.value(op.detail->values[0], __builtin_ctz(lanes)));
  if ((bits & ~0xffu) != kLibraryMarks) return Step::kNext;
  constexpr auto kOfEachLane = uint32_t(LibraryMark::kOfEachLane);
  const auto mark = LibraryMark(bits & 0xff & ~kOfEachLane);
  follow_mark(x, mark, lanes);
  if (x.engine.observer) x.engine.observer->library_mark(x.seen(op, lanes), mark, bits & kOfEachLane);
  return Step::kNext;
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
  if (name == "griddepcontrol") {
    detail.variant = instruction.has("wait");
    return grid_dependency;
  }
  if (name == "pmevent" && instruction.has("mask")) return mark;
  if (name == "setmaxnreg" || name == "pmevent") return no_operation;
  return nullptr;
}

}  // namespace pkb::emulator
