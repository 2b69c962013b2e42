// Libraries of ranks: fat binaries, variables, kernels.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#include "ptx_lexer.h"
#include "runtime_world.h"

namespace pkb::emulator {
namespace {

struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct FatEntry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes, options;
  uint16_t minor, major;
  uint32_t architecture;
  uint32_t name_offset, name_bytes;
  uint64_t flags;
};
constexpr uint16_t kPtx = 1, kMachineCode = 2;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;

// Calls f(entry, content) for each entry, until it returns true.
template <class F>
void each_entry(const void* fat_binary, F f) {
  FatHeader header;
  std::memcpy(&header, fat_binary, sizeof header);
  if (header.magic != kFatMagic) throw PtxError("the library's fat binary has an unknown format");
  const char* at = static_cast<const char*>(fat_binary) + header.header_bytes;
  const char* const end = at + header.bytes;
  while (at + sizeof(FatEntry) <= end) {
    FatEntry entry;
    std::memcpy(&entry, at, sizeof entry);
    if (f(entry, at + entry.header_bytes)) return;
    at += entry.header_bytes + entry.bytes;
  }
}

// The module of these texts. The latest few are kept for the ranks and worlds to come: a program of many kernels is read once.
std::shared_ptr<const PtxModule> parsed(std::vector<std::string> texts) {
  struct Parsed {
    std::vector<std::string> texts;
    std::shared_ptr<const PtxModule> module;
  };
  constexpr size_t kKept = 4;
  static std::mutex mutex;
  static std::deque<Parsed> latest;
  const std::lock_guard lock(mutex);
  auto found = std::find_if(latest.begin(), latest.end(), [&](const Parsed& known) { return known.texts == texts; });
  if (found != latest.end()) return found->module;
  std::vector<std::shared_ptr<const PtxModule>> modules;
  for (const std::string& text : texts) modules.push_back(parse_ptx(text));
  if (latest.size() == kKept) latest.pop_front();
  return latest.emplace_back(Parsed{std::move(texts), link_ptx(std::move(modules))}).module;
}

}  // namespace

std::map<std::string, int> registers_of(const void* fat_binary) {
  std::map<std::string, int> registers;
  each_entry(fat_binary, [&](const FatEntry& entry, const char* content) {
    if (entry.kind != kMachineCode || (entry.flags & kCompressed) || entry.bytes < sizeof(Elf64_Ehdr) || std::memcmp(content, ELFMAG, SELFMAG) != 0) return false;
    Elf64_Ehdr file;
    std::memcpy(&file, content, sizeof file);
    const auto section = [&](size_t index) {
      Elf64_Shdr found;
      std::memcpy(&found, content + file.e_shoff + index * file.e_shentsize, sizeof found);
      return found;
    };
    if (file.e_shoff + uint64_t(file.e_shnum) * file.e_shentsize > entry.bytes || file.e_shstrndx >= file.e_shnum) return false;
    const char* const names = content + section(file.e_shstrndx).sh_offset;
    for (size_t i = 0; i < file.e_shnum; ++i) {
      const Elf64_Shdr header = section(i);
      const std::string_view name = names + header.sh_name;
      // The upper byte of a code section's info is how many registers a thread has.
      if (name.starts_with(".text.")) registers[std::string(name.substr(6))] = int(header.sh_info >> 24);
    }
    return false;
  });
  return registers;
}

std::string ptx_of(const void* fat_binary) {
  std::string text;
  each_entry(fat_binary, [&](const FatEntry& entry, const char* content) {
    if (entry.kind != kPtx) return false;
    if (entry.flags & kCompressed) throw PtxError("the PTX in the library is compressed; compile with nvcc --no-compress");
    text.assign(content, strnlen(content, entry.bytes));
    return true;
  });
  if (text.empty()) throw PtxError("the library holds no PTX; compile with -gencode=arch=compute_90a,code=compute_90a");
  return text;
}

LoadedModule* World::load_fat_binaries(RankState& rank, std::span<const void* const> fat_binaries) {
  add_program_code(fat_binaries.front());
  auto& module = *rank.modules.emplace_back(std::make_unique<LoadedModule>());
  module.rank = &rank;
  try {
    std::vector<std::string> texts;
    for (const void* const data : fat_binaries) {
      texts.push_back(ptx_of(data));
      module.registers.merge(registers_of(data));
    }
    module.ptx = parsed(std::move(texts));
    load_variables(module);
  } catch (const PtxError& error) {
    module.problem = error.what();
    if (fat_binaries.size() > 1) fail(Fault{Outcome::kBadLaunch, rank.rank, module.problem});  // nvlink refuses it
  }
  return &module;
}

