// Host code that touches memory of a GPU.
#pragma once

#include <signal.h>

namespace pkb::emulator {

// Writes where the thread stands whose signal this is, given as to a handler of signals.
using HostTrace = void (*)(int number, void* info, void* context);

// From now on such an access on a rank's thread is a fault of its run, where the signal has no other handler by then. The
// thread stays where it is. Other signals go to who has handled them before.
void watch_host_accesses();
// Interrupts host code that runs on: `World::interrupted` is called on its thread.
constexpr int kHostInterrupt = SIGURG;
// Called before the fault is noted; null: nobody.
void trace_host_accesses(HostTrace trace);

}  // namespace pkb::emulator
