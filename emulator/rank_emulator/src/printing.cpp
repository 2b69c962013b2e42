#include "printing.h"

#include <unistd.h>

#include <ext/stdio_sync_filebuf.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <iostream>  // this comment keeps it out of the precompiled headers, with which g++ 12 crashes
#include <mutex>
#include <new>

#include "runtime_world.h"

namespace pkb::emulator {
namespace {

constexpr int kNobody = -1;

std::mutex mutex;
int line_of = kNobody;  // the rank that has begun a line, on either descriptor: both lead to one reader
bool is_open = false;   // and whether it has not ended yet

bool write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR) return false;
    done += size_t(wrote < 0 ? 0 : wrote);
  }
  return true;
}

// A line that another rank has begun ends before.
bool put(int fd, int rank, const char* text, size_t size, const char* noun = "rank ") {
  const std::lock_guard lock(mutex);
  std::string lines;
  for (size_t i = 0; i < size; ++i) {
    if (is_open && line_of != rank) {
      lines += '\n';
      is_open = false;
    }
    if (!is_open && rank != kNobody) lines += noun + std::to_string(rank) + ": ";
    lines += text[i];
    is_open = text[i] != '\n';
    line_of = rank;
  }
  return write_all(fd, lines);
}

ssize_t write_of_host(void* descriptor, const char* text, size_t size) {
  const HostThread* const host = World::current;
  const int rank = host && !host->world->one_process ? host->device->rank : kNobody;
  return put(int(reinterpret_cast<intptr_t>(descriptor)), rank, text, size) ? ssize_t(size) : 0;
}

FILE* stream_of(int fd, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write_of_host;
  FILE* const stream = fopencookie(reinterpret_cast<void*>(intptr_t(fd)), "w", functions);
  if (!stream) throw std::bad_alloc();
  std::setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

}  // namespace

void print_by_rank() {
  std::fflush(nullptr);
  stdout = stream_of(STDOUT_FILENO, _IOLBF);
  stderr = stream_of(STDERR_FILENO, _IONBF);
  std::cout.rdbuf(new __gnu_cxx::stdio_sync_filebuf<char>(stdout));  // as long as the process, as what it replaces
  std::cerr.rdbuf(new __gnu_cxx::stdio_sync_filebuf<char>(stderr));
  std::clog.rdbuf(new __gnu_cxx::stdio_sync_filebuf<char>(stderr));
}

void print(int rank, const std::string& text, bool one_process) {
  std::fflush(stdout);
  put(STDOUT_FILENO, rank, text.data(), text.size(), one_process ? "GPU " : "rank ");
}

}  // namespace pkb::emulator
