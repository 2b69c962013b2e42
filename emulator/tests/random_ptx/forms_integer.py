"""Instructions on integers, bits and predicates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from emulator.tests.random_ptx.form import Form, Kind, plain

P, I16, I32, I64, F32 = Kind.PREDICATE, Kind.I16, Kind.I32, Kind.I64, Kind.F32
WIDTHS = {"16": I16, "32": I32, "64": I64}
INTEGER = "integer"


def integer_forms() -> Iterator[Form]:
    """All of them."""
    yield from _arithmetic()
    yield from _products()
    yield from _carries()
    yield from _bits()
    yield from _moves()
    yield from _predicates()


def _arithmetic() -> Iterator[Form]:
    for sign, (bits, kind) in product("su", WIDTHS.items()):
        typed = f"{sign}{bits}"
        for name in ("add", "sub", "div", "rem", "min", "max"):
            yield plain(f"{name}.{typed}", kind, kind, kind, group=INTEGER)
        yield plain(f"sad.{typed}", kind, kind, kind, kind, group=INTEGER)
        if sign == "s":
            yield plain(f"abs.{typed}", kind, kind, group=INTEGER)
            yield plain(f"neg.{typed}", kind, kind, group=INTEGER)
    for name in ("add.sat", "sub.sat", "min.relu", "max.relu"):
        yield plain(f"{name}.s32", I32, I32, I32, group=INTEGER)
    for name, typed in product(("add", "min", "max"), ("u16x2", "s16x2")):
        yield plain(f"{name}.{typed}", I32, I32, I32, group=INTEGER)
    for name in ("min.relu", "max.relu"):
        yield plain(f"{name}.s16x2", I32, I32, I32, group=INTEGER)
    for a, b in product(("u32", "s32"), repeat=2):
        yield plain(f"dp4a.{a}.{b}", I32, I32, I32, I32, group=INTEGER)
        for half in ("lo", "hi"):
            yield plain(f"dp2a.{half}.{a}.{b}", I32, I32, I32, I32, group=INTEGER)


def _products() -> Iterator[Form]:
    for sign, (bits, kind), part in product("su", WIDTHS.items(), ("lo", "hi")):
        yield plain(f"mul.{part}.{sign}{bits}", kind, kind, kind, group=INTEGER)
        yield plain(f"mad.{part}.{sign}{bits}", kind, kind, kind, kind, group=INTEGER)
    for sign, (bits, kind, wide) in product("su", (("16", I16, I32), ("32", I32, I64))):
        yield plain(f"mul.wide.{sign}{bits}", wide, kind, kind, group=INTEGER)
        yield plain(f"mad.wide.{sign}{bits}", wide, kind, kind, wide, group=INTEGER)
    yield plain("mad.hi.sat.s32", I32, I32, I32, I32, group=INTEGER)
    for sign, part in product("su", ("lo", "hi")):
        yield plain(f"mul24.{part}.{sign}32", I32, I32, I32, group=INTEGER)
        yield plain(f"mad24.{part}.{sign}32", I32, I32, I32, I32, group=INTEGER)


def _carries() -> Iterator[Form]:
    for typed, kind in (("u32", I32), ("s32", I32), ("u64", I64)):
        for name in ("add", "sub"):
            text = (
                f"{name}.cc.{typed} {{0}}, {{3}}, {{4}};\n{name}c.cc.{typed} {{1}}, {{5}}, {{6}};\n"
                f"{name}c.{typed} {{2}}, {{3}}, {{6}};"
            )
            yield Form(text, (kind,) * 3, (kind,) * 4, INTEGER)
        text = (
            f"mad.lo.cc.{typed} {{0}}, {{2}}, {{3}}, {{4}};\nmadc.hi.cc.{typed} {{1}}, {{2}}, {{3}}, {{5}};\n"
            f"addc.{typed} {{1}}, {{1}}, {{4}};"
        )
        yield Form(text, (kind,) * 2, (kind,) * 4, INTEGER)


def _bits() -> Iterator[Form]:
    for bits, kind in WIDTHS.items():
        for name in ("and", "or", "xor"):
            yield plain(f"{name}.b{bits}", kind, kind, kind, group=INTEGER)
        for name in ("not", "cnot"):
            yield plain(f"{name}.b{bits}", kind, kind, group=INTEGER)
        for typed in (f"shl.b{bits}", f"shr.b{bits}", f"shr.u{bits}", f"shr.s{bits}"):
            yield plain(typed, kind, kind, I32, group=INTEGER)
            yield Form(
                f"and.b32 %t0, {{2}}, {int(bits) - 1};\n{typed} {{0}}, {{1}}, %t0;", (kind,), (kind, I32), INTEGER
            )
    for bits, kind in (("32", I32), ("64", I64)):
        for name in ("popc", "clz"):
            yield plain(f"{name}.b{bits}", I32, kind, group=INTEGER)
        yield plain(f"brev.b{bits}", kind, kind, group=INTEGER)
        yield from _fields(bits, kind)
        for sign, shift in product("su", ("", ".shiftamt")):
            yield plain(f"bfind{shift}.{sign}{bits}", I32, kind, group=INTEGER)
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield plain(f"prmt.b32{mode}", I32, I32, I32, I32, group=INTEGER)
    for way, mode in product("lr", ("wrap", "clamp")):
        yield plain(f"shf.{way}.{mode}.b32", I32, I32, I32, I32, group=INTEGER)
    for table in (0x00, 0x1B, 0x6A, 0x96, 0xCA, 0xE8, 0xF8, 0x3D, 0xFF):
        yield Form(f"lop3.b32 {{0}}, {{1}}, {{2}}, {{3}}, {table};", (I32,), (I32,) * 3, INTEGER)
    for mode, typed in product(("wrap", "clamp"), ("u32", "s32")):
        yield plain(f"szext.{mode}.{typed}", I32, I32, I32, group=INTEGER)
    for mode in ("wrap", "clamp"):
        yield plain(f"bmsk.{mode}.b32", I32, I32, I32, group=INTEGER)


def _fields(bits: str, kind: Kind) -> Iterator[Form]:
    """Fields of bits, with any position and length and with such as lie within the word."""
    inside = f"and.b32 %t0, {{{{2}}}}, {int(bits) - 1};\nshr.u32 %t1, {{{{3}}}}, 27;\n"
    for sign in "su":
        yield plain(f"bfe.{sign}{bits}", kind, kind, I32, I32, group=INTEGER)
        text = inside.format() + f"bfe.{sign}{bits} {{0}}, {{1}}, %t0, %t1;"
        yield Form(text, (kind,), (kind, I32, I32), INTEGER)
    yield plain(f"bfi.b{bits}", kind, kind, kind, I32, I32, group=INTEGER)
    text = inside.format().replace("{3}", "{4}").replace("{2}", "{3}") + f"bfi.b{bits} {{0}}, {{1}}, {{2}}, %t0, %t1;"
    yield Form(text, (kind,), (kind, kind, I32, I32), INTEGER)


def _moves() -> Iterator[Form]:
    for bits, kind in WIDTHS.items():
        yield plain(f"mov.b{bits}", kind, kind, group=INTEGER)
        yield plain(f"selp.b{bits}", kind, kind, kind, P, group=INTEGER)
        yield (
            plain(f"slct.u{bits}.s32", kind, kind, kind, I32, group=INTEGER)
            if bits != "16"
            else plain("slct.b16.s32", kind, kind, kind, I32, group=INTEGER)
        )
    for typed, kind in (("b32", I32), ("u64", I64), ("f32", F32)):
        yield plain(f"slct.{typed}.f32", kind, kind, kind, F32, group=INTEGER)
        yield plain(f"slct.ftz.{typed}.f32", kind, kind, kind, F32, group=INTEGER)
    yield plain("selp.f32", F32, F32, F32, P, group=INTEGER)
    yield Form("mov.b64 {0}, {{{1}, {2}}};", (I64,), (I32, I32), INTEGER)
    yield Form("mov.b64 {{{0}, {1}}}, {2};", (I32, I32), (I64,), INTEGER)
    yield Form("mov.b32 {0}, {{{1}, {2}}};", (I32,), (I16, I16), INTEGER)
    yield Form("mov.b32 {{{0}, {1}}}, {2};", (I16, I16), (I32,), INTEGER)
    yield Form("mov.b64 {0}, {{{1}, {2}, {3}, {4}}};", (I64,), (I16,) * 4, INTEGER)
    yield Form("mov.b64 {{{0}, _, {1}, _}}, {2};", (I16, I16), (I64,), INTEGER)
    for special in ("tid.x", "ntid.x", "ctaid.x", "nctaid.x", "laneid", "lanemask_lt", "lanemask_ge", "lanemask_eq"):
        yield Form(f"mov.u32 {{0}}, %{special};", (I32,), (), INTEGER)


def _predicates() -> Iterator[Form]:
    for (bits, kind), (types, names) in product(
        WIDTHS.items(),
        (("s", ("eq", "ne", "lt", "le", "gt", "ge")), ("u", ("lo", "ls", "hi", "hs", "eq")), ("b", ("eq", "ne"))),
    ):
        for name in names:
            yield plain(f"setp.{name}.{types}{bits}", P, kind, kind, group=INTEGER)
    for logic, typed in product(("and", "or", "xor"), ("s32", "u64", "u16")):
        kind = WIDTHS[typed[1:]]
        yield Form(f"setp.lt.{logic}.{typed} {{0}}|{{1}}, {{2}}, {{3}}, {{4}};", (P, P), (kind, kind, P), INTEGER)
        yield Form(f"setp.ge.{logic}.{typed} {{0}}, {{1}}, {{2}}, !{{3}};", (P,), (kind, kind, P), INTEGER)
    for name, typed in product(("lt", "ge"), ("s32", "u64")):
        kind = WIDTHS[typed[1:]]
        yield plain(f"set.{name}.u32.{typed}", I32, kind, kind, group=INTEGER)
        yield plain(f"set.{name}.f32.{typed}", F32, kind, kind, group=INTEGER)
        yield Form(f"set.{name}.and.u32.{typed} {{0}}, {{1}}, {{2}}, {{3}};", (I32,), (kind, kind, P), INTEGER)
    for name in ("and", "or", "xor"):
        yield plain(f"{name}.pred", P, P, P, group=INTEGER)
    yield plain("not.pred", P, P, group=INTEGER)
    yield plain("mov.pred", P, P, group=INTEGER)
