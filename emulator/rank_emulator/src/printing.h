// What ranks print, on the host and in kernels: every line of it gets the rank in front, since one process runs them all.
#pragma once

#include <string>

namespace pkb::emulator {

// From now on, what host code prints by stdio and iostreams belongs to the rank whose thread prints it.
void print_by_rank();

// Prints what a kernel of the rank prints. `one_process`: ranks are GPUs of one process.
void print(int rank, const std::string& text, bool one_process);

}  // namespace pkb::emulator
