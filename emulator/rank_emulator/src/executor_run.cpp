// The interpreter's loop, and groups of lanes that part and meet.
#include <algorithm>

#include "executor.h"

namespace pkb::emulator {
namespace {

// to[i] = from[i] where the mask has bit i.
void blend(char* to, const char* from, uint32_t mask, int bytes) {
  switch (bytes) {
    case 2: return select_lanes(reinterpret_cast<uint16_t*>(to), reinterpret_cast<const uint16_t*>(from), reinterpret_cast<const uint16_t*>(to), mask);
    case 4: return select_lanes(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from), reinterpret_cast<const uint32_t*>(to), mask);
    case 8: return select_lanes(reinterpret_cast<uint64_t*>(to), reinterpret_cast<const uint64_t*>(from), reinterpret_cast<const uint64_t*>(to), mask);
    default:
      for (int i = 0; i < kLanes; ++i) {
        if (mask >> i & 1) std::memcpy(to + i * bytes, from + i * bytes, size_t(bytes));
      }
  }
}

}  // namespace

void Executor::run(WarpState& state, uint64_t budget) {
  warp = &state;
  block = state.block;
  grid = block->grid;
  size_t index = warp->turn++;  // so that none waits for another for ever
  for (size_t passed = 0; passed < warp->splits.size() && budget > 0; ++index) {
    index %= warp->splits.size();
    if (!runnable(warp->splits[index])) {
      ++passed;
      continue;
    }
    run_split(index, budget);
    passed = 0;  // others may have been woken or removed
  }
}

void Executor::enter(size_t index) {
  index_ = index;
  split = &warp->splits[index];
  bases[kFrame] = warp->registers + split->frame_offset;
  bases[kConstants] = reinterpret_cast<const char*>(split->code->constants.get());
  bases[kSpecials] = warp->specials;
}

void Executor::run_split(size_t index, uint64_t& budget) {
  enter(index);
  alignas(64) char scratch[16 * kLanes];
  while (budget > 0) {
    const Op& op = split->code->ops[size_t(split->pc)];
    if (op.meets_here) {
      arrive_at_join();
      if (!split) return;
    }
    uint32_t lanes = split->lanes;
    if (!warp->unwritten.empty()) follow_unwritten(op);
    if (op.uses_loads && engine.observer) note_uses(op, lanes);  // a guard that is false has been used, too
    if (op.guard) {
      uint32_t predicate;
      std::memcpy(&predicate, bases[kFrame] + op.guard_offset, 4);
      lanes &= op.guard == 1 ? predicate : ~predicate;
      if (lanes == 0) {
        ++split->pc;
        --budget;
        ++engine.steps;
        continue;
      }
    }
    --budget;
    ++engine.steps;
    if (op.form == Form::kLanes) {
      char* const to = const_cast<char*>(bases[kFrame]) + op.d.offset;
      if (is_full(lanes)) {
        op.lanes(to, at(op.a), at(op.b), at(op.c));
      } else {
        op.lanes(scratch, at(op.a), at(op.b), at(op.c));
        blend(to, scratch, lanes, op.result_bytes);
      }
      ++split->pc;
    } else if (op.form == Form::kCompare) {
      auto* const to = reinterpret_cast<uint32_t*>(const_cast<char*>(bases[kFrame]) + op.d.offset);
      *to = (*to & ~lanes) | (op.compare(at(op.a), at(op.b)) & lanes);
      ++split->pc;
    } else {
      switch (op.handler(*this, op, lanes)) {
        case Step::kNext: ++split->pc; break;
        case Step::kJumped: break;
        case Step::kYield: ++split->pc; budget = 0; break;
        case Step::kBlocked: return;
        case Step::kEnded: return;
      }
      if (split->wait != Wait::kNone) return;
    }
  }
}

[[gnu::noinline]] void Executor::note_uses(const Op& op, uint32_t lanes) {
  for (const SourceLine* load : split->code->uses.at(split->pc)) engine.observer->value_used(seen(op, lanes), load);
}

