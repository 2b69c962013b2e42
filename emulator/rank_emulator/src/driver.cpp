#include "driver.h"

#include <dlfcn.h>
#include <tvm/ffi/c_api.h>

#include <cstring>

#include "host_faults.h"
#include "printing.h"
#include "runtime_world.h"

using namespace pkb::emulator;

struct pkb_emu_world {
  std::unique_ptr<World> world;
  std::string error;
  std::string message;  // of the last report
};

namespace {

thread_local std::string create_error;

template <class F>
auto guarded(pkb_emu_world* world, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    world->error = error.what();
    return decltype(f())(-1);
  }
}

RankState& current_rank(pkb_emu_world* world) {
  if (!World::current || World::current->world != world->world.get()) throw std::runtime_error("this function may be called on a rank's thread alone, within pkb_emu_run");
  return *World::current->device;
}

int refuse(pkb_emu_world* world, const std::string& problem) {
  world->error = problem;
  return -1;
}

RegionKind region_kind(int kind) {
  switch (kind) {
    case PKB_EMU_ARGUMENT: return RegionKind::kArgument;
    case PKB_EMU_OUTPUT: return RegionKind::kOutput;
    case PKB_EMU_SCRATCH: return RegionKind::kScratch;
    case PKB_EMU_SIGNALS: return RegionKind::kSignals;
    default: return RegionKind::kHost;
  }
}

// The text of an error object of the FFI, which TVMFFIErrorMoveFromRaised hands over.
std::string raised_error() {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  if (!handle) return "the function failed without an error";
  const auto* cell = reinterpret_cast<const TVMFFIErrorCell*>(static_cast<const char*>(handle) + sizeof(TVMFFIObject));
  std::string text = std::string(cell->kind.data, cell->kind.size) + ": " + std::string(cell->message.data, cell->message.size);
  TVMFFIObjectDecRef(handle);
  return text;
}

int enqueue_mark(pkb_emu_world* world, StreamOperationKind kind, uint64_t call) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    Work work{kind, kind == StreamOperationKind::kArrival ? "arrival" : "departure", {}, {}, nullptr, nullptr};
    work.start = [state = rank.world, number = rank.rank, kind, call](const StreamOperation&, const std::function<void()>& done) {
      if (Observer* const observer = state->engine.observer) {
        if (kind == StreamOperationKind::kArrival) observer->arrival(number, call);
        if (kind == StreamOperationKind::kDeparture) observer->departure(number, call);
      }
      done();
    };
    rank.world->enqueue(*rank.streams[0], std::move(work));
    return 0;
  });
}

}  // namespace

