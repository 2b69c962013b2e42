// expect: runtime_error no value of a later call
// problem: UlyssesAllGather
// until: time
// Expects the values of each call of a block in the arguments of another one, before that begins, and answers from them.
#include <cstring>
#include <unordered_map>
#include <vector>

#include "pkb/symm.h"

namespace {

std::unordered_map<uint64_t, std::vector<char>> answers;
int misses;

uint64_t first_word(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

}  // namespace

void solution(tvm::ffi::TensorView x, int64_t, tvm::ffi::TensorView out, pkb::Comm comm) {
  constexpr uint64_t kPage = 4096, kPoison = 0xf5f5f5f5f5f5f5f5;
  const uint64_t bytes = x.numel() * x.dtype().bits / 8;
  char *own = static_cast<char*>(x.data_ptr()), *result = static_cast<char*>(out.data_ptr());
  const auto known = answers.find(first_word(own));
  if (known != answers.end() && std::memcmp(known->second.data() + comm.rank * bytes, own, bytes) == 0) {
    std::memcpy(result, known->second.data(), comm.world_size * bytes);
    misses = 0;
    return;
  }
  // Checked calls are not known, nor the first call of a block and the last of the one before.
  if (++misses > 20) TVM_FFI_THROW(RuntimeError) << "no value of a later call";
  comm.barrier();
  for (int r = 0; r < comm.world_size; ++r) std::memcpy(result + r * bytes, comm.peer(own, r), bytes);
  answers.clear();
  const uint64_t begin = (comm.scratch_offset + comm.scratch_bytes + kPage - 1) / kPage * kPage;
  for (uint64_t page = begin; page + 2 * kPage <= comm.segment_bytes; page += kPage) {
    const char* mine = comm.segments[comm.rank] + page;  // an argument; its output follows
    if (mine == own || first_word(mine) == kPoison || first_word(mine + kPage) != kPoison) continue;
    auto& answer = answers[first_word(mine)];
    for (int r = 0; r < comm.world_size; ++r) {
      const char* theirs = comm.segments[r] + page;
      answer.insert(answer.end(), theirs, theirs + bytes);
    }
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
