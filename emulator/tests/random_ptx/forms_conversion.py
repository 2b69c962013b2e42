"""cvt between all types."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from emulator.tests.random_ptx.form import Form, Kind, plain

INTEGERS = {
    f"{sign}{bits}": kind for bits, kind in (("16", Kind.I16), ("32", Kind.I32), ("64", Kind.I64)) for sign in "su"
}
FLOATS = {"f16": Kind.HALF, "bf16": Kind.BRAIN, "f32": Kind.F32, "f64": Kind.F64}
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
MODES = ("rn", "rz", "rm", "rp")
WHOLE = ("rni", "rzi", "rmi", "rpi")


def conversion_forms() -> Iterator[Form]:
    """All of them."""
    yield from _between_integers()
    yield from _from_integers()
    yield from _to_integers()
    yield from _between_floats()
    yield from _pairs()


def _between_integers() -> Iterator[Form]:
    small = {"s8": Kind.I16, "u8": Kind.I16}
    for to, a in product(INTEGERS | small, INTEGERS | small):
        result, operand = (INTEGERS | small)[to], (INTEGERS | small)[a]
        for sat in ("", ".sat") if to != a else ():
            if not sat or not _holds(to, a):
                yield plain(f"cvt{sat}.{to}.{a}", result, operand, group="conversions of integers")
    for to, a in product(("u32", "s32", "u64"), ("s8", "u8", "s16")):  # of the lower part of a wider register
        yield plain(f"cvt.{to}.{a}", INTEGERS[to], Kind.I32, group="conversions of integers")
    yield plain("cvt.s8.s32", Kind.I32, Kind.I32, group="conversions of integers")
    yield plain("cvt.u8.u32", Kind.I32, Kind.I32, group="conversions of integers")


def _holds(wide: str, narrow: str) -> bool:
    """Whether a type holds all values of another."""
    spare = int(wide[1:]) - int(narrow[1:])
    return spare >= 0 if wide[0] == narrow[0] else wide[0] == "s" and spare > 0


def _from_integers() -> Iterator[Form]:
    for (to, result), (a, operand), mode in product(FLOATS.items(), INTEGERS.items(), MODES):
        if to == "bf16" and mode != "rn":
            yield plain(f"cvt.{mode}.{to}.{a}", result, operand, group="integers to floats")
            continue
        yield plain(f"cvt.{mode}.{to}.{a}", result, operand, group="integers to floats")
    yield plain("cvt.rn.f32.s8", Kind.F32, Kind.I16, group="integers to floats")
    yield plain("cvt.rn.f32.u8", Kind.F32, Kind.I32, group="integers to floats")
    yield plain("cvt.rn.sat.f32.s32", Kind.F32, Kind.I32, group="integers to floats")


def _to_integers() -> Iterator[Form]:
    for (to, result), (a, operand), mode in product(INTEGERS.items(), FLOATS.items(), WHOLE):
        yield plain(f"cvt.{mode}.{to}.{a}", result, operand, group="floats to integers")
        if a == "f32":
            yield plain(f"cvt.{mode}.ftz.{to}.{a}", result, operand, group="floats to integers")
    for to, a in product(("s8", "u8"), ("f32", "f64", "f16")):
        yield plain(f"cvt.rzi.{to}.{a}", Kind.I32, FLOATS[a], group="floats to integers")


def _between_floats() -> Iterator[Form]:
    group = "conversions of floats"
    for (to, result), (a, operand) in product(FLOATS.items(), FLOATS.items()):
        if to == a:
            if to == "bf16":
                continue
            for mode, sat in product(WHOLE, ("", ".sat")):
                yield plain(f"cvt.{mode}{sat}.{to}.{a}", result, operand, group=group)
                if to == "f32":
                    yield plain(f"cvt.{mode}.ftz{sat}.{to}.{a}", result, operand, group=group)
        elif WIDTH[to] > WIDTH[a]:
            yield plain(f"cvt.{to}.{a}", result, operand, group=group)
            if to == "f32" and a == "f16":
                yield plain(f"cvt.ftz.{to}.{a}", result, operand, group=group)
                yield plain(f"cvt.sat.{to}.{a}", result, operand, group=group)
            if a == "f32":
                yield plain(f"cvt.ftz.{to}.{a}", result, operand, group=group)
        else:
            for mode in MODES:
                if (WIDTH[to] == WIDTH[a] or to == "bf16") and mode in ("rm", "rp"):
                    continue
                yield plain(f"cvt.{mode}.{to}.{a}", result, operand, group=group)
    yield plain("cvt.rn.sat.f16.f32", Kind.HALF, Kind.F32, group=group)
    yield plain("cvt.rn.ftz.f16.f32", Kind.HALF, Kind.F32, group=group)
    yield plain("cvt.rn.sat.f32.f64", Kind.F32, Kind.F64, group=group)
    yield plain("cvt.rn.ftz.f32.f64", Kind.F32, Kind.F64, group=group)
    for after in ("rn.relu", "rz.relu"):
        yield plain(f"cvt.{after}.f16.f32", Kind.HALF, Kind.F32, group=group)
        yield plain(f"cvt.{after}.bf16.f32", Kind.BRAIN, Kind.F32, group=group)
    for after in ("rna", "rn", "rz", "rn.relu", "rz.relu"):
        yield plain(f"cvt.{after}.tf32.f32", Kind.I32, Kind.F32, group=group)


def _pairs() -> Iterator[Form]:
    group = "conversions of pairs"
    for to, kind in (("f16x2", Kind.HALVES), ("bf16x2", Kind.BRAINS)):
        for mode in ("rn", "rz", "rn.relu", "rz.relu"):
            yield plain(f"cvt.{mode}.{to}.f32", kind, Kind.F32, Kind.F32, group=group)
    for to, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        yield plain(f"cvt.rn.satfinite{relu}.{to}.f32", Kind.I16, Kind.F32, Kind.F32, group=group)
        yield plain(f"cvt.rn.satfinite{relu}.{to}.f16x2", Kind.I16, Kind.HALVES, group=group)
        yield plain(f"cvt.rn{relu}.f16x2.{to}", Kind.HALVES, Kind.I16, group=group)
