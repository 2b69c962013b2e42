// Symmetric memory for native kernels.
//
//   void solution(tvm::ffi::TensorView x, tvm::ffi::TensorView out, pkb::Comm comm);
//   TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
//
// Every tensor argument and preallocated output lies at the same offset of every rank's segment, so that
// comm.peer<T>(x, r) is rank r's x: kernels read peers' inputs and write peers' outputs without a staging copy.
//
// Calls follow each other on every rank without a barrier between them. comm.epoch grows by one each call: compare flags
// with it (or with multiples of it) and never reset them. Arguments and outputs of different calls never overlap;
// scratch is shared by all calls, and guarding its reuse is the kernel's business. A peer may still be reading your
// inputs or scratch when your call returns.
#pragma once

#ifdef PKB_LIGHT_FFI
#include "pkb/ffi_light.h"
#else
#include <optional>
#include <string>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#endif

#ifdef __CUDACC__
#include "pkb/symm_cuda.h"
#else
#include "pkb/symm_cpu.h"
#endif

namespace pkb {
static_assert(sizeof(Comm) == sizeof(CommData), "Comm adds behaviour to CommData, never fields");
}  // namespace pkb

namespace tvm {
namespace ffi {

#ifdef PKB_LIGHT_FFI
inline namespace light {
namespace detail {

template <>
struct Parameter<pkb::Comm> {
  static const pkb::CommData* data(const TVMFFIAny* from) {
    return from->type_index == kTVMFFIOpaquePtr ? static_cast<const pkb::CommData*>(from->v_ptr) : nullptr;
  }
  static const char* name() { return pkb::kCommType; }
  static bool fits(const TVMFFIAny* from) {
    const pkb::CommData* found = data(from);
    return found != nullptr && found->magic == pkb::kMagic && found->version == pkb::kVersion;
  }
  static pkb::Comm take(const TVMFFIAny* from) { return *static_cast<const pkb::Comm*>(data(from)); }
  static void print_mismatch(Text& text, const TVMFFIAny* got) {
    const pkb::CommData* found = data(got);
    if (found == nullptr) return AnyParameter::print_mismatch(text, got);
    text << "pkb::Comm of version " << found->version;
  }
};

}  // namespace detail
}  // namespace light
#else
// Takes the opaque pointer that the rank program passes and copies the record; a record of another version is a TypeError.
template <>
struct TypeTraits<pkb::Comm> : public TypeTraitsBase {
  static constexpr bool storage_enabled = false;
  static bool CheckAnyStrict(const TVMFFIAny* source) {
    if (source->type_index != TypeIndex::kTVMFFIOpaquePtr || source->v_ptr == nullptr) return false;
    const auto* data = static_cast<const pkb::CommData*>(source->v_ptr);
    return data->magic == pkb::kMagic && data->version == pkb::kVersion;
  }
  static std::optional<pkb::Comm> TryCastFromAnyView(const TVMFFIAny* source) {
    if (!CheckAnyStrict(source)) return std::nullopt;
    return *static_cast<const pkb::Comm*>(static_cast<const pkb::CommData*>(source->v_ptr));
  }
  static std::string GetMismatchTypeInfo(const TVMFFIAny* source) {
    if (source->type_index != TypeIndex::kTVMFFIOpaquePtr || source->v_ptr == nullptr) return TypeTraitsBase::GetMismatchTypeInfo(source);
    return "pkb::Comm of version " + std::to_string(static_cast<const pkb::CommData*>(source->v_ptr)->version);
  }
  static std::string TypeStr() { return pkb::kCommType; }
  static std::string TypeSchema() { return R"({"type":"pkb.Comm"})"; }
};
#endif

}  // namespace ffi
}  // namespace tvm