// Where the split has come to where it meets others: it becomes part of what goes on there, or goes on as all of them.
void Executor::arrive_at_join() {
  if (split->join < 0) return;
  Join& join = warp->joins[size_t(split->join)];
  if (join.pc != split->pc || join.depth != split->calls.size()) return;
  join.arrived |= split->lanes;
  if (join.arrived == join.expected) {  // goes on as all of them
    split->lanes = join.expected;
    split->join = join.parent;
    join.free = true;
    arrive_at_join();
    return;
  }
  remove_split();
}

void Executor::remove_split() {
  warp->splits.erase(warp->splits.begin() + long(index_));
  split = nullptr;
}

int Executor::new_join(const Join& join) {
  for (size_t i = 0; i < warp->joins.size(); ++i) {
    if (!warp->joins[i].free) continue;
    warp->joins[i] = join;
    return int(i);
  }
  warp->joins.push_back(join);
  return int(warp->joins.size()) - 1;
}

void Executor::branch(const Op& op, uint32_t taken, int target) {
  if (taken == split->lanes) {
    split->pc = target;
    return;
  }
  if (taken == 0) {
    ++split->pc;
    return;
  }
  const int meets = op.detail->meets;
  if (meets >= 0) {
    const bool same = split->join >= 0 && warp->joins[size_t(split->join)].pc == meets &&
                      warp->joins[size_t(split->join)].depth == split->calls.size();
    if (!same) {
      Join join;
      join.pc = meets;
      join.depth = uint32_t(split->calls.size());
      join.expected = split->lanes;
      join.parent = split->join;
      join.free = false;
      join.code = split->code;
      join.frame_offset = split->frame_offset;
      join.local_offset = split->local_offset;
      join.calls = split->calls;
      split->join = new_join(join);
    }
  }
  Split other = *split;
  other.lanes = taken;
  other.pc = target;
  split->lanes &= ~taken;
  ++split->pc;
  warp->splits.push_back(std::move(other));
  enter(index_);
}

// Lanes end. Where others wait for them alone, those go on.
void Executor::exit_lanes(uint32_t lanes) {
  warp->exited |= lanes;
  const int first = split->join;
  split->lanes &= ~lanes;
  if (split->lanes == 0) remove_split();
  for (int at = first; at >= 0;) {
    Join& join = warp->joins[size_t(at)];
    join.expected &= ~lanes;
    const int parent = join.parent;
    if (join.expected == 0) {
      join.free = true;
    } else if (join.expected == join.arrived) {
      complete(at);
    }
    at = parent;
  }
}

void Executor::complete(int index) {
  Join& join = warp->joins[size_t(index)];
  Split next;
  next.lanes = join.expected;
  next.pc = join.pc;
  next.join = join.parent;
  next.code = join.code;
  next.frame_offset = join.frame_offset;
  next.local_offset = join.local_offset;
  next.calls = join.calls;
  join.free = true;
  warp->splits.push_back(std::move(next));
  if (split) enter(index_);
}

uint32_t Executor::gather(uint32_t members, uint32_t lanes, bool anywhere) {
  const uint32_t needed = members & warp->alive();
  if ((lanes & needed) == needed) return lanes;
  uint32_t come = lanes;
  const auto with = [&](const Split& other) {
    return other.wait == Wait::kWarp && other.members == members && other.code == split->code && (anywhere || (other.pc == split->pc && other.frame_offset == split->frame_offset));
  };
  for (const Split& other : warp->splits) {
    if (&other != split && with(other)) come |= other.lanes;
  }
  if ((come & needed) != needed) {
    split->wait = Wait::kWarp;
    split->members = members;
    return 0;
  }
  for (Split& other : warp->splits) {
    if (&other == split || !with(other)) continue;
    other.wait = Wait::kNone;
    ++other.pc;
  }
  return come;
}

}  // namespace pkb::emulator
