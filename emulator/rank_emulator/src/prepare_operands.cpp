// Where operands lie: registers in the frame, constants, special registers, symbols, addresses.
#include <algorithm>
#include <bit>
#include <cstring>

#include "prepare.h"
#include "ptx_lexer.h"

namespace pkb::emulator {
namespace {

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
    {"%dynamic_smem_size", Special::kDynamicSmemSize}, {"%total_smem_size", Special::kTotalSmemSize}, {"%aggr_smem_size", Special::kTotalSmemSize},
    {"%reserved_smem_offset_1", Special::kReservedSmemOffset1},
    {"%envreg0", Special::kEnvreg0}, {"%envreg1", Special::kEnvreg1}, {"%envreg2", Special::kEnvreg2}};

// The bits of a literal in an instruction of this type, whose operand takes so many bytes (8 too where it has fewer).
uint64_t immediate_bits(const Operand& operand, std::string_view type, uint32_t bytes) {
  const bool is_float = type[0] == 'f';
  if (!operand.is_float) return operand.bits;
  if (operand.is_single) return bytes == 8 && is_float && type != "f32" ? std::bit_cast<uint64_t>(double(std::bit_cast<float>(uint32_t(operand.bits)))) : operand.bits;
  return bytes == 4 && is_float ? std::bit_cast<uint32_t>(float(std::bit_cast<double>(operand.bits))) : operand.bits;
}

}  // namespace

void refuse(const Instruction& instruction, const std::string& problem) {
  throw PtxError("unknown instruction " + std::string(instruction.opcode) + " at " + place_of(instruction.line) + " (PTX line " +
                 std::to_string(instruction.ptx_line) + ")" + (problem.empty() ? "" : ": " + problem));
}

Ref Constants::add(uint64_t bits, uint32_t bytes) {
  const auto [found, fresh] = places_.try_emplace({bits, bytes}, uint32_t(bytes_.size()));
  if (fresh) {
    const uint32_t lanes = bytes == 0 ? 1 : kLanes, each = bytes == 0 ? 4 : bytes;
    const size_t at = bytes_.size();
    bytes_.resize(align_up(at + size_t(each) * lanes, 64));
    for (uint32_t i = 0; i < lanes; ++i) std::memcpy(&bytes_[at + i * each], &bits, std::min(each, 8u));
  }
  return {found->second, kConstants};
}
AlignedBytes Constants::finish() const {
  AlignedBytes memory = aligned_bytes(bytes_.size());
  std::memcpy(memory.get(), bytes_.data(), bytes_.size());
  return memory;
}


int OperandPlaces::register_bytes(int index) const { return kLaneBytes[int(function_.registers[size_t(index)].kind)]; }

// The value of a symbol: an offset in shared memory, or an address of this process.
uint64_t OperandPlaces::symbol(const Instruction& instruction, const Operand& operand) const {
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

Ref OperandPlaces::operand_ref(const Instruction& instruction, const Operand& operand, uint32_t bytes) {
  switch (operand.kind) {
    case Operand::kRegister: return register_ref(operand.index);
    case Operand::kImmediate: return constants.add(immediate_bits(operand, instruction.parts.back(), bytes), bytes);
    case Operand::kSpecial: return special(instruction, operand.name);
    case Operand::kSymbol: return constants.add(symbol(instruction, operand), bytes);
    default: refuse(instruction, "an operand of this kind is not supported");
  }
}

Ref OperandPlaces::special(const Instruction& instruction, std::string_view name) const {
  for (const auto& [word, index] : kSpecials_) {
    if (word == name) return {uint32_t(index) * kSpecialBytes, kSpecials};
  }
  refuse(instruction, "there is no register " + std::string(name));
}

Value OperandPlaces::value_of(const Instruction& instruction, const Operand& operand, uint32_t immediate_bytes) {
  Value value;
  value.negated = operand.negated;
  value.present = true;
  switch (operand.kind) {
    case Operand::kSink: value.present = false; break;
    case Operand::kRegister:
      value.ref = register_ref(operand.index);
      value.bytes = uint8_t(register_bytes(operand.index));
      if (value.bytes != 0 && operand.negated && instruction.parts[0] != "vmad") refuse(instruction, "a negated operand is not supported");
      if (!operand.part.empty() && instruction.parts[0][0] != 'v') refuse(instruction, "it takes no parts of registers");
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

void OperandPlaces::add_values(const Instruction& instruction, const Operand& operand, Detail& detail) {
  if (operand.kind == Operand::kVector || operand.kind == Operand::kPair) {
    for (const Operand& element : operand.elements) add_values(instruction, element, detail);
    return;
  }
  const bool predicate = instruction.parts.back() == "pred" && operand.kind == Operand::kImmediate;
  if (predicate) {
    Value value;
    value.ref = constants.add(operand.bits ? ~0u : 0, 0);
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

Address OperandPlaces::address_of(const Instruction& instruction, const Operand& operand) {
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
  return address;
}

}  // namespace pkb::emulator
