// Which operation or handler an instruction gets, with its operands.
#include <algorithm>
#include <set>

#include "executor.h"
#include "prepare.h"
#include "ptx_lexer.h"

namespace pkb::emulator {

Handler end_of_function();

namespace {

const char* interned(std::string_view text) {
  static std::set<std::string, std::less<>> names;
  const auto found = names.find(text);
  return (found == names.end() ? names.emplace(text).first : found)->c_str();
}

// Functions that the CUDA toolkit declares and no module defines.
struct BuiltIn {
  std::string_view name;
  Callee callee;
  size_t arguments;
};
constexpr BuiltIn kBuiltIn[] = {{"__assertfail", Callee::kAssertion, 5}, {"vprintf", Callee::kPrint, 2}, {"malloc", Callee::kMalloc, 1},
                                {"__cuda_syscall_aligned_malloc", Callee::kAlignedMalloc, 2}, {"free", Callee::kFree, 1},
                                {"cudaGraphSetConditional", Callee::kSetConditional, 2}};

class FunctionPreparer {
 public:
  FunctionPreparer(const SharedLayout& shared, const SymbolAddress& address_of, const std::map<std::string_view, Code*>& codes, Code& code)
      : codes_(codes), code_(code), function_(*code.function), layout_(lay_out_frame(function_)), places_(function_, layout_.offsets, shared, address_of) {}

  int prepare() {
    code_.frame_bytes = layout_.bytes;
    code_.local_bytes = uint32_t(function_.local_bytes);
    const int end = int(function_.code.size());
    for (const Instruction& instruction : function_.code) code_.ops.push_back(prepare_one(instruction));
    if (!function_.is_entry) {
      Op leave;
      leave.handler = end_of_function();
      leave.meets_here = true;
      code_.ops.push_back(leave);
    } else if (code_.ops.empty() || !ends(function_.code.back())) {
      static const Instruction kExit = [] {
        Instruction exit;
        exit.opcode = "exit";
        exit.parts = {"exit"};
        return exit;
      }();
      code_.ops.push_back(prepare_one(kExit));
    }
    for (const Detail& detail : code_.details) {
      if (detail.meets >= 0) code_.ops[size_t(std::min(detail.meets, end))].meets_here = true;
    }
    for (const auto& [at, loads] : function_.uses) {
      code_.ops[size_t(at)].uses_loads = true;
      for (const int load : loads) code_.uses[at].push_back(&function_.code[size_t(load)].line);
    }
    code_.constants = places_.constants.finish();
    return layout_.pressure;
  }

 private:
  static bool ends(const Instruction& instruction) {
    return instruction.guard < 0 && (instruction.parts[0] == "ret" || instruction.parts[0] == "exit" || instruction.parts[0] == "trap" || instruction.parts[0] == "bra");
  }

  void read_operands(const Instruction& instruction, Detail& detail) {
    const auto name = instruction.parts[0];
    if (name == "call") return read_call(instruction, detail);
    bool first_vector = true;
    for (const Operand& operand : instruction.operands) {
      if (operand.kind == Operand::kAddress) {
        detail.addresses.push_back(places_.address_of(instruction, operand));
      } else if (name == "bra" || (name == "brx" && operand.kind == Operand::kSymbol)) {
      } else if (name == "mov" && operand.kind == Operand::kSymbol && move_of_address(operand, detail)) {
      } else if (name == "mov" && operand.kind == Operand::kSpecial && is_clock(operand.name)) {
      } else {
        if (operand.kind == Operand::kVector && first_vector) detail.vector = int(operand.elements.size());
        first_vector &= operand.kind != Operand::kVector;
        places_.add_values(instruction, operand, detail);
      }
    }
  }

  static bool is_clock(std::string_view name) { return name.starts_with("%clock") || name.starts_with("%globaltimer") || name == "%gridid"; }

  // The address of a variable of the lane's frame, or of a parameter of the kernel.
  bool move_of_address(const Operand& operand, Detail& detail) const {
    if (operand.local < 0) return false;
    const Variable& variable = function_.locals[size_t(operand.local)];
    if (variable.place == Variable::kShared) return false;
    const bool of_kernel = variable.place == Variable::kParameter && function_.is_entry;
    detail.variant = of_kernel ? 5 : 4;  // kParameterAddress, kFrameAddress
    detail.number = variable.offset + uint64_t(operand.offset);
    return true;
  }

