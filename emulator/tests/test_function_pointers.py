"""Calls through function pointers and virtual functions, and recursion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator.tests.libraries import Called, Library
from emulator.tests.worlds import EmulatorLibrary, entry, store_each
from rank_emulator import Outcome

LANES = np.arange(32)
SOURCE = r"""
using Function = int (*)(int);
__device__ __noinline__ int plus_one(int x) { return x + 1; }
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int squared(int x) { return x * x; }
__device__ Function in_global[3] = {plus_one, twice, squared};
__constant__ Function in_constant[3] = {squared, twice, plus_one};
__device__ Function single = twice;
__device__ Function filled[3];

#define HOST(name, ...) \
  extern "C" int name(int* out, int* peer, int rank, cudaStream_t stream) { __VA_ARGS__; return cudaGetLastError(); }

__global__ void by_table(int* out) {
  const int i = threadIdx.x, found = in_global[i % 3](i) + 1000 * in_constant[i % 3](i);
  out[i] = __activemask() == ~0u ? found : -1;  // all lanes are together again
}
HOST(tables, by_table<<<1, 32, 0, stream>>>(out))

__global__ void by_argument(int* out, Function f) { out[threadIdx.x] = f(threadIdx.x); }
HOST(from_symbol, Function f; cudaMemcpyFromSymbol(&f, single, sizeof f); by_argument<<<1, 32, 0, stream>>>(out, f))

__global__ void fill() { filled[threadIdx.x] = threadIdx.x == 0 ? squared : threadIdx.x == 1 ? plus_one : twice; }
__global__ void by_shared_table(int* out) {
  __shared__ Function table[3];
  if (threadIdx.x < 3) table[threadIdx.x] = filled[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = table[threadIdx.x % 3](threadIdx.x);
}
HOST(filled_by_a_kernel, fill<<<1, 3, 0, stream>>>(); by_shared_table<<<1, 32, 0, stream>>>(out))

struct Shape {
  __device__ virtual ~Shape() {}
  __device__ virtual int area() const = 0;
};
struct Named {
  __device__ virtual int id() const { return 7; }
};
struct Square : Shape {
  int side;
  __device__ Square(int side) : side(side) {}
  __device__ int area() const override { return side * side; }
};
struct Both : Shape, Named {
  int value;
  int* deleted;
  __device__ Both(int value, int* deleted) : value(value), deleted(deleted) {}
  __device__ ~Both() override { *deleted += 1; }
  __device__ int area() const override { return -value; }
  __device__ int id() const override { return 100 + value; }
};
__global__ void by_virtual(int* out) {
  const int i = threadIdx.x;
  Both* const both = new Both(i, out + 64 + i);
  Shape* const shape = i % 2 ? static_cast<Shape*>(new Square(i)) : both;
  const Named* const named = both;
  out[i] = shape->area();
  out[32 + i] = named->id();
  delete shape;
  if (i % 2) delete both;
}
HOST(virtual_functions, cudaMemsetAsync(out + 64, 0, 128, stream); by_virtual<<<1, 32, 0, stream>>>(out))

// Of two functions with registers of different widths that are in the middle of their loops at the same time.
__device__ __noinline__ int in_doubles(int n) {
  double sum = 0.5, product = 1, last = n;
  for (int i = 0; i < 300 + n; ++i) { sum += product; product = product * 1.0 + last * 0.0; last = product; }
  return int(sum);
}
__device__ __noinline__ int in_words(int n) {
  unsigned short a = 1, b = 0;
  int c = n, d = 0;
  for (int i = 0; i < 300 + n; ++i) { d += a; c += b; a = (unsigned short)(a * 1); b = (unsigned short)(c - n); }
  return d + 1000 + b;
}
__device__ Function long_ones[2] = {in_doubles, in_words};
__global__ void side_by_side(int* out, bool by_pointer) {
  const int i = threadIdx.x;
  if (by_pointer) out[i] = long_ones[i & 1](i);
  else if (i & 1) out[i] = in_words(i);
  else out[i] = in_doubles(i);
}
HOST(side_by_side_by_name, side_by_side<<<1, 32, 0, stream>>>(out, false))
HOST(side_by_side_by_pointer, side_by_side<<<1, 32, 0, stream>>>(out, true))

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__global__ void recursive(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 11); }
HOST(recursion, recursive<<<1, 32, 0, stream>>>(out))

