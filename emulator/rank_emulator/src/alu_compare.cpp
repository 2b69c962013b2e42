// Comparisons of set and setp.
#include <bit>

#include "lanes.h"
#include "small_floats.h"

namespace pkb::emulator {
namespace {

struct Eq { template <class T> bool operator()(T a, T b) const { return a == b; } };
struct Ne { template <class T> bool operator()(T a, T b) const { return a != b; } };
struct Lt { template <class T> bool operator()(T a, T b) const { return a < b; } };
struct Le { template <class T> bool operator()(T a, T b) const { return a <= b; } };
struct Gt { template <class T> bool operator()(T a, T b) const { return a > b; } };
struct Ge { template <class T> bool operator()(T a, T b) const { return a >= b; } };

// Comparisons of floats are false with a NaN; those ending in u are true.
template <class F, bool kUnordered, bool kFlush>
struct Floats {
  template <class T>
  bool operator()(T a, T b) const {
    a = flushed<kFlush>(a);
    b = flushed<kFlush>(b);
    const bool ordered = a == a && b == b;
    return ordered ? F{}(a, b) : kUnordered;
  }
};
struct Ordered { template <class T> bool operator()(T a, T b) const { return a == a && b == b; } };
struct Unordered { template <class T> bool operator()(T a, T b) const { return a != a || b != b; } };

template <class F>
struct OfHalf { bool operator()(uint16_t a, uint16_t b) const { return F{}(half_to_float(a), half_to_float(b)); } };
// .ftz of f16: its own subnormal numbers are flushed, which are normal ones as floats.
inline uint16_t half_flushed(uint16_t bits) { return bits & 0x7c00u ? bits : bits & 0x8000u; }
template <class F>
struct OfFlushedHalf {
  bool operator()(uint16_t a, uint16_t b) const { return OfHalf<F>{}(half_flushed(a), half_flushed(b)); }
};
template <class F>
struct OfBrain { bool operator()(uint16_t a, uint16_t b) const { return F{}(brain_to_float(a), brain_to_float(b)); } };

template <class T>
CompareFunction of_integers(std::string_view name) {
  if (name == "eq") return compare_lanes<T, Eq>;
  if (name == "ne") return compare_lanes<T, Ne>;
  if (name == "lt" || name == "lo") return compare_lanes<T, Lt>;
  if (name == "le" || name == "ls") return compare_lanes<T, Le>;
  if (name == "gt" || name == "hi") return compare_lanes<T, Gt>;
  if (name == "ge" || name == "hs") return compare_lanes<T, Ge>;
  return nullptr;
}

struct Itself { template <class F> using type = F; };
struct AsHalf { template <class F> using type = OfHalf<F>; };
struct AsFlushedHalf { template <class F> using type = OfFlushedHalf<F>; };
struct AsBrain { template <class F> using type = OfBrain<F>; };

template <class T, class Wrap, bool kFlush>
CompareFunction of_floats(std::string_view name) {
  const auto pick = [](auto f) { return compare_lanes<T, typename Wrap::template type<decltype(f)>>; };
  if (name == "eq") return pick(Floats<Eq, false, kFlush>{});
  if (name == "ne") return pick(Floats<Ne, false, kFlush>{});
  if (name == "lt") return pick(Floats<Lt, false, kFlush>{});
  if (name == "le") return pick(Floats<Le, false, kFlush>{});
  if (name == "gt") return pick(Floats<Gt, false, kFlush>{});
  if (name == "ge") return pick(Floats<Ge, false, kFlush>{});
  if (name == "equ") return pick(Floats<Eq, true, kFlush>{});
  if (name == "neu") return pick(Floats<Ne, true, kFlush>{});
  if (name == "ltu") return pick(Floats<Lt, true, kFlush>{});
  if (name == "leu") return pick(Floats<Le, true, kFlush>{});
  if (name == "gtu") return pick(Floats<Gt, true, kFlush>{});
  if (name == "geu") return pick(Floats<Ge, true, kFlush>{});
  if (name == "num") return pick(Ordered{});
  if (name == "nan") return pick(Unordered{});
  return nullptr;
}

}  // namespace

std::optional<Comparison> find_comparison(std::string_view name, std::string_view type, bool ftz) {
  CompareFunction run = nullptr;
  if (type == "s16") run = of_integers<int16_t>(name);
  if (type == "u16" || type == "b16") run = of_integers<uint16_t>(name);
  if (type == "s32") run = of_integers<int32_t>(name);
  if (type == "u32" || type == "b32") run = of_integers<uint32_t>(name);
  if (type == "s64") run = of_integers<int64_t>(name);
  if (type == "u64" || type == "b64") run = of_integers<uint64_t>(name);
  if (type == "f32") run = ftz ? of_floats<float, Itself, true>(name) : of_floats<float, Itself, false>(name);
  if (type == "f64") run = of_floats<double, Itself, false>(name);
  if (type == "f16" || type == "f16x2") {
    run = ftz ? of_floats<uint16_t, AsFlushedHalf, false>(name) : of_floats<uint16_t, AsHalf, false>(name);
  }
  if (type == "bf16" || type == "bf16x2") run = of_floats<uint16_t, AsBrain, false>(name);
  if (run == nullptr) return std::nullopt;
  return Comparison{run, uint8_t(type_bytes("." + std::string(type)))};
}

}  // namespace pkb::emulator
