// Turns the functions of a kernel into operations whose operands are places in memory.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <set>
#include <unordered_map>

#include "executor.h"
#include "ptx_lexer.h"

namespace pkb::emulator {

Handler end_of_function();

namespace {

uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

const char* interned(std::string_view text) {
  static std::set<std::string, std::less<>> names;
  const auto found = names.find(text);
  return (found == names.end() ? names.emplace(text).first : found)->c_str();
}

constexpr std::pair<std::string_view, Special> kSpecials_[] = {
    {"%tid.x", Special::kTidX}, {"%tid.y", Special::kTidY}, {"%tid.z", Special::kTidZ},
    {"%ntid.x", Special::kNtidX}, {"%ntid.y", Special::kNtidY}, {"%ntid.z", Special::kNtidZ},
    {"%ctaid.x", Special::kCtaidX}, {"%ctaid.y", Special::kCtaidY}, {"%ctaid.z", Special::kCtaidZ},
    {"%nctaid.x", Special::kNctaidX}, {"%nctaid.y", Special::kNctaidY}, {"%nctaid.z", Special::kNctaidZ},
    {"%laneid", Special::kLaneId}, {"%warpid", Special::kWarpId}, {"%nwarpid", Special::kNwarpId},
    {"%smid", Special::kSmId}, {"%nsmid", Special::kNsmId}, {"%gridid", Special::kGridId},
    {"%clusterid.x", Special::kClusteridX}, {"%clusterid.y", Special::kClusteridY}, {"%clusterid.z", Special::kClusteridZ},
    {"%nclusterid.x", Special::kNclusteridX}, {"%nclusterid.y", Special::kNclusteridY}, {"%nclusterid.z", Special::kNclusteridZ},
    {"%cluster_ctaid.x", Special::kClusterCtaidX}, {"%cluster_ctaid.y", Special::kClusterCtaidY}, {"%cluster_ctaid.z", Special::kClusterCtaidZ},
    {"%cluster_nctaid.x", Special::kClusterNctaidX}, {"%cluster_nctaid.y", Special::kClusterNctaidY}, {"%cluster_nctaid.z", Special::kClusterNctaidZ},
    {"%cluster_ctarank", Special::kClusterCtarank}, {"%cluster_nctarank", Special::kClusterNctarank}, {"%is_explicit_cluster", Special::kIsExplicitCluster},
    {"%lanemask_eq", Special::kLanemaskEq}, {"%lanemask_lt", Special::kLanemaskLt}, {"%lanemask_le", Special::kLanemaskLe},
    {"%lanemask_gt", Special::kLanemaskGt}, {"%lanemask_ge", Special::kLanemaskGe},
    {"%dynamic_smem_size", Special::kDynamicSmemSize}, {"%total_smem_size", Special::kTotalSmemSize}};

// Constants of a function, each for 32 lanes.
class Constants {
 public:
  Constants() : bytes_(64) {}

  Ref add(uint64_t bits, uint32_t bytes) {
    const auto [found, fresh] = places_.try_emplace({bits, bytes}, uint32_t(bytes_.size()));
    if (fresh) {
      const uint32_t lanes = bytes == 0 ? 1 : kLanes, each = bytes == 0 ? 4 : bytes;
      const size_t at = bytes_.size();
      bytes_.resize(align_up(at + size_t(each) * lanes, 64));
      for (uint32_t i = 0; i < lanes; ++i) std::memcpy(&bytes_[at + i * each], &bits, std::min(each, 8u));
    }
    return {found->second, kConstants};
  }
  AlignedBytes finish() const {
    AlignedBytes memory = aligned_bytes(bytes_.size());
    std::memcpy(memory.get(), bytes_.data(), bytes_.size());
    return memory;
  }