extern "C" {

pkb_emu_world* pkb_emu_create(const pkb_emu_options* options) {
  try {
    if (!options || options->struct_bytes != sizeof(pkb_emu_options)) throw std::runtime_error("options of another version");
    if (options->world_size < 1 || options->world_size > 16) throw std::runtime_error("world_size must be 1 .. 16, got " + std::to_string(options->world_size));
    auto world = std::make_unique<pkb_emu_world>();
    Device device;
    if (options->multiprocessors > 0) device.multiprocessors = options->multiprocessors;
    world->world = std::make_unique<World>(options->world_size, options->segment_bytes, device, Policy{options->policy, options->seed}, options->one_process != 0);
    world->world->engine.max_steps = options->max_steps;
    world->world->max_seconds = options->max_seconds;
    world->world->notes_call_sites = options->call_sites != 0;
    return world.release();
  } catch (const std::exception& error) {
    create_error = error.what();
    return nullptr;
  }
}

void pkb_emu_destroy(pkb_emu_world* world) { delete world; }

void pkb_emu_print_by_rank() { print_by_rank(); }

const char* pkb_emu_error(pkb_emu_world* world) { return world ? world->error.c_str() : create_error.c_str(); }

int pkb_emu_schedule(pkb_emu_world* world, int policy, uint64_t seed, uint64_t max_seconds) {
  if (policy < PKB_EMU_FAIR || policy > PKB_EMU_LATE_STORES) return refuse(world, "there is no policy " + std::to_string(policy));
  world->world->choose_policy(Policy{policy, seed});
  world->world->max_seconds = max_seconds;
  return 0;
}

void* pkb_emu_segment(pkb_emu_world* world, int rank) {
  if (rank < 0 || size_t(rank) >= world->world->ranks.size()) return nullptr;
  return reinterpret_cast<void*>(world->world->ranks[size_t(rank)]->segment.address());
}

void* pkb_emu_multicast_segment(pkb_emu_world* world) { return reinterpret_cast<void*>(gpu_address(reinterpret_cast<uint64_t>(world->world->multicast.data()))); }

void* pkb_emu_own(pkb_emu_world* world, const void* address, uint64_t bytes) {
  const auto seen = reinterpret_cast<uint64_t>(address);
  return world->world->engine.memory.find_seen(seen, bytes) ? reinterpret_cast<void*>(own_address(seen)) : nullptr;
}

int64_t pkb_emu_foreign(pkb_emu_world* world, const void* address, uint64_t bytes, const void* before) {
  const uint64_t first = world->world->engine.memory.first_foreign(own_address(reinterpret_cast<uint64_t>(address)), bytes, static_cast<const char*>(before));
  return first == bytes ? -1 : int64_t(first);
}

void pkb_emu_trace(pkb_emu_trace_function function) { trace_host_accesses(function); }

int pkb_emu_observe(pkb_emu_world* world, void* observer) {
  world->world->engine.observer = static_cast<Observer*>(observer);
  world->world->engine.memory.set_observer(static_cast<Observer*>(observer));
  return 0;
}

int64_t pkb_emu_region(pkb_emu_world* world, int rank, int kind, const char* name, void* address, uint64_t bytes,
                       uint32_t element_bytes, int initialised) {
  return guarded(world, [&]() -> int64_t {
    const bool host = kind == PKB_EMU_HOST;
    return int64_t(world->world->engine.memory.add(region_kind(kind), rank, name, own_address(reinterpret_cast<uint64_t>(address)), bytes, Space::kGlobal, host,
                                                   element_bytes, initialised != 0));
  });
}

int pkb_emu_region_remove(pkb_emu_world* world, int64_t region) {
  return world->world->engine.memory.remove(uint64_t(region)) ? 0 : refuse(world, "there is no region " + std::to_string(region));
}

int pkb_emu_set_initialised(pkb_emu_world* world, void* address, uint64_t bytes, int initialised) {
  Engine& engine = world->world->engine;
  const uint64_t own = own_address(reinterpret_cast<uint64_t>(address));
  engine.memory.set_written(own, bytes, initialised != 0);
  if (initialised) world->world->host_writes.accept(own, bytes);
  if (engine.observer) engine.observer->set_initialised(own, bytes, initialised != 0);
  return 0;
}

int pkb_emu_watch_writes(pkb_emu_world* world, void* address, uint64_t bytes) {
  world->world->engine.memory.set_written(own_address(reinterpret_cast<uint64_t>(address)), bytes, false);
  return 0;
}

int pkb_emu_watch_host_writes(pkb_emu_world* world, void* address, uint64_t bytes, int is_on) {
  world->world->host_writes.watch(own_address(reinterpret_cast<uint64_t>(address)), bytes, is_on != 0);
  return 0;
}

int pkb_emu_kernel_registers(pkb_emu_world* world, const char* kernel, int registers) {
  if (registers < 1 || registers > 255) return refuse(world, "a thread has 1 .. 255 registers, got " + std::to_string(registers));
  world->world->kernel_registers[kernel] = registers;
  return 0;
}

int pkb_emu_run(pkb_emu_world* world, pkb_emu_body body, void* user, pkb_emu_report* report) {
  if (!report || report->struct_bytes != sizeof(pkb_emu_report)) return refuse(world, "a report of another version");
  return guarded(world, [&] {
    World& all = *world->world;
    const auto fault = all.run([&](int rank) { return body(user, rank); });
    report->outcome = fault ? int(fault->outcome) : PKB_EMU_OK;
    report->rank = fault ? fault->rank : -1;
    report->body_status = fault && fault->outcome == Outcome::kBodyFailed ? all.hosts[size_t(std::max(fault->rank, 0))]->body_status : 0;
    report->steps = all.engine.steps;
    report->launches = all.launches;
    world->message = fault ? fault->message : "";
    report->message = world->message.c_str();
    report->file = fault ? fault->line.file : nullptr;
    report->line = fault ? fault->line.line : 0;
    return 0;
  });
}

void pkb_emu_stop(pkb_emu_world* world, const char* message) { world->world->stop(message ? message : ""); }

void* pkb_emu_load(pkb_emu_world* world, const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) world->error = dlerror();
  return library;
}

