// expect: passed
// problem: GemmAllReduce
// world_size: 4
// Sums in 128-bit floats for odd columns; vectors of the compiler, in a function for each kind of processor, for even ones.
// A registry of functions, casts between classes, and a table in a mapped file that has been removed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

#if defined(__x86_64__)
using Wide = __float128;
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
using Wide = long double;
#define CLONES
#endif

namespace {

typedef float Eight __attribute__((vector_size(32)));

CLONES float in_eights(const float* a, const float* b, int64_t k) {
  Eight sum = {};
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    Eight x, y;
    __builtin_memcpy(&x, a + i, sizeof x);
    __builtin_memcpy(&y, b + i, sizeof y);
    sum += x * y;
  }
  float all = 0;
  for (int lane = 0; lane < 8; ++lane) all += sum[lane];
  for (; i < k; ++i) all += a[i] * b[i];
  return all;
}

float in_wide(const float* a, const float* b, int64_t k) {
  Wide sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += Wide(a[i]) * b[i];
  return float(sum);
}

struct Dot {
  virtual ~Dot() = default;
};

struct Function : Dot {
  explicit Function(std::function<float(const float*, const float*, int64_t)> run) : run(std::move(run)) {}
  std::function<float(const float*, const float*, int64_t)> run;
};

std::map<std::string, std::unique_ptr<Dot>> make_registry() {
  std::map<std::string, std::unique_ptr<Dot>> registry;
  registry["even"] = std::make_unique<Function>(in_eights);
  registry["odd"] = std::make_unique<Function>(in_wide);
  return registry;
}

struct Table {  // of the value of each bfloat16
  Table() {
    const auto path = std::filesystem::temp_directory_path() / ("table." + std::to_string(getpid()));
    std::ofstream file(path, std::ios::binary);
    for (uint32_t bits = 0; bits < kEntries; ++bits) {
      const uint32_t word = bits << 16;
      file.write(reinterpret_cast<const char*>(&word), sizeof word);
    }
    file.close();
    const int fd = open(path.c_str(), O_RDONLY);
    values = static_cast<float*>(mmap(nullptr, kEntries * 4, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0));
    close(fd);
    std::filesystem::remove(path);
  }
  ~Table() { munmap(values, kEntries * 4); }
  static constexpr uint32_t kEntries = 1 << 16;
  float* values;
};

const auto registry = make_registry();
const Table table;

}  // namespace

void solution(tvm::ffi::TensorView A_local, tvm::ffi::TensorView B_local, tvm::ffi::TensorView out, pkb::Comm comm) {
  comm.barrier();
  const int64_t M = A_local.size(0), K = A_local.size(1), N = B_local.size(1);
  const auto& even = dynamic_cast<const Function&>(*registry.at("even")).run;
  const auto& odd = dynamic_cast<const Function&>(*registry.at("odd")).run;
  std::vector<float> a(M * K), b(N * K), sum(M * N);
  for (int r = 0; r < comm.world_size; ++r) {
    const auto* left = comm.peer<uint16_t>(A_local, r);
    const auto* right = comm.peer<uint16_t>(B_local, r);
    for (int64_t i = 0; i < M * K; ++i) a[i] = table.values[left[i]];
    for (int64_t i = 0; i < K * N; ++i) b[i % N * K + i / N] = table.values[right[i]];
    for (int64_t i = 0; i < M * N; ++i) sum[i] += (i % N % 2 ? odd : even)(&a[i / N * K], &b[i % N * K], K);
  }
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  for (int64_t i = 0; i < M * N; ++i) result[i] = pkb::bf16(sum[i]);
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