 private:
  std::vector<uint8_t> bytes_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> places_;
};

// Offsets of .shared variables in the block's shared memory, for one kernel.
struct SharedLayout {
  std::map<std::string_view, uint32_t> offsets;
};

class FunctionPreparer {
 public:
  FunctionPreparer(const Kernel& kernel, const SharedLayout& shared, const SymbolAddress& address_of,
                   const std::map<std::string_view, Code*>& codes, Code& code)
      : kernel_(kernel), shared_(shared), address_of_(address_of), codes_(codes), code_(code), function_(*code.function) {}

  int prepare() {
    const FrameLayout layout = lay_out_frame(function_);
    offsets_ = layout.offsets;
    code_.frame_bytes = layout.bytes;
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
    code_.constants = constants_.finish();
    return layout.pressure;
  }

 private:
  static bool ends(const Instruction& instruction) {
    return instruction.guard < 0 && (instruction.parts[0] == "ret" || instruction.parts[0] == "exit" || instruction.parts[0] == "trap" || instruction.parts[0] == "bra");
  }

  Ref register_ref(int index) const { return {offsets_[size_t(index)], kFrame}; }
  int register_bytes(int index) const { return kLaneBytes[int(function_.registers[size_t(index)].kind)]; }

  [[noreturn]] void refuse(const Instruction& instruction, const std::string& problem) const {
    throw PtxError("unknown instruction " + std::string(instruction.opcode) + " at " + place_of(instruction.line) + " (PTX line " +
                   std::to_string(instruction.ptx_line) + ")" + (problem.empty() ? "" : ": " + problem));
  }

  // The value of a symbol: an offset in shared memory, or an address of this process.
  uint64_t symbol(const Instruction& instruction, const Operand& operand) const {
    if (operand.local >= 0) {
      const Variable& variable = function_.locals[size_t(operand.local)];
      if (variable.place == Variable::kShared) return shared_.offsets.at(variable.name) + uint64_t(operand.offset);
      refuse(instruction, "the address of '" + std::string(operand.name) + "' cannot be used here");
    }
    if (operand.name == "WARP_SZ") return kLanes;
    const auto shared = shared_.offsets.find(operand.name);
    if (shared != shared_.offsets.end()) return shared->second + uint64_t(operand.offset);
    const uint64_t address = address_of_(operand.name);
    if (address == 0) refuse(instruction, "there is no variable '" + std::string(operand.name) + "'");
    return address + uint64_t(operand.offset);
  }

  static uint64_t immediate_bits(const Operand& operand, bool is_float, uint32_t bytes) {
    if (!operand.is_float) return operand.bits;
    if (operand.is_single) return bytes == 8 && is_float ? std::bit_cast<uint64_t>(double(std::bit_cast<float>(uint32_t(operand.bits)))) : operand.bits;
    return bytes == 4 && is_float ? std::bit_cast<uint32_t>(float(std::bit_cast<double>(operand.bits))) : operand.bits;
  }

  // An operand of arithmetic, of so many bytes.
  Ref operand_ref(const Instruction& instruction, const Operand& operand, uint32_t bytes) {
    switch (operand.kind) {
      case Operand::kRegister: return register_ref(operand.index);
      case Operand::kImmediate: return constants_.add(immediate_bits(operand, instruction.parts.back()[0] == 'f', bytes), bytes);
      case Operand::kSpecial: return special(instruction, operand.name);
      case Operand::kSymbol: return constants_.add(symbol(instruction, operand), bytes);
      default: refuse(instruction, "an operand of this kind is not supported");
    }
  }

  Ref special(const Instruction& instruction, std::string_view name) const {
    for (const auto& [word, index] : kSpecials_) {
      if (word == name) return {uint32_t(index) * kSpecialBytes, kSpecials};
    }
    refuse(instruction, "there is no register " + std::string(name));
  }