  void read_call(const Instruction& instruction, Detail& detail) {
    const auto variables = [&](const Operand& list) {
      std::vector<Variable> found;
      for (const Operand& element : list.elements) {
        if (element.local < 0) refuse(instruction, "arguments in registers are not supported");
        found.push_back(function_.locals[size_t(element.local)]);
      }
      return found;
    };
    std::string_view name;
    for (const Operand& operand : instruction.operands) {
      if (operand.kind == Operand::kVector) {
        (name.empty() ? detail.results : detail.arguments) = variables(operand);
      } else if (name.empty()) {  // what follows the arguments is a prototype, or a list of targets
        name = operand.name;
        if (operand.kind == Operand::kRegister) {
          detail.calls = Callee::kPointer;
          places_.add_values(instruction, operand, detail);
        }
      }
    }
    if (detail.calls == Callee::kPointer || instruction.guard >= 0) detail.meets = int(&instruction - function_.code.data()) + 1;
    if (detail.calls == Callee::kPointer) return;
    const auto found = codes_.find(name);
    if (found != codes_.end()) {
      detail.callee = found->second;
      const Function& callee = *found->second->function;
      if (callee.parameters.size() != detail.arguments.size() || callee.results.size() != detail.results.size()) refuse(instruction, "it has other parameters");
      return;
    }
    const auto built_in = std::find_if(std::begin(kBuiltIn), std::end(kBuiltIn), [&](const BuiltIn& each) { return each.name == name; });
    if (built_in == std::end(kBuiltIn)) {
      const bool is_of_runtime = name.starts_with("cuda");
      refuse(instruction, "there is no function '" + std::string(name) + "'" + (is_of_runtime ? ": calls of the CUDA runtime by kernels, such as launches, are not modelled by the emulator" : ""));
    }
    if (detail.arguments.size() != built_in->arguments) refuse(instruction, "it has other parameters");
    detail.calls = built_in->callee;
  }

  Op prepare_one(const Instruction& instruction) {
    Op op;
    op.source = &instruction;
    op.name = interned(instruction.opcode);
    if (instruction.guard >= 0) {
      op.guard = instruction.guard_negated ? 2 : 1;
      op.guard_offset = places_.register_ref(instruction.guard).offset;
    }
    if (!prepare_lanes(instruction, op) && !prepare_comparison(instruction, op)) prepare_handler(instruction, op);
    return op;
  }

  std::optional<LaneOperation> find_lane_operation(const Instruction& instruction) const {
    const auto& operands = instruction.operands;
    if (operands.size() < 2 || operands[0].kind != Operand::kRegister) return std::nullopt;
    for (const Operand& operand : operands) {
      if (operand.kind == Operand::kAddress || operand.kind == Operand::kVector || operand.kind == Operand::kPair) return std::nullopt;
    }
    const auto name = instruction.parts[0];
    if (instruction.parts.back() == "pred" || name == "setp" || name == "set" || name == "cvta" || name == "call") return std::nullopt;
    if (name == "mov" && operands[1].kind == Operand::kSpecial && is_clock(operands[1].name)) return std::nullopt;
    if (name == "mov" && operands[1].kind == Operand::kSymbol && operands[1].local >= 0 && function_.locals[size_t(operands[1].local)].place != Variable::kShared) return std::nullopt;
    if (name == "cvt") {
      int source = int(operands.back().kind == Operand::kRegister ? places_.register_bytes(operands.back().index) : 0);
      if (source == 0) source = operands.back().kind == Operand::kSpecial ? 4 : 8;
      return find_conversion(instruction, places_.register_bytes(operands[0].index), source);
    }
    static constexpr std::string_view kNames[] = {"add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "sad",
                                                  "and", "or", "xor", "not", "cnot", "shl", "shr", "popc", "clz", "brev", "bfind", "bfe",
                                                  "selp", "mov", "prmt", "shf", "szext", "bmsk", "fns", "mul24", "mad24", "sqrt", "rcp", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "copysign"};
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) return std::nullopt;
    if (const auto found = find_bits(instruction)) return found;
    if (const auto found = find_integer(instruction)) return found;
    if (const auto found = find_float(instruction)) return found;
    if (const auto found = find_approximation(instruction)) return found;
    if (const auto found = find_directed(instruction)) return found;
    return find_half(instruction);
  }

  bool prepare_lanes(const Instruction& instruction, Op& op) {
    const auto found = find_lane_operation(instruction);
    const bool selects = instruction.parts[0] == "selp";
    if (!found || instruction.operands.size() != size_t(found->operands) + 1) return false;
    op.form = Form::kLanes;
    op.lanes = found->run;
    op.result_bytes = found->result_bytes;
    op.d = places_.register_ref(instruction.operands[0].index);
    Ref* const refs[] = {&op.a, &op.b, &op.c};
    for (size_t i = 0; i < found->operands; ++i) {
      const Operand& operand = instruction.operands[i + 1];
      const bool predicate = selects && i == 2;
      if (operand.negated || !operand.part.empty()) refuse(instruction, "a negated operand, or a part of one, is not supported");
      if (predicate && operand.kind == Operand::kImmediate) {
        *refs[i] = places_.constants.add(operand.bits ? ~0u : 0, 0);
      } else {
        *refs[i] = places_.operand_ref(instruction, operand, found->operand_bytes[i]);
      }
    }
    if (found->constant) op.c = places_.constants.add(found->constant, 8);
    if (places_.register_bytes(instruction.operands[0].index) != op.result_bytes) refuse(instruction, "the result's register has another width");
    return true;
  }

  std::optional<Comparison> comparison_of(const Instruction& instruction) const {
    if (instruction.parts.size() < 3) return std::nullopt;
    return find_comparison(instruction.parts[1], instruction.parts.back(), instruction.has("ftz"));
  }