__device__ __noinline__ int depth(const int* next, int at) {
  return at == 0 ? 1 : depth(next, next[at]) * 3 % 10007;  // no tail call
}
__global__ void deep(int* out, int n) {
  if (threadIdx.x == 0) for (int i = 1; i < n; ++i) out[i] = i - 1;
  __syncwarp();
  const int found = depth(out, threadIdx.x ? 5 : n - 1);
  __syncwarp();
  out[threadIdx.x] = found;
}
HOST(too_deep, deep<<<1, 32, 0, stream>>>(out, 2000))
HOST(as_deep_as_a_gpu, deep<<<1, 32, 0, stream>>>(out, 49))
HOST(deep_enough, cudaDeviceSetLimit(cudaLimitStackSize, 128 << 10); deep<<<1, 32, 0, stream>>>(out, 2000))
HOST(limits, size_t stack; int found[2]; cudaDeviceGetLimit(&stack, cudaLimitStackSize); found[0] = int(stack);
     cudaDeviceSetLimit(cudaLimitStackSize, 4096); cudaDeviceGetLimit(&stack, cudaLimitStackSize);
     found[1] = int(stack); cudaMemcpy(out, found, sizeof found, cudaMemcpyHostToDevice))

HOST(null_pointer, by_argument<<<1, 32, 0, stream>>>(out, nullptr))
HOST(data_as_function, by_argument<<<1, 32, 0, stream>>>(out, reinterpret_cast<Function>(out)))
__device__ __noinline__ int of_two(int x, int y) { return x + y; }
__device__ int (*other)(int, int) = of_two;
HOST(other_parameters, Function f; cudaMemcpyFromSymbol(&f, other, sizeof f); by_argument<<<1, 32, 0, stream>>>(out, f))

__global__ void give(Function* to) { *to = twice; __threadfence_system(); }
__global__ void wait_and_call(int* out) {
  volatile Function* const given = reinterpret_cast<volatile Function*>(out + 64);
  while (!*given) {}
  out[0] = (*given)(3);
}
HOST(of_another_rank, cudaMemsetAsync(out + 64, 0, 8, stream);
     give<<<1, 1, 0, stream>>>(reinterpret_cast<Function*>(peer + 64));
     wait_and_call<<<1, 1, 0, stream>>>(out))

struct Adds {
  __device__ virtual void to(int* at) { *at += 1; }
};
struct AddsAtomically : Adds {
  __device__ void to(int* at) override { atomicAdd(at, 1); }
};
__global__ void count(int* out, bool atomically) {
  Adds* const adds = atomically ? new AddsAtomically : new Adds;
  adds->to(out);
  delete adds;
}
HOST(counts, count<<<2, 1, 0, stream>>>(out, true))
HOST(counts_racing, count<<<2, 1, 0, stream>>>(out, false))
"""


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> Library:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return Library(emulator_path, SOURCE)


def line_of(text: str) -> str:
    """Place in the source, as messages name it."""
    return f"kernel.cu:{SOURCE[: SOURCE.index(text)].count(chr(10)) + 1}:"


def fine(called: Called, count: int = 32, rank: int = 0) -> np.ndarray:
    """First words of a rank's segment after a run without a fault or finding."""
    assert (called.outcome, set(called.returned)) == (Outcome.OK, {0}), called.message
    assert [finding.message for finding in called.findings] == []
    return called.words[rank][:count]


@pytest.mark.parametrize("seed", [1, 2])
def test_lanes_that_call_other_functions_meet_again(library: Library, seed: int) -> None:
    results = np.stack([LANES + 1, 2 * LANES, LANES * LANES])
    expected = results[LANES % 3, LANES] + 1000 * results[2 - LANES % 3, LANES]
    np.testing.assert_array_equal(fine(library.call("tables", policy="priorities", seed=seed)), expected)


def test_a_pointer_is_copied_from_a_symbol_and_passed(library: Library) -> None:
    np.testing.assert_array_equal(fine(library.call("from_symbol")), 2 * LANES)


def test_a_table_that_a_kernel_fills_holds_in_the_next(library: Library) -> None:
    expected = np.stack([LANES * LANES, LANES + 1, 2 * LANES])[LANES % 3, LANES]
    np.testing.assert_array_equal(fine(library.call("filled_by_a_kernel")), expected)


def test_virtual_functions_of_new_objects(library: Library) -> None:
    """An abstract base, a second base whose pointer is moved, and destructors through the base."""
    words = fine(library.call("virtual_functions"), 96)
    np.testing.assert_array_equal(words[:32], np.where(LANES % 2, LANES * LANES, -LANES))
    np.testing.assert_array_equal(words[32:64], 100 + LANES)
    np.testing.assert_array_equal(words[64:], 1)


@pytest.mark.parametrize("name", ["side_by_side_by_name", "side_by_side_by_pointer"])
def test_functions_that_lanes_are_in_at_once_keep_their_registers_apart(library: Library, name: str) -> None:
    expected = np.where(LANES % 2, 1300 + LANES, 300 + LANES)
    np.testing.assert_array_equal(fine(library.call(name)), expected)


def test_recursion_to_another_depth_in_each_lane(library: Library) -> None:
    known = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    np.testing.assert_array_equal(fine(library.call("recursion")), np.array(known)[LANES % 11])