  Value value_of(const Instruction& instruction, const Operand& operand, uint32_t immediate_bytes) {
    Value value;
    value.negated = operand.negated;
    value.present = true;
    switch (operand.kind) {
      case Operand::kSink: value.present = false; break;
      case Operand::kRegister:
        value.ref = register_ref(operand.index);
        value.bytes = uint8_t(register_bytes(operand.index));
        break;
      case Operand::kSpecial:
        value.ref = special(instruction, operand.name);
        value.bytes = 4;
        break;
      default:
        value.ref = operand_ref(instruction, operand, immediate_bytes);
        value.bytes = uint8_t(immediate_bytes);
    }
    return value;
  }

  void add_values(const Instruction& instruction, const Operand& operand, Detail& detail) {
    if (operand.kind == Operand::kVector || operand.kind == Operand::kPair) {
      for (const Operand& element : operand.elements) add_values(instruction, element, detail);
      return;
    }
    const bool predicate = instruction.parts.back() == "pred" && operand.kind == Operand::kImmediate;
    if (predicate) {
      Value value;
      value.ref = constants_.add(operand.bits ? ~0u : 0, 0);
      value.present = true;
      value.negated = operand.negated;
      detail.values.push_back(value);
      return;
    }
    // Of comparisons immediates have the width of the type; elsewhere handlers take what they need of 8 bytes.
    const auto name = instruction.parts[0];
    const uint32_t bytes = name == "setp" || name == "set" ? detail.element_bytes : 8;
    detail.values.push_back(value_of(instruction, operand, bytes));
  }

  Address address_of_operand(const Instruction& instruction, const Operand& operand, const Detail& detail) {
    Address address;
    address.offset = operand.offset;
    if (operand.index >= 0) {
      address.mode = register_bytes(operand.index) == 4 ? Address::kRegister32 : Address::kRegister64;
      address.ref = register_ref(operand.index);
    } else if (operand.local >= 0 && function_.locals[size_t(operand.local)].place != Variable::kShared) {
      const Variable& variable = function_.locals[size_t(operand.local)];
      const bool of_kernel = variable.place == Variable::kParameter && function_.is_entry;
      address.mode = of_kernel ? Address::kParameters : Address::kFrameLocal;
      address.offset += int64_t(variable.offset);
    } else if (!operand.name.empty()) {
      address.mode = Address::kAbsolute;
      address.offset = int64_t(symbol(instruction, operand));
    }
    for (const Operand& coordinate : operand.elements) address.coordinates.push_back(value_of(instruction, coordinate, 4));
    (void)detail;
    return address;
  }