  bool prepare_comparison(const Instruction& instruction, Op& op) {
    const auto& operands = instruction.operands;
    if (instruction.parts[0] != "setp" || operands.size() != 3 || operands[0].kind != Operand::kRegister) return false;
    const auto found = comparison_of(instruction);
    if (!found) return false;
    op.form = Form::kCompare;
    op.compare = found->run;
    op.d = places_.register_ref(operands[0].index);
    op.a = places_.operand_ref(instruction, operands[1], found->operand_bytes);
    op.b = places_.operand_ref(instruction, operands[2], found->operand_bytes);
    return true;
  }

  void prepare_handler(const Instruction& instruction, Op& op) {
    Detail& detail = code_.details.emplace_back();
    detail.source = &instruction;
    detail.decides = decides(function_, instruction);
    read_modifiers(instruction, detail);
    read_operands(instruction, detail);
    const auto name = instruction.parts[0];
    const auto index = size_t(&instruction - function_.code.data());
    const bool inside = index < function_.code.size();
    detail.may_be_unused = inside && function_.may_be_unused[index];
    const bool keeps_rows = (name == "ldmatrix" && !instruction.has("trans")) ||
                            (name == "wmma" && instruction.has("load") && !instruction.has("b") && !instruction.has("col"));
    detail.keeps_unwritten = name == "ld" || keeps_rows;
    if (name == "bra" || name == "brx" || name == "ret") {
      detail.meets = inside ? function_.meets[index] : -1;
      detail.targets = instruction.targets;
      if (!function_.is_entry) {
        if (name == "ret") detail.variant = 1;
        if (detail.meets < 0) detail.meets = int(function_.code.size());
      }
    }
    if (name == "setp" || name == "set") {
      const auto found = comparison_of(instruction);
      if (!found) refuse(instruction, "");
      const auto bits = reinterpret_cast<uint64_t>(found->run);
      op.a = {uint32_t(bits), uint32_t(bits >> 32)};
    }
    op.detail = &detail;
    op.form = Form::kHandler;
    op.handler = nullptr;
    for (const auto find : {find_call_handler, find_control_handler, find_memory_handler, find_misc_handler, find_barrier_handler, find_warp_handler,
                            find_atomic_handler, find_multimem_handler, find_mbarrier_handler, find_copy_handler, find_bulk_handler, find_remote_handler, find_matrix_handler,
                            find_wgmma_handler, find_wmma_handler, find_video_handler, find_texture_handler}) {
      op.handler = find(instruction, detail);
      if (op.handler) return;
    }
    refuse(instruction, "");
  }

  const std::map<std::string_view, Code*>& codes_;
  Code& code_;
  const Function& function_;
  const FrameLayout layout_;
  OperandPlaces places_;
};

}  // namespace

void read_modifiers(const Instruction& instruction, Detail& detail) {
  static constexpr std::pair<std::string_view, Order> kOrders[] = {
      {"weak", Order::kWeak}, {"volatile", Order::kVolatile}, {"relaxed", Order::kRelaxed}, {"acquire", Order::kAcquire},
      {"release", Order::kRelease}, {"acq_rel", Order::kAcquireRelease}, {"sc", Order::kSequential}, {"mmio", Order::kRelaxed}};
  static constexpr std::pair<std::string_view, Scope> kScopes[] = {
      {"cta", Scope::kCta}, {"cluster", Scope::kCluster}, {"gpu", Scope::kGpu}, {"sys", Scope::kSys}};
  static constexpr std::pair<std::string_view, Space> kSpaces[] = {
      {"global", Space::kGlobal}, {"shared", Space::kShared}, {"shared::cta", Space::kShared}, {"shared::cluster", Space::kShared},
      {"local", Space::kLocal}, {"const", Space::kConstant}, {"param", Space::kParameter}, {"param::entry", Space::kParameter}, {"param::func", Space::kParameter}};
  for (const auto& [word, order] : kOrders) {
    if (instruction.has(word)) detail.order = order;
  }
  for (const auto& [word, scope] : kScopes) {
    if (instruction.has(word)) detail.scope = scope;
  }
  for (const auto& [word, space] : kSpaces) {
    if (!instruction.has(word)) continue;
    detail.space = space;
    detail.generic = false;
  }
  if (detail.order == Order::kVolatile) detail.scope = Scope::kSys;
  const auto type = instruction.parts.back();
  try {
    detail.element_bytes = type == "pred" || type.empty() ? 4 : uint8_t(type_bytes("." + std::string(type)));
  } catch (const PtxError&) {
    detail.element_bytes = 4;
  }
  detail.is_signed = type.starts_with('s') && type.size() <= 3;
  detail.is_float = type.starts_with('f') || type.starts_with("bf");
}

int prepare_function(const SharedLayout& shared, const SymbolAddress& address_of, const std::map<std::string_view, Code*>& codes, Code& code) {
  return FunctionPreparer(shared, address_of, codes, code).prepare();
}

}  // namespace pkb::emulator