LoadedModule* World::load_ptx(RankState& rank, const std::string& text) {
  auto& module = *rank.modules.emplace_back(std::make_unique<LoadedModule>());
  module.rank = &rank;
  try {
    module.ptx = parsed({text});
    load_variables(module);
    for (const auto& [name, function] : module.ptx->functions) {
      if (function.is_entry) rank.functions[name.data()] = {&module, std::string(name)};
    }
  } catch (const PtxError& error) {
    module.problem = error.what();
  }
  return &module;
}

void World::load_variables(LoadedModule& module) {
  constexpr uint64_t kEach = 16;  // bytes that nobody reads: addresses alone
  uint64_t code = 0;
  for (const auto& [name, function] : module.ptx->functions) {
    if (code == 0) code = reinterpret_cast<uint64_t>(module.memory.emplace_back(kEach * module.ptx->functions.size()).data());
    module.functions[name] = code;
    engine.name_function(code, module.rank->rank, name);
    code += kEach;
  }
  for (const auto& [name, variable] : module.ptx->variables) {
    if (variable.place == Variable::kShared || variable.bytes == 0) continue;
    Mapping& memory = module.memory.emplace_back(variable.bytes + 256, true);
    const bool constant = variable.place == Variable::kConstant;
    std::memcpy(memory.data(), variable.initial.data(), std::min<size_t>(variable.initial.size(), variable.bytes));
    module.variables[std::string(name)] = memory.address();
    const uint64_t region = engine.memory.add_on_gpu(constant ? RegionKind::kConstant : RegionKind::kGlobalVariable, module.rank->rank, std::string(name), memory,
                             reinterpret_cast<uint64_t>(memory.data()), variable.bytes, constant ? Space::kConstant : Space::kGlobal);
    if (one_process) engine.memory.restrict(region, &module.rank->reached_by);
  }
  for (const auto& [name, variable] : module.ptx->variables) {
    for (const auto& address : variable.addresses) {
      const uint64_t value = symbol_address(module, address.symbol) + uint64_t(address.offset);
      std::memcpy(reinterpret_cast<char*>(own_address(module.variables.at(std::string(name)))) + address.at, &value, 8);
    }
  }
}

uint64_t World::make_managed(LoadedModule& module, std::string_view name) {
  const auto found = module.variables.find(name);
  if (found == module.variables.end()) return 0;
  found->second = own_address(found->second);
  const Extent* const extent = engine.memory.find(found->second, 1);
  engine.memory.share_with_host(extent->region);
  guard_of(*module.rank).add(found->second, engine.memory.region(extent->region)->bytes);
  managed.insert(extent->region);
  return found->second;
}

uint64_t World::variable_address(const LoadedModule& module, std::string_view name) {
  const auto found = module.variables.find(name);
  return found == module.variables.end() ? 0 : found->second;
}

uint64_t World::symbol_address(const LoadedModule& module, std::string_view name) {
  if (const uint64_t address = variable_address(module, name)) return address;
  const auto found = module.functions.find(name);
  return found == module.functions.end() ? 0 : found->second;
}

void World::set_stack(RankState& rank, uint64_t bytes) {
  for (const auto& module : rank.modules) {
    for (const auto& [name, kernel] : module->kernels) {
      if (kernel) kernel->local_bytes = uint32_t(kernel->bounded_local + kernel->local_of_stack * bytes);
    }
  }
  rank.stack_bytes = bytes;
}

Kernel* World::kernel(RankState& rank, const void* function) {
  const auto found = rank.functions.find(function);
  if (found == rank.functions.end()) return nullptr;
  LoadedModule& module = *found->second.module;
  auto& kernel = module.kernels[found->second.name];
  if (kernel) return kernel.get();
  try {
    if (!module.problem.empty()) throw PtxError(module.problem);
    kernel = prepare_kernel(module.ptx, found->second.name, [&](std::string_view name) { return symbol_address(module, name); });
    kernel->local_bytes += uint32_t(kernel->local_of_stack * rank.stack_bytes);
    kernel->title = kernel_title(kernel->name);
    int compiled = 0;  // of relocatable code, each function has a number of its own
    for (const Code& code : kernel->codes) {
      if (const auto of = module.registers.find(std::string(code.function->name)); of != module.registers.end()) compiled = std::max(compiled, of->second);
    }
    if (compiled > 0) kernel->registers = compiled;
    const auto registers = kernel_registers.find(found->second.name);
    if (registers != kernel_registers.end()) kernel->registers = registers->second;
    return kernel.get();
  } catch (const PtxError& error) {
    const bool unknown = std::string_view(error.what()).starts_with("unknown instruction");
    fail(Fault{unknown ? Outcome::kUnknownInstruction : Outcome::kBadLaunch, rank.rank, "rank " + std::to_string(rank.rank) + ", kernel " + kernel_title(found->second.name) + ": " + error.what()});
    return nullptr;
  }
}

}  // namespace pkb::emulator
