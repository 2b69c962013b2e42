// The part of the TVM FFI's C++ interface that most kernels use, over its C interface and without the standard library's
// containers and streams: those take each of nvcc's front ends most of a second. "pkb/symm.h" includes it in place of the
// FFI's own headers where PKB_LIGHT_FFI is defined, as the evaluator does for sources that name nothing else of it.
//
// Names, messages and errors are those of the FFI. The inline namespace keeps symbols apart from the library's own.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

namespace tvm {
namespace ffi {
inline namespace light {
namespace detail {

// A text that grows; formats values as a std::ostream does.
class Text {
 public:
  Text() = default;
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { std::free(data_); }

  Text& append(const char* from, size_t bytes) {
    if (size_ + bytes > capacity_) {
      capacity_ = 2 * (size_ + bytes);
      data_ = static_cast<char*>(std::realloc(data_, capacity_));
      if (data_ == nullptr) std::abort();
    }
    if (bytes != 0) std::memcpy(data_ + size_, from, bytes);
    size_ += bytes;
    return *this;
  }
  TVMFFIByteArray bytes() const { return {data_, size_}; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

template <class... Values>
Text& print(Text& text, const char* format, Values... values) {
  char buffer[64];
  return text.append(buffer, size_t(std::snprintf(buffer, sizeof(buffer), format, values...)));
}

inline Text& operator<<(Text& text, const char* value) { return text.append(value, std::strlen(value)); }
inline Text& operator<<(Text& text, char value) { return text.append(&value, 1); }
inline Text& operator<<(Text& text, TVMFFIByteArray value) { return text.append(value.data, value.size); }
template <class T, std::enable_if_t<std::is_integral_v<T> || (std::is_enum_v<T> && std::is_convertible_v<T, int>), int> = 0>
Text& operator<<(Text& text, T value) {
  if constexpr (std::is_same_v<T, signed char> || std::is_same_v<T, unsigned char>) return text << char(value);
  if constexpr (std::is_signed_v<T> || std::is_enum_v<T>) return print(text, "%lld", static_cast<long long>(value));
  return print(text, "%llu", static_cast<unsigned long long>(value));
}
template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
Text& operator<<(Text& text, T value) {
  return print(text, "%Lg", static_cast<long double>(value));
}
inline Text& operator<<(Text& text, const void* value) { return value ? print(text, "%p", value) : text << "0"; }
// std::string and std::string_view, where a source includes them.
template <class T>
auto operator<<(Text& text, const T& value) -> decltype(value.data() + value.length(), text) {
  return text.append(value.data(), value.length());
}

}  // namespace detail

class Error : public std::exception {
 public:
  Error(const char* kind, TVMFFIByteArray message, const TVMFFIByteArray* backtrace) {
    const TVMFFIByteArray name{kind, std::strlen(kind)};
    if (TVMFFIErrorCreate(&name, &message, backtrace, &handle_) != 0) std::abort();
  }
  Error(const Error& other) : std::exception(other), handle_(other.handle_) { TVMFFIObjectIncRef(handle_); }
  Error& operator=(const Error&) = delete;
  ~Error() override { TVMFFIObjectDecRef(handle_); }
  const char* what() const noexcept override { return TVMFFIErrorGetCellPtr(handle_)->message.data; }
  void set_raised() const { TVMFFIErrorSetRaised(handle_); }

 private:
  TVMFFIObjectHandle handle_ = nullptr;
};

namespace detail {

// Throws when the expression that fills its text ends.
class ErrorBuilder {
 public:
  ErrorBuilder(const char* kind, const TVMFFIByteArray* backtrace) : kind_(kind), backtrace_(backtrace) {}
  [[noreturn]] ~ErrorBuilder() noexcept(false) { throw Error(kind_, text_.bytes(), backtrace_); }
  Text& stream() { return text_; }

 private:
  const char* kind_;
  const TVMFFIByteArray* backtrace_;
  Text text_;
};

}  // namespace detail
}  // namespace light
}  // namespace ffi
}  // namespace tvm

#define TVM_FFI_THROW(ErrorKind) \
  ::tvm::ffi::detail::ErrorBuilder(#ErrorKind, TVMFFIBacktrace(__FILE__, __LINE__, __PRETTY_FUNCTION__, 0)).stream()

inline bool operator==(const DLDataType& left, const DLDataType& right) {
  return left.code == right.code && left.bits == right.bits && left.lanes == right.lanes;
}
inline bool operator!=(const DLDataType& left, const DLDataType& right) { return !(left == right); }

namespace tvm {
namespace ffi {
inline namespace light {

class ShapeView {
 public:
  ShapeView(const int64_t* data, size_t size) : data_(data), size_(size) {}
  const int64_t* data() const { return data_; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](size_t i) const { return data_[i]; }
  int64_t at(size_t i) const {
    if (i >= size_) TVM_FFI_THROW(IndexError) << "indexing " << i << " on a Shape of size " << size_;
    return data_[i];
  }
  int64_t front() const { return at(0); }
  int64_t back() const { return at(size_ - 1); }
  int64_t Product() const {
    int64_t product = 1;
    for (size_t i = 0; i < size_; ++i) product *= data_[i];
    return product;
  }

 private:
  const int64_t* data_;
  size_t size_;
};

class TensorView {
 public:
  explicit TensorView(const DLTensor* tensor) : tensor_(*tensor) {}
  void* data_ptr() const { return tensor_.data; }
  DLDevice device() const { return tensor_.device; }
  int32_t ndim() const { return tensor_.ndim; }
  int32_t dim() const { return tensor_.ndim; }
  DLDataType dtype() const { return tensor_.dtype; }
  ShapeView shape() const { return {tensor_.shape, size_t(tensor_.ndim)}; }
  ShapeView sizes() const { return shape(); }
  ShapeView strides() const { return {tensor_.strides, size_t(tensor_.ndim)}; }
  int64_t numel() const { return shape().Product(); }
  int64_t size(int64_t i) const { return tensor_.shape[index(i)]; }
  int64_t stride(int64_t i) const { return tensor_.strides[index(i)]; }
  uint64_t byte_offset() const { return tensor_.byte_offset; }
  bool is_contiguous() const { return IsContiguous(); }
  bool IsContiguous() const {
    if (tensor_.strides == nullptr || numel() == 0) return true;
    int64_t expected = 1;
    for (int32_t i = tensor_.ndim - 1; i >= 0; --i) {
      if (tensor_.shape[i] == 1) continue;
      if (tensor_.strides[i] != expected) return false;
      expected *= tensor_.shape[i];
    }
    return true;
  }

 private:
  int64_t index(int64_t i) const {
    const int64_t place = i >= 0 ? i : tensor_.ndim + i;
    if (place < 0 || place >= tensor_.ndim) {
      TVM_FFI_THROW(IndexError) << "Index " << i << " out of bounds for tensor with " << tensor_.ndim << " dimensions";
    }
    return place;
  }

  DLTensor tensor_;
};

namespace detail {

inline Text& operator<<(Text& text, DLDataType dtype) {
  TVMFFIAny made{};
  if (TVMFFIDataTypeToString(&dtype, &made) != 0) std::abort();
  if (made.type_index == kTVMFFISmallStr) return text << TVMFFISmallBytesGetContentByteArray(&made);
  text << *TVMFFIBytesGetByteArrayPtr(made.v_obj);
  TVMFFIObjectDecRef(made.v_obj);
  return text;
}

inline Text& operator<<(Text& text, ShapeView shape) {
  text << '[';
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  return text << ']';
}

struct AnyParameter {
  static void print_mismatch(Text& text, const TVMFFIAny* got) { text << TVMFFIGetTypeInfo(got->type_index)->type_key; }
};

// How a parameter of one type is made of an argument: its name in errors, and whether the argument fits.
template <class T, class = void>
struct Parameter;

template <>
struct Parameter<TensorView> : AnyParameter {
  static const char* name() { return "DLTensor*"; }
  static const DLTensor* tensor(const TVMFFIAny* from) {
    if (from->type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(from->v_ptr);
    return from->type_index == kTVMFFITensor ? TVMFFITensorGetDLTensorPtr(from->v_obj) : nullptr;
  }
  static bool fits(const TVMFFIAny* from) { return tensor(from) != nullptr; }
  static TensorView take(const TVMFFIAny* from) { return TensorView(tensor(from)); }
};

template <class T>
struct Parameter<T, std::enable_if_t<std::is_integral_v<T>>> : AnyParameter {
  static const char* name() { return std::is_same_v<T, bool> ? "bool" : "int"; }
  static bool fits(const TVMFFIAny* from) { return from->type_index == kTVMFFIInt || from->type_index == kTVMFFIBool; }
  static T take(const TVMFFIAny* from) { return static_cast<T>(from->v_int64); }
};

template <class T>
struct Parameter<T, std::enable_if_t<std::is_floating_point_v<T>>> : AnyParameter {
  static const char* name() { return "float"; }
  static bool fits(const TVMFFIAny* from) { return from->type_index == kTVMFFIFloat || Parameter<int64_t>::fits(from); }
  static T take(const TVMFFIAny* from) {
    return from->type_index == kTVMFFIFloat ? static_cast<T>(from->v_float64) : static_cast<T>(from->v_int64);
  }
};

template <>
struct Parameter<void> {
  static const char* name() { return "void"; }
};

template <class T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

template <class R, class... Args>
struct Caller {
  static_assert(std::is_void_v<R>, "results are the full interface's");

  static void print_signature(Text& text) {
    int i = 0;
    text << '(';
    ((text << (i == 0 ? "" : ", ") << i << ": " << Parameter<Bare<Args>>::name(), ++i), ...);
    text << ") -> " << Parameter<R>::name();
  }

  template <class T>
  static void check(const TVMFFIAny* from, int32_t i, const char* name) {
    if (Parameter<T>::fits(from)) return;
    ErrorBuilder error("TypeError", TVMFFIBacktrace(__FILE__, __LINE__, __PRETTY_FUNCTION__, 0));
    error.stream() << "Mismatched type on argument #" << i << " when calling: `" << name;
    print_signature(error.stream());
    error.stream() << "`. Expected `" << Parameter<T>::name() << "` but got `";
    Parameter<T>::print_mismatch(error.stream(), from);
    error.stream() << '`';
  }

  template <class F, size_t... Is>
  static void call(const F& f, const char* name, const TVMFFIAny* args, int32_t count, std::index_sequence<Is...>) {
    if (count != int32_t(sizeof...(Args))) {
      ErrorBuilder error("TypeError", TVMFFIBacktrace(__FILE__, __LINE__, __PRETTY_FUNCTION__, 0));
      error.stream() << "Mismatched number of arguments when calling: `" << name;
      print_signature(error.stream());
      error.stream() << "`. Expected " << sizeof...(Args) << " but got " << count << " arguments";
    }
    (check<Bare<Args>>(args + Is, int32_t(Is), name), ...);
    f(Parameter<Bare<Args>>::take(args + Is)...);
  }
};

template <class F>
struct CallerOf : CallerOf<decltype(&F::operator())> {};
template <class R, class... Args>
struct CallerOf<R (*)(Args...)> : Caller<R, Args...> {
  using Indices = std::index_sequence_for<Args...>;
};
template <class F, class R, class... Args>
struct CallerOf<R (F::*)(Args...) const> : CallerOf<R (*)(Args...)> {};

template <class F>
int safe_call(const F& f, const char* name, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  try {
    using Made = CallerOf<std::decay_t<F>>;
    Made::call(f, name, args, count, typename Made::Indices{});
    *result = TVMFFIAny{};  // None
    return 0;
  } catch (const Error& error) {
    error.set_raised();
  } catch (const std::exception& error) {
    const TVMFFIByteArray message{error.what(), std::strlen(error.what())}, nowhere{"", 0};
    Error("InternalError", message, &nowhere).set_raised();
  }
  return -1;
}

}  // namespace detail
}  // namespace light
}  // namespace ffi
}  // namespace tvm

#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(ExportName, Function)                                                           \
  extern "C" {                                                                                                        \
  TVM_FFI_DLL_EXPORT int __tvm_ffi_##ExportName(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {  \
    return ::tvm::ffi::detail::safe_call(Function, #ExportName, args, num_args, result);                              \
  }                                                                                                                   \
  }
