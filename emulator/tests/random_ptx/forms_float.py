"""Instructions on floats of all widths, exact and approximate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from emulator.tests.random_ptx.form import Form, Kind, plain

P, I16, I32, F32, F64 = Kind.PREDICATE, Kind.I16, Kind.I32, Kind.F32, Kind.F64
SMALL = {"f16": Kind.HALF, "bf16": Kind.BRAIN, "f16x2": Kind.HALVES, "bf16x2": Kind.BRAINS}
MODES = ("rn", "rz", "rm", "rp")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def float_forms() -> Iterator[Form]:
    """All of them."""
    yield from _rounded()
    yield from _extremes_and_signs()
    yield from _comparisons()
    yield from _small()
    yield from _approximate()


def _rounded() -> Iterator[Form]:
    arities = (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("div", 2), ("sqrt", 1), ("rcp", 1))
    for (name, arity), mode in product(arities, MODES):
        for ftz, sat in product(("", ".ftz"), ("", ".sat")):
            if sat and name in ("div", "sqrt", "rcp"):
                continue
            group = f"f32 {mode}" + (" ftz" if ftz else "")
            yield plain(f"{name}.{mode}{ftz}{sat}.f32", F32, *(F32,) * arity, group=group)
        yield plain(f"{name}.{mode}.f64", F64, *(F64,) * arity, group=f"f64 {mode}")
    for name in ("add", "sub", "mul"):
        for ftz, sat in product(("", ".ftz"), ("", ".sat")):
            yield plain(f"{name}{ftz}{sat}.f32", F32, F32, F32, group="f32 rn" + (" ftz" if ftz else ""))
        yield plain(f"{name}.f64", F64, F64, F64, group="f64 rn")


def _extremes_and_signs() -> Iterator[Form]:
    for name, ftz, nan, xorsign in product(("min", "max"), ("", ".ftz"), ("", ".NaN"), ("", ".xorsign.abs")):
        yield plain(f"{name}{ftz}{nan}{xorsign}.f32", F32, F32, F32, group="float signs and extremes")
    for name in ("min", "max"):
        yield plain(f"{name}.f64", F64, F64, F64, group="float signs and extremes")
    for name in ("abs", "neg"):
        for typed, kind in (("f32", F32), ("ftz.f32", F32), ("f64", F64)):
            yield plain(f"{name}.{typed}", kind, kind, group="float signs and extremes")
    for typed, kind in (("f32", F32), ("f64", F64)):
        yield plain(f"copysign.{typed}", kind, kind, kind, group="float signs and extremes")
        yield plain(f"mov.{typed}", kind, kind, group="float signs and extremes")


def _comparisons() -> Iterator[Form]:
    types = (("f32", F32), ("ftz.f32", F32), ("f64", F64), ("f16", Kind.HALF), ("bf16", Kind.BRAIN))
    for name, (typed, kind) in product(COMPARISONS, types):
        yield plain(f"setp.{name}.{typed}", P, kind, kind, group="float comparisons")
    for logic in ("and", "or", "xor"):
        yield Form(
            f"setp.ltu.{logic}.f32 {{0}}|{{1}}, {{2}}, {{3}}, {{4}};", (P, P), (F32, F32, P), "float comparisons"
        )
    for name in ("eq", "lt", "geu"):
        for typed, kind in (("f16x2", Kind.HALVES), ("bf16x2", Kind.BRAINS)):
            yield Form(f"setp.{name}.{typed} {{0}}|{{1}}, {{2}}, {{3}};", (P, P), (kind, kind), "float comparisons")
        yield plain(f"set.{name}.u32.f32", I32, F32, F32, group="float comparisons")
        yield plain(f"set.{name}.f32.f64", F32, F64, F64, group="float comparisons")
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        for typed, kind in (("f32", F32), ("f64", F64)):
            yield plain(f"testp.{test}.{typed}", P, kind, group="float comparisons")


def _small() -> Iterator[Form]:
    for typed, kind in SMALL.items():
        brain = typed.startswith("bf")
        group = "bf16" if brain else "f16"
        for name in ("add", "sub", "mul"):
            yield plain(f"{name}.rn.{typed}", kind, kind, kind, group=group)
            yield plain(f"{name}.{typed}", kind, kind, kind, group=group)
            for after in () if brain else (".sat", ".ftz", ".ftz.sat"):
                yield plain(f"{name}{after}.{typed}", kind, kind, kind, group=group)
        for after in ("", ".relu") if brain else ("", ".sat", ".relu", ".ftz", ".ftz.sat", ".ftz.relu"):
            yield plain(f"fma.rn{after}.{typed}", kind, kind, kind, kind, group=group)
        for name in ("abs", "neg"):
            yield plain(f"{name}.{typed}", kind, kind, group=group)
            if not brain:
                yield plain(f"{name}.ftz.{typed}", kind, kind, group=group)
        for name, nan, xorsign in product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
            yield plain(f"{name}{nan}{xorsign}.{typed}", kind, kind, kind, group=group)
            if not brain:
                yield plain(f"{name}.ftz{nan}{xorsign}.{typed}", kind, kind, kind, group=group)


def _approximate() -> Iterator[Form]:
    group = "approximations"
    for ftz in ("", ".ftz"):
        for name in ("div.approx", "div.full"):
            yield plain(f"{name}{ftz}.f32", F32, F32, F32, group=group, bound=name)
        for name in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"):
            yield plain(f"{name}.approx{ftz}.f32", F32, F32, group=group, bound=f"{name}.approx")
    yield plain("tanh.approx.f32", F32, F32, group=group, bound="tanh.approx")
    yield plain("rcp.approx.ftz.f64", F64, F64, group=group, bound="rcp.approx.f64")
    for ftz in ("", ".ftz"):
        yield plain(f"rsqrt.approx{ftz}.f64", F64, F64, group=group, bound="rsqrt.approx.f64")
    for typed, kind in SMALL.items():
        ftz = ".ftz" if typed.startswith("bf") else ""
        base = typed.removesuffix("x2")
        yield plain(f"ex2.approx{ftz}.{typed}", kind, kind, group=group, bound=f"ex2.approx.{base}")
        yield plain(f"tanh.approx.{typed}", kind, kind, group=group, bound=f"tanh.approx.{base}")