int pkb_emu_call(pkb_emu_world* world, void* library, const char* name, const void* arguments, int count) {
  const std::string symbol = std::string("__tvm_ffi_") + name;
  const auto function = reinterpret_cast<TVMFFISafeCallType>(dlsym(library, symbol.c_str()));
  if (!function) return refuse(world, "the library exports no '" + std::string(name) + "'");
  TVMFFIAny result;
  std::memset(&result, 0, sizeof result);
  const int status = function(nullptr, static_cast<const TVMFFIAny*>(arguments), count, &result);
  if (status == 0) {
    if (result.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(result.v_obj);
    return 0;
  }
  return refuse(world, raised_error());
}

int pkb_emu_load_ptx(pkb_emu_world* world, const char* ptx) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    const LoadedModule* const module = rank.world->load_ptx(rank, ptx);
    return module->problem.empty() ? 0 : refuse(world, module->problem);
  });
}

int pkb_emu_launch(pkb_emu_world* world, const char* kernel, const uint32_t grid[3], const uint32_t block[3], const uint32_t cluster[3],
                   uint32_t dynamic_shared, void** arguments) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    for (const auto& [key, entry] : rank.functions) {
      if (entry.name != kernel) continue;
      Kernel* const found = rank.world->kernel(rank, key);
      if (found) found->max_dynamic_shared = rank.world->engine.device.shared_of_block;
      const uint32_t g[3] = {grid[0], grid[1], grid[2]}, b[3] = {block[0], block[1], block[2]}, c[3] = {cluster[0], cluster[1], cluster[2]};
      return launch_kernel(rank, key, g, b, c, arguments, dynamic_shared, *rank.streams[0], false, false);
    }
    return refuse(world, std::string("no PTX that was loaded has a kernel '") + kernel + "'");
  });
}

void* pkb_emu_stream(pkb_emu_world* world) {
  try {
    return current_rank(world).streams[0].get();
  } catch (const std::exception& error) {
    world->error = error.what();
    return nullptr;
  }
}

int pkb_emu_arrival(pkb_emu_world* world, uint64_t call) { return enqueue_mark(world, StreamOperationKind::kArrival, call); }
int pkb_emu_departure(pkb_emu_world* world, uint64_t call) { return enqueue_mark(world, StreamOperationKind::kDeparture, call); }

int pkb_emu_enqueue(pkb_emu_world* world, pkb_emu_function function, void* user, const char* name) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    rank.world->enqueue(*rank.streams[0], function_work(*rank.world, [function, user] { function(user); }, name));
    return 0;
  });
}

int pkb_emu_touched(pkb_emu_world* world, void* address, uint64_t bytes, int write) {
  World& all = *world->world;
  if (!all.host_operation) return refuse(world, "pkb_emu_touched may be called within a function of a stream alone");
  if (all.engine.observer) {
    all.engine.observer->range_access(RangeAccess{all.host_operation->id, all.host_operation->rank, write ? Operation::kWrite : Operation::kRead,
                                                  Proxy::kHost, Space::kGlobal, own_address(reinterpret_cast<uint64_t>(address)), bytes, all.host_operation->what, nullptr});
  }
  return 0;
}

int pkb_emu_copy(pkb_emu_world* world, void* to, const void* from, uint64_t bytes, const char* name) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    rank.world->enqueue(*rank.streams[0], copy_work(*rank.world, to, from, bytes, name));
    return 0;
  });
}

int pkb_emu_fill(pkb_emu_world* world, void* to, int byte, uint64_t bytes, const char* name) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    rank.world->enqueue(*rank.streams[0], fill_work(*rank.world, to, byte, bytes, name));
    return 0;
  });
}

int pkb_emu_synchronize(pkb_emu_world* world) {
  return guarded(world, [&] {
    RankState& rank = current_rank(world);
    return rank.world->synchronize(*rank.streams[0]) ? 0 : refuse(world, "the run has ended");
  });
}

}  // extern "C"