  static void read_modifiers(const Instruction& instruction, Detail& detail) {
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

  void read_operands(const Instruction& instruction, Detail& detail) {
    const auto name = instruction.parts[0];
    if (name == "call") return read_call(instruction, detail);
    bool first_vector = true;
    for (const Operand& operand : instruction.operands) {
      if (operand.kind == Operand::kAddress) {
        detail.addresses.push_back(address_of_operand(instruction, operand, detail));
      } else if (name == "bra" || (name == "brx" && operand.kind == Operand::kSymbol)) {
      } else if (name == "mov" && operand.kind == Operand::kSymbol && move_of_address(operand, detail)) {
      } else if (name == "mov" && operand.kind == Operand::kSpecial && is_clock(operand.name)) {
      } else {
        if (operand.kind == Operand::kVector && first_vector) detail.vector = int(operand.elements.size());
        first_vector &= operand.kind != Operand::kVector;
        add_values(instruction, operand, detail);
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

  void read_call(const Instruction& instruction, Detail& detail) const {
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
      } else if (name.empty()) {
        if (operand.kind != Operand::kSymbol) refuse(instruction, "calls through pointers are not supported");
        name = operand.name;
      }
    }
    const auto found = codes_.find(name);
    if (found != codes_.end()) {
      detail.callee = found->second;
      const Function& callee = *found->second->function;
      if (callee.parameters.size() != detail.arguments.size() || callee.results.size() != detail.results.size()) refuse(instruction, "it has other parameters");
    } else if (name == "__assertfail") {
      detail.number = 1;
    } else if (name == "vprintf") {
      detail.number = 2;
    } else {
      refuse(instruction, "there is no function '" + std::string(name) + "'");
    }
  }

  Op prepare_one(const Instruction& instruction) {
    Op op;
    op.source = &instruction;
    op.name = interned(instruction.opcode);
    if (instruction.guard >= 0) {
      op.guard = instruction.guard_negated ? 2 : 1;
      op.guard_offset = offsets_[size_t(instruction.guard)];
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
      int source = int(operands.back().kind == Operand::kRegister ? register_bytes(operands.back().index) : 0);
      if (source == 0) source = operands.back().kind == Operand::kSpecial ? 4 : 8;
      return find_conversion(instruction, register_bytes(operands[0].index), source);
    }
    static constexpr std::string_view kNames[] = {"add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "sad",
                                                  "and", "or", "xor", "not", "cnot", "shl", "shr", "popc", "clz", "brev", "bfind", "bfe",
                                                  "selp", "mov", "prmt", "shf", "szext", "bmsk", "mul24", "mad24", "sqrt", "rcp", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "copysign"};
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
    op.d = register_ref(instruction.operands[0].index);
    Ref* const refs[] = {&op.a, &op.b, &op.c};
    for (size_t i = 0; i < found->operands; ++i) {
      const Operand& operand = instruction.operands[i + 1];
      const bool predicate = selects && i == 2;
      if (operand.negated) refuse(instruction, "a negated operand is not supported");
      if (predicate && operand.kind == Operand::kImmediate) {
        *refs[i] = constants_.add(operand.bits ? ~0u : 0, 0);
      } else {
        *refs[i] = operand_ref(instruction, operand, found->operand_bytes[i]);
      }
    }
    if (found->constant) op.c = constants_.add(found->constant, 8);
    if (register_bytes(instruction.operands[0].index) != op.result_bytes) refuse(instruction, "the result's register has another width");
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
    op.d = register_ref(operands[0].index);
    op.a = operand_ref(instruction, operands[1], found->operand_bytes);
    op.b = operand_ref(instruction, operands[2], found->operand_bytes);
    return true;
  }

  void prepare_handler(const Instruction& instruction, Op& op) {
    Detail& detail = code_.details.emplace_back();
    detail.source = &instruction;
    read_modifiers(instruction, detail);
    read_operands(instruction, detail);
    const auto name = instruction.parts[0];
    if (name == "bra" || name == "brx" || name == "ret") {
      const auto index = size_t(&instruction - function_.code.data());
      const bool inside = index < function_.code.size();
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
    for (const auto find : {find_control_handler, find_memory_handler, find_misc_handler, find_barrier_handler, find_warp_handler,
                            find_atomic_handler, find_mbarrier_handler, find_bulk_handler, find_matrix_handler, find_wgmma_handler}) {
      op.handler = find(instruction, detail);
      if (op.handler) return;
    }
    refuse(instruction, "");
  }

  const Kernel& kernel_;
  const SharedLayout& shared_;
  const SymbolAddress& address_of_;
  const std::map<std::string_view, Code*>& codes_;
  Code& code_;
  const Function& function_;
  std::vector<uint32_t> offsets_;
  Constants constants_;
};

void collect_names(const Operand& operand, std::set<std::string_view>& names) {
  if (!operand.name.empty()) names.insert(operand.name);
  for (const Operand& element : operand.elements) collect_names(element, names);
}

// Functions that a function calls, and those that these call; also the variables that they name.
void reach(const PtxModule& module, const Function& function, std::vector<const Function*>& reached, std::set<std::string_view>& names) {
  if (std::find(reached.begin(), reached.end(), &function) != reached.end()) return;
  reached.push_back(&function);
  for (const Instruction& instruction : function.code) {
    for (const Operand& operand : instruction.operands) {
      collect_names(operand, names);
      if (instruction.parts[0] != "call") continue;
      const auto found = module.functions.find(operand.name);
      if (found != module.functions.end() && found->second.defined) reach(module, found->second, reached, names);
    }
  }
}

// Deepest nesting of calls, in bytes of registers and of local memory; recursion counts to a depth of 24.
std::pair<uint32_t, uint32_t> deepest(const Code& code, int depth) {
  std::pair<uint32_t, uint32_t> most{0, 0};
  if (depth < 24) {
    for (const Detail& detail : code.details) {
      if (!detail.callee) continue;
      const auto inner = deepest(*detail.callee, depth + 1);
      most = {std::max(most.first, inner.first), std::max(most.second, inner.second)};
    }
  }
  return {most.first + code.frame_bytes, most.second + code.local_bytes};
}

}  // namespace

AlignedBytes aligned_bytes(size_t bytes) {
  auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(64, align_up(std::max<size_t>(bytes, 1), 64)));
  if (!memory) throw std::bad_alloc();
  return AlignedBytes(memory);
}

std::string place_of(const SourceLine& line) {
  if (!line.file) return "an unknown line";
  const auto shorter = [](const char* path) {
    const std::string text(path);
    const size_t include = text.rfind("/include/");
    return include == std::string::npos ? text.substr(text.rfind('/') + 1) : text.substr(include + 9);
  };
  std::string text = shorter(line.file) + ":" + std::to_string(line.line);
  if (line.outer_file) text += " (from " + shorter(line.outer_file) + ":" + std::to_string(line.outer_line) + ")";
  return text;
}

std::unique_ptr<Kernel> prepare_kernel(std::shared_ptr<const PtxModule> module, std::string_view name, const SymbolAddress& address_of) {
  const auto found = module->functions.find(name);
  if (found == module->functions.end() || !found->second.defined || !found->second.is_entry) {
    throw PtxError("the PTX has no kernel '" + std::string(name) + "'");
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->name = std::string(name);
  kernel->module = module;
  kernel->function = &found->second;
  std::vector<const Function*> reached;
  std::set<std::string_view> names;
  reach(*module, found->second, reached, names);

  // Static variables lie in the order of their names, dynamic shared memory after them.
  SharedLayout shared;
  uint64_t at = 0;
  std::vector<const Variable*> dynamic;
  const auto place = [&](const Variable& variable) {
    if (variable.place != Variable::kShared || !names.contains(variable.name) || shared.offsets.contains(variable.name)) return;
    if (variable.bytes == 0) {
      dynamic.push_back(&variable);
      return;
    }
    at = align_up(at, variable.alignment);
    shared.offsets[variable.name] = uint32_t(at);
    at += variable.bytes;
  };
  for (const auto& [key, variable] : module->variables) place(variable);
  for (const Function* function : reached) {
    for (const Variable& variable : function->locals) place(variable);
  }
  for (const Variable* variable : dynamic) kernel->dynamic_alignment = std::max(kernel->dynamic_alignment, variable->alignment);
  at = align_up(at, kernel->dynamic_alignment);
  for (const Variable* variable : dynamic) shared.offsets[variable->name] = uint32_t(at);
  kernel->static_shared = uint32_t(at);

  std::map<std::string_view, Code*> codes;
  for (const Function* function : reached) {
    Code& code = kernel->codes.emplace_back();
    code.function = function;
    codes[function->name] = &code;
  }
  int pressure = 0;
  for (Code& code : kernel->codes) pressure = std::max(pressure, FunctionPreparer(*kernel, shared, address_of, codes, code).prepare());
  const auto [frame, local] = deepest(kernel->codes.front(), 0);
  kernel->frame_bytes = frame;
  kernel->local_bytes = uint32_t(align_up(local, 16));
  kernel->registers = std::clamp(pressure + 8, 16, 255);
  if (const int threads = kernel->function->max_threads; threads > 0) {
    const int most = 65536 / (threads * std::max(kernel->function->min_blocks, 1)) / 8 * 8;
    kernel->registers = std::min(kernel->registers, std::max(most, 16));
  }
  return kernel;
}

}  // namespace pkb::emulator