def test_recursion_ends_where_the_stack_does(library: Library) -> None:
    ended = library.call("too_deep")
    assert ended.outcome == Outcome.TRAP
    assert "the stack of 1024 bytes of a thread is exhausted" in ended.message
    assert "cudaLimitStackSize" in ended.message
    assert line_of("// no tail call") in ended.message
    assert fine(library.call("as_deep_as_a_gpu"), 1)[0] == pow(3, 48, 10007), "an H100 gets so far, and not 64 deep"
    expected = [pow(3, 1999, 10007), pow(3, 5, 10007)]
    np.testing.assert_array_equal(fine(library.call("deep_enough"), 2), expected)


def test_the_limit_of_the_stack_is_that_which_was_set(library: Library) -> None:
    np.testing.assert_array_equal(fine(library.call("limits"), 2), [1024, 4096])


@pytest.mark.parametrize(
    ("name", "outcome", "problem", "where"),
    [
        ("null_pointer", Outcome.ILLEGAL_ADDRESS, "it is null", "void by_argument("),
        ("data_as_function", Outcome.ILLEGAL_ADDRESS, "there is no function at this address", "void by_argument("),
        ("other_parameters", Outcome.TRAP, "has other parameters or results", "void by_argument("),
    ],
)
def test_a_call_of_what_is_no_such_function_is_a_fault(
    library: Library, name: str, outcome: Outcome, problem: str, where: str
) -> None:
    ended = library.call(name)
    assert ended.outcome == outcome
    assert f"call at {line_of(where)}" in ended.message and problem in ended.message


def test_a_function_of_another_gpu_cannot_be_called(library: Library) -> None:
    ended = library.call("of_another_rank", ranks=2)
    assert ended.outcome == Outcome.ILLEGAL_ADDRESS
    assert "is that of rank" in ended.message and line_of("out[0] = (*given)(3)") in ended.message


def test_a_race_in_a_virtual_function_is_found(library: Library) -> None:
    fine(library.call("counts"))
    ended = library.call("counts_racing")
    assert ended.outcome == Outcome.OK
    assert line_of("*at += 1").rstrip(":") in ended.findings[0].message and ended.findings[0].kind == "race"


FUNCTIONS = """
.func (.param .b32 r) first(.param .b32 v) {
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [v]; add.s32 %r2, %r1, 10; st.param.b32 [r], %r2; ret;
}
.func (.param .b32 r) second(.param .b32 v) {
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [v]; mul.lo.s32 %r2, %r1, 3; st.param.b32 [r], %r2; ret;
}
.global .align 8 .u64 table[2] = {first, second};
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("P: .callprototype (.param .b32 _) _ (.param .b32 _);", ", P"),
        ("T: .calltargets first, second;", ", T"),
        ("", ", table"),
    ],
    ids=["prototype", "targets", "table"],
)
def test_a_guarded_call_through_a_pointer(emulator: EmulatorLibrary, before: str, after: str) -> None:
    """Lanes whose guard is false keep their registers, and all lanes go on together."""
    body = f"""
    and.b32 %r3, %r1, 1;
    mul.wide.u32 %rd2, %r3, 8;
    mov.u64 %rd3, table;
    add.s64 %rd2, %rd2, %rd3;
    ld.global.u64 %rd4, [%rd2];
    setp.lt.u32 %p1, %r1, 20;
    mov.u32 %r2, 5;
    {{ .param .b32 a; .param .b32 b;
    {before}
    st.param.b32 [a], %r1;
    st.param.b32 [b], %r2;
    @%p1 call (b), %rd4, (a){after};
    ld.param.b32 %r2, [b]; }}
    activemask.b32 %r4;
    not.b32 %r4, %r4;
    add.u32 %r2, %r2, %r4;
"""
    ended = emulator.run(entry(body + store_each("%r2"), before=FUNCTIONS))
    assert ended.outcome == Outcome.OK, ended.message
    called = np.where(LANES % 2, 3 * LANES, LANES + 10)
    np.testing.assert_array_equal(ended.words(32), np.where(LANES < 20, called, 5))


@pytest.mark.parametrize("name", ["cudaLaunchDeviceV2", "cudaGetParameterBufferV2", "missing"])
def test_a_function_that_nobody_defines_is_named(emulator: EmulatorLibrary, name: str) -> None:
    declared = f'.file 1 "kernel.cu"\n.extern .func (.param .b32 r) {name} (.param .b64 a);\n'
    body = f"{{ .param .b64 a; .param .b32 b;\n.loc 1 7 3\ncall.uni (b), {name}, (a); }}"
    ended = emulator.run(entry(body, before=declared))
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION
    first = ended.message.splitlines()[0]
    assert name in first and "call.uni at kernel.cu:7" in first
