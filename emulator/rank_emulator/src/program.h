// A kernel in the form that is executed: operands are places in memory, operations are function pointers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "alu.h"
#include "ptx_module.h"

namespace pkb::emulator {

class Executor;
struct Op;

// What became of an instruction with a handler.
enum class Step : uint8_t {
  kNext,    // go on with the following instruction
  kJumped,  // the handler has set where to go on
  kYield,   // as kNext, but others run first
  kBlocked, // the same instruction is executed again once the split may run
  kEnded    // no lane of this split is left here
};
using Handler = Step (*)(Executor&, const Op&, uint32_t lanes);

// Where 32 lanes of an operand lie: in the frame of the function, among its constants, or among the warp's specials.
enum Base : uint32_t { kFrame, kConstants, kSpecials, kBases };
struct Ref {
  uint32_t offset = 0;
  uint32_t base = kFrame;
};

// An operand of an instruction with a handler.
struct Value {
  Ref ref;
  uint8_t bytes = 0;      // of a lane; 0: a predicate
  bool present = false;   // false: _
  bool negated = false;
};

struct Address {
  enum Mode : uint8_t {
    kRegister64, kRegister32,
    kAbsolute,   // `offset` alone: in shared space, or an address of this process
    kFrameLocal, // `offset` in the lane's local frame
    kParameters  // `offset` in the launch's parameters
  } mode = kAbsolute;
  Ref ref;
  int64_t offset = 0;
  std::vector<Value> coordinates;  // of a tensor
};

struct Code;
struct VideoOperation;

// What a call reaches.
enum class Callee : uint8_t { kFunction, kPointer, kAssertion, kPrint, kMalloc, kAlignedMalloc, kFree, kSetConditional };

struct Detail {
  const Instruction* source = nullptr;
  std::vector<Value> values;        // operands that are no addresses, vectors flattened, in order
  std::vector<Address> addresses;   // operands in brackets, in order
  int vector = 1;                   // elements of the first vector operand
  uint8_t element_bytes = 4;        // by the instruction's type
  bool is_signed = false;
  bool is_float = false;
  bool generic = true;              // space of the addresses: generic, or `space`
  Space space = Space::kGlobal;
  Order order = Order::kWeak;
  Scope scope = Scope::kNone;
  bool decides = true;              // of loads: whether a branch may depend on the value
  bool may_be_unused = false;       // of loads: whether a lane may go on without any use of the value
  bool keeps_unwritten = false;     // of loads: what nobody has written is an error only where it is used
  int variant = 0;                  // by handler
  uint64_t number = 0;              // by handler
  Callee calls = Callee::kFunction;  // of call
  const Code* callee = nullptr;      // of kFunction
  std::vector<Variable> arguments, results;  // of call: variables of the caller
  std::shared_ptr<const VideoOperation> video;
  int meets = -1;                   // of branches, and of calls at which lanes may part
  std::vector<int> targets;
};

enum class Form : uint8_t { kLanes, kCompare, kHandler };

struct Op {
  Form form = Form::kHandler;
  uint8_t guard = 0;                // 0: none, 1: predicate, 2: its negation
  bool meets_here = false;          // paths of some branch meet before this instruction
  bool uses_loads = false;          // `Code::uses` has the loads
  uint8_t result_bytes = 0;
  uint32_t guard_offset = 0;
  Ref d, a, b, c;
  union {
    LaneFunction lanes;
    CompareFunction compare;
    Handler handler;
  };
  const Detail* detail = nullptr;
  const Instruction* source = nullptr;
  const char* name = "";            // opcode with modifiers

  Op() : handler(nullptr) {}
};

struct AlignedFree {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedBytes = std::unique_ptr<uint8_t, AlignedFree>;
AlignedBytes aligned_bytes(size_t bytes);

// A function as executed.
struct Code {
  const Function* function = nullptr;
  std::vector<Op> ops;
  std::deque<Detail> details;
  AlignedBytes constants;
  std::unordered_map<int, std::vector<const SourceLine*>> uses;  // by operation: lines of the loads whose value it uses, as of `Function`
  uint32_t frame_bytes = 0;   // of registers, for the 32 lanes
  uint32_t local_bytes = 0;   // of a lane
};

enum class Special : uint8_t {
  kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ, kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY, kNctaidZ,
  kLaneId, kWarpId, kNwarpId, kSmId, kNsmId, kGridId,
  kClusteridX, kClusteridY, kClusteridZ, kNclusteridX, kNclusteridY, kNclusteridZ,
  kClusterCtaidX, kClusterCtaidY, kClusterCtaidZ, kClusterNctaidX, kClusterNctaidY, kClusterNctaidZ,
  kClusterCtarank, kClusterNctarank, kIsExplicitCluster,
  kLanemaskEq, kLanemaskLt, kLanemaskLe, kLanemaskGt, kLanemaskGe, kDynamicSmemSize, kTotalSmemSize, kReservedSmemOffset1,
  kEnvreg0, kEnvreg1, kEnvreg2,  // 1 and 2: the high and low word of the address of a cooperative grid's workspace
  kCount
};
constexpr uint32_t kSpecialBytes = 4 * kLanes;  // all are words; a warp has all of them

// A kernel of one rank: symbols stand for that rank's copies of the variables.
struct Kernel {
  std::string name;
  std::string title;               // for messages
  std::shared_ptr<const PtxModule> module;
  const Function* function = nullptr;
  std::deque<Code> codes;          // the kernel's own first
  std::unordered_map<uint64_t, const Code*> code_at;  // functions that pointers may reach, by address
  uint32_t frame_bytes = 0;        // of all functions that can be active at once; recursion and pointers may need more
  uint32_t local_bytes = 0;        // of a lane, likewise; with the stack that recursion and pointers have
  uint32_t bounded_local = 0;      // of it what direct calls need
  uint32_t local_of_stack = 0;     // bytes of local memory for each byte of a GPU's stack, where the depth of calls is not
                                   // known: recursion, or calls through pointers; else 0
  bool uses_heap = false;          // it calls malloc or free
  bool uses_reserved_shared = false;  // it asks for %reserved_smem_offset_1
  uint32_t static_shared = 0;      // bytes
  uint32_t dynamic_alignment = 16;
  int registers = 32;              // of a thread, for occupancy
  uint32_t max_dynamic_shared = 48 << 10;
};

// Addresses of the rank's .global and .const variables, and of its functions; 0: there is none of this name.
using SymbolAddress = std::function<uint64_t(std::string_view)>;

// Throws PtxError: an instruction that is not known, with its name and source line.
std::unique_ptr<Kernel> prepare_kernel(std::shared_ptr<const PtxModule> module, std::string_view name, const SymbolAddress& address_of);

// The name of a kernel as the source has it, with template arguments and without parameters.
std::string kernel_title(const std::string& mangled);

// Gives each register a place in the frame; registers that are never needed at the same time share one. `pressure`:
// the most words of 32 bits that are live at once.
struct FrameLayout {
  std::vector<uint32_t> offsets;  // by register
  uint32_t bytes = 0;
  int pressure = 0;
};
FrameLayout lay_out_frame(const Function& function);

// "kernel.cu:12" or, where it was inlined, "pkb/symm_cuda.h:95 (from kernel.cu:12)".
std::string place_of(const SourceLine& line);

}  // namespace pkb::emulator
