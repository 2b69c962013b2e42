"""Loads, stores, atomic operations, and what lanes and threads do together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from emulator.tests.random_ptx.form import Form, Kind, Where

P, I16, I32, I64, F32, F64 = Kind.PREDICATE, Kind.I16, Kind.I32, Kind.I64, Kind.F32, Kind.F64
MEMORY = "memory"
ADDRESS = {"global": "%ag", "shared": "%as", "local": "%al"}
"""16 bytes of each thread."""
SPACES = tuple(ADDRESS)


def memory_forms() -> Iterator[Form]:
    """All of them."""
    yield from _narrow()
    yield from _vectors()
    yield from _qualified()
    yield from _other_addresses()
    yield from _atomics()
    yield from _reductions()
    yield from _warp()
    yield from _block()
    yield from _control()


def _narrow() -> Iterator[Form]:
    """Part of a register is stored, part of that is loaded with its sign."""
    loads = (("u8", I32), ("s8", I32), ("u8", I16), ("s8", I16), ("s8", I64), ("u16", I32), ("s16", I32), ("u16", I16))
    wide = (("s16", I64), ("u32", I32), ("u32", I64), ("s32", I64), ("b64", I64))
    for space, (typed, kind) in product(SPACES, loads + wide):
        size = int(typed[1:]) // 8
        address = ADDRESS[space]
        offsets = (0,) if size == 8 else (size, 8 - size)
        for offset in offsets:
            text = f"st.{space}.b64 [{address}], {{1}};\nld.{space}.{typed} {{0}}, [{address}+{offset}];"
            yield Form(text, (kind,), (I64,), MEMORY)
    for space, (bits, kind) in product(SPACES, ((8, I32), (8, I16), (16, I32), (16, I64), (32, I64))):
        at = ADDRESS[space]
        text = f"st.{space}.b64 [{at}], {{1}};\nst.{space}.b{bits} [{at}+4], {{2}};\nld.{space}.b64 {{0}}, [{at}];"
        yield Form(text, (I64,), (I64, kind), MEMORY)


def _vectors() -> Iterator[Form]:
    vectors = ((2, "b32", I32), (4, "b32", I32), (2, "b64", I64), (4, "f32", F32), (2, "f64", F64), (4, "b16", I16))
    for space, (count, typed, kind) in product(SPACES, vectors):
        results = ", ".join(f"{{{i}}}" for i in range(count))
        operands = ", ".join(f"{{{count + i}}}" for i in range(count))
        at = ADDRESS[space]
        text = (
            f"st.{space}.v{count}.{typed} [{at}], {{{{{operands}}}}};\n"
            f"ld.{space}.v{count}.{typed} {{{{{results}}}}}, [{at}];"
        )
        yield Form(text, (kind,) * count, (kind,) * count, MEMORY)
    text = "st.global.v2.b32 [%ag], {{{1}, {2}}};\nld.global.v4.u8 {{_, %t0, %t1, _}}, [%ag+2];\nsub.u32 {0}, %t0, %t1;"
    yield Form(text.replace("+2", "+4"), (I32,), (I32, I32), MEMORY)


def _qualified() -> Iterator[Form]:
    stores = ("st.global.wb", "st.global.cg", "st.volatile.global", "st.relaxed.gpu.global", "st.release.sys.global")
    loads = ("ld.global.ca", "ld.global.cg", "ld.volatile.global", "ld.relaxed.sys.global", "ld.acquire.gpu.global")
    for store, load in zip(stores, loads, strict=True):
        yield Form(f"{store}.b32 [%ag+4], {{1}};\n{load}.b32 {{0}}, [%ag+4];", (I32,), (I32,), MEMORY)
    text = "st.volatile.shared.b64 [%as+8], {1};\nld.volatile.shared.b64 {0}, [%as+8];"
    yield Form(text, (I64,), (I64,), MEMORY)
    for kind, typed in ((I32, "u32"), (I64, "s32"), (I32, "s8"), (I64, "b64"), (F32, "f32")):
        yield Form(f"ld.global.nc.{typed} {{0}}, [%ai];", (kind,), (), MEMORY)


def _other_addresses() -> Iterator[Form]:
    generic = "st.b32 [%ax], {1};\nld.b32 {0}, [%ax];"
    yield Form(generic, (I32,), (I32,), MEMORY)
    yield Form("st.shared.b32 [%as], {1};\nld.b32 {0}, [%ax];", (I32,), (I32,), MEMORY)
    indexed = "and.b32 %t0, {{1}}, {most};\nshl.b32 %t0, %t0, {shift};\n"
    for typed, kind, shift in (("u8", I32, 0), ("s16", I32, 1), ("u32", I32, 2), ("b64", I64, 3), ("s32", I64, 2)):
        text = indexed.format(most=(256 >> shift) - 1, shift=shift).replace("{1}", "{1}")
        text += f"cvt.u64.u32 %w0, %t0;\nmov.u64 %w1, table;\nadd.u64 %w0, %w0, %w1;\nld.const.{typed} {{0}}, [%w0];"
        yield Form(text, (kind,), (I32,), MEMORY)
    for typed, kind, shift in (("u8", I32, 0), ("s16", I32, 1), ("u32", I32, 2), ("b64", I64, 3)):
        text = "st.local.v2.b64 [%al], {{{1}, {2}}};\n"
        text += f"and.b32 %t0, {{3}}, {(16 >> shift) - 1};\nshl.b32 %t0, %t0, {shift};\n"
        text += f"cvt.u64.u32 %w0, %t0;\nadd.u64 %w0, %w0, %al;\nld.local.{typed} {{0}}, [%w0];"
        yield Form(text, (kind,), (I64, I64, I32), MEMORY)


def _atomics() -> Iterator[Form]:
    words: list[tuple[str, Kind]] = []
    for name in ("add", "min", "max"):
        words += [(f"{name}.{typed}", kind) for typed, kind in (("u32", I32), ("s32", I32), ("u64", I64))]
    words += [("min.s64", I64), ("max.s64", I64), ("inc.u32", I32), ("dec.u32", I32)]
    for name, (typed, kind) in product(("and", "or", "xor", "exch"), (("b32", I32), ("b64", I64))):
        words.append((f"{name}.{typed}", kind))
    floats = [("add.f32", F32), ("add.f64", F64), ("add.noftz.f16", Kind.HALF), ("add.noftz.bf16", Kind.BRAIN)]
    floats += [("add.noftz.f16x2", Kind.HALVES), ("add.noftz.bf16x2", Kind.BRAINS)]
    for space, (name, kind) in product(("global", "shared"), words + floats):
        group = "float atomics" if (name, kind) in floats else "atomics"
        at, bits = ADDRESS[space], 8 * kind.bytes
        text = f"st.{space}.b{bits} [{at}], {{2}};\natom.{space}.{name} {{0}}, [{at}], {{3}};\n"
        yield Form(text + f"ld.{space}.b{bits} {{1}}, [{at}];", (kind, kind), (kind, kind), group)
    for space, (typed, kind) in product(("global", "shared"), (("b16", I16), ("b32", I32), ("b64", I64))):
        at = ADDRESS[space]
        text = (
            f"st.{space}.{typed} [{at}], {{2}};\nselp.{typed} {{0}}, {{2}}, {{3}}, {{5}};\n"
            f"atom.{space}.cas.{typed} {{0}}, [{at}], {{0}}, {{4}};\nld.{space}.{typed} {{1}}, [{at}];"
        )
        yield Form(text, (kind, kind), (kind, kind, kind, P), "atomics")


def _reductions() -> Iterator[Form]:
    """On words that all threads share: their content at the end does not depend on the order."""
    names = ("add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32")
    for index, name in enumerate(names):
        yield Form(f"red.global.{name} [%rd1+{4 * index}], {{0}};", (), (I32,), "atomics")
    for index, name in enumerate(("add.u64", "max.s64", "xor.b64")):
        yield Form(f"red.relaxed.gpu.global.{name} [%rd1+{32 + 8 * index}], {{0}};", (), (I64,), "atomics")


def _warp() -> Iterator[Form]:
    group = "warps"

    def form(text: str, results: tuple[Kind, ...], operands: tuple[Kind, ...]) -> Form:
        return Form(text, results, operands, group, where=Where.WARP)

    for mode in ("all", "any", "uni"):
        yield form(f"vote.sync.{mode}.pred {{0}}, {{1}}, {{mask}};", (P,), (P,))
        yield form(f"vote.sync.{mode}.pred {{0}}, !{{1}}, {{mask}};", (P,), (P,))
    yield form("vote.sync.ballot.b32 {0}, {1}, {mask};", (I32,), (P,))
    for name in ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"):
        yield form(f"redux.sync.{name} {{0}}, {{1}}, {{mask}};", (I32,), (I32,))
    for typed, kind in (("b32", I32), ("b64", I64)):
        few = f"and.{typed} {{0}}, {{1}}, 3;\n".replace("{0}", "%t0" if kind is I32 else "%w0")
        few_register = "%t0" if kind is I32 else "%w0"
        yield form(f"match.any.sync.{typed} {{0}}, {{1}}, {{mask}};", (I32,), (kind,))
        yield form(few + f"match.any.sync.{typed} {{0}}, {few_register}, {{mask}};", (I32,), (kind,))
        yield form(f"match.all.sync.{typed} {{0}}|{{1}}, {{2}}, {{mask}};", (I32, P), (kind,))
    yield form("elect.sync {0}|{1}, {mask};", (I32, P), ())
    yield form("bar.warp.sync {mask};\nmov.b32 {0}, {1};", (I32,), (I32,))


def shuffle_forms() -> Iterator[Form]:
    """For places where all 32 lanes come together: those that do not come have no value."""
    for mode, (control, lane) in product(
        ("up", "down", "bfly", "idx"), (("0", "{2}"), ("31", "{2}"), ("0x1c1f", "{2}"), ("0x181f", "5"), ("{3}", "{2}"))
    ):
        operands = (I32, I32, I32) if control == "{3}" else (I32, I32)
        shifted = tuple(f"{{{index}}}" for index in (2, 3, 4))
        text = f"shfl.sync.{mode}.b32 {{0}}|{{1}}, {shifted[0]}, "
        text += (shifted[1] if lane == "{2}" else lane) + ", " + (shifted[2] if control == "{3}" else control)
        yield Form(text + ", 0xffffffff;", (I32, P), operands, "warps", where=Where.BLOCK)


def _block() -> Iterator[Form]:
    def form(text: str, results: tuple[Kind, ...], operands: tuple[Kind, ...]) -> Form:
        return Form(text, results, operands, "blocks", where=Where.BLOCK)

    yield from shuffle_forms()
    for typed, kind in (("b32", I32), ("b64", I64), ("f32", F32), ("b16", Kind.HALF)):
        text = f"st.shared.{typed} [%as], {{1}};\nbar.sync 0;\nld.shared.{typed} {{0}}, [%an];\nbarrier.sync 0;"
        yield form(text, (kind,), (kind,))
    yield form("bar.red.popc.u32 {0}, 1, {1};", (I32,), (P,))
    yield form("bar.red.and.pred {0}, 1, {1};", (P,), (P,))
    yield form("barrier.cta.red.or.pred {0}, 2, !{1};", (P,), (P,))


def _control() -> Iterator[Form]:
    call = "{{\n.param .b32 fa;\n.param .b32 fb;\n.param .b32 fr;\nst.param.b32 [fa], {1};\nst.param.b32 [fb], {2};\n"
    call += "call (fr), twist, (fa, fb);\nld.param.b32 {0}, [fr];\n}}"
    yield Form(call, (I32,), (I32, I32), "control")
    switch = "and.b32 %t0, {1}, 3;\nW{n}: .branchtargets A{n}, B{n}, C{n}, A{n};\nbrx.idx %t0, W{n};\n"
    switch += "A{n}:\nadd.u32 {0}, {2}, 7;\nbra D{n};\nB{n}:\nmul.lo.u32 {0}, {2}, 5;\nbra D{n};\n"
    switch += "C{n}:\nxor.b32 {0}, {2}, 0x5555;\nD{n}:"
    yield Form(switch, (I32,), (I32, I32), "control")
