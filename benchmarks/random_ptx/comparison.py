"""Comparison of the memory that two sides left, where their operands are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.random_ptx.form import Kind, Where
from benchmarks.random_ptx.program import CELL_BYTES, POISON, Program, Slot

POISONED = np.frombuffer(bytes([POISON] * CELL_BYTES), np.uint64)[0]
Floats = np.ndarray


@dataclass(frozen=True)
class Difference:
    """One result that differs though its operands are equal.

    Attributes:
        seed: of the program.
        form: name.
        text: as the program has it.
        thread: of the launch.
        operands: bits, of the guard and the earlier result too.
        results: bits, of this side and of the other.
        both_nan: whether all results that differ are NaN on both sides.
    """

    seed: int
    form: str
    text: str
    thread: int
    operands: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    both_nan: bool


@dataclass(frozen=True)
class Compared:
    """One use of a form.

    Attributes:
        form: name.
        group: of the form.
        bound: name of its error bound, "" if it is exact.
        compared: threads whose operands are equal.
        different: of these, those whose results differ, or differ by more than the bound.
        within: of these, those whose results differ by no more than the bound.
        example: one of the different.
    """

    form: str
    group: str
    bound: str
    compared: int
    different: int
    within: int
    example: Difference | None


def compare(program: Program, one: np.ndarray, other: np.ndarray) -> list[Compared]:
    """All uses of forms, and the scratch memory as the last one.

    Args:
        program: that both sides ran.
        one: memory after the run.
        other: memory of the other side.
    """
    cells = program.cells(one), program.cells(other)
    found = [_compare_slot(program, slot, *cells) for slot in program.slots]
    scratch = program.scratch(one), program.scratch(other)
    if not any(each.different for each in found) and not np.array_equal(*scratch):
        at = int(np.flatnonzero(scratch[0] != scratch[1])[0])
        words = tuple(side[at & ~3 : (at & ~3) + 4].tobytes()[::-1].hex() for side in scratch)
        example = Difference(program.seed, "scratch", f"byte {at}", 0, (), ((words[0], words[1]),), both_nan=False)
        found.append(Compared("scratch", "memory", "", 1, 1, 0, example))
    return found


def _compare_slot(program: Program, slot: Slot, one: np.ndarray, other: np.ndarray) -> Compared:
    operands, results, form = list(slot.operand_cells), list(slot.result_cells), slot.form
    equal = (one[operands] == other[operands]).all(axis=0)
    if form.where is not Where.ANYWHERE:  # operands of other threads count too
        equal &= equal.all()
    ran = ~((one[results] == POISONED).all(axis=0) & (other[results] == POISONED).all(axis=0))
    looked_at = equal & ran if results else equal & False
    differs = (one[results] != other[results]).any(axis=0) & looked_at
    within = np.zeros_like(differs)
    if form.bound and differs.any():
        kind = form.results[0]
        bits = one[operands], one[results[0]], other[results[0]]
        within = differs & within_bound(form.bound, kind, *bits)
    wrong = differs & ~within
    example = _example(program, slot, int(np.flatnonzero(wrong)[0]), one, other) if wrong.any() else None
    counts = int(looked_at.sum()), int(wrong.sum()), int(within.sum())
    return Compared(form.name, form.group, form.bound, *counts, example)


def _example(program: Program, slot: Slot, thread: int, one: np.ndarray, other: np.ndarray) -> Difference:
    def hexadecimal(cells: np.ndarray, cell: int, kind: Kind) -> str:
        return f"{int(cells[cell, thread]) & ((1 << 8 * kind.bytes) - 1):0{2 * kind.bytes}x}"

    operands = tuple(hexadecimal(one, c, k) for c, k in zip(slot.operand_cells, slot.operands, strict=True))
    kinds = slot.form.results
    results = [
        (hexadecimal(one, c, k), hexadecimal(other, c, k)) for c, k in zip(slot.result_cells, kinds, strict=True)
    ]
    both_nan = all(
        _all_nan(kind, one[cell, thread : thread + 1]) and _all_nan(kind, other[cell, thread : thread + 1])
        for cell, kind in zip(slot.result_cells, kinds, strict=True)
        if one[cell, thread] != other[cell, thread]
    )
    return Difference(program.seed, slot.form.name, slot.text, thread, operands, tuple(results), both_nan)


def _all_nan(kind: Kind, bits: np.ndarray) -> bool:
    return kind not in (Kind.I16, Kind.I32, Kind.I64, Kind.PREDICATE) and bool(np.isnan(floats(kind, bits)).any())


def floats(kind: Kind, bits: np.ndarray) -> Floats:
    """Values of a kind, as float64; of pairs, both, one after the other."""
    words = np.ascontiguousarray(bits)
    with np.errstate(invalid="ignore"):  # signalling NaN
        match kind:
            case Kind.F64:
                return words.view(np.float64)
            case Kind.F32:
                return words.astype(np.uint32).view(np.float32).astype(np.float64)
            case Kind.HALF:
                return words.astype(np.uint16).view(np.float16).astype(np.float64)
            case Kind.BRAIN:
                return ((words & 0xFFFF) << np.uint64(16)).astype(np.uint32).view(np.float32).astype(np.float64)
            case Kind.HALVES | Kind.BRAINS:
                single = Kind.HALF if kind is Kind.HALVES else Kind.BRAIN
                parts = floats(single, words & np.uint64(0xFFFF)), floats(single, words >> np.uint64(16))
                return np.concatenate([part.reshape(1, -1) for part in parts])
            case _:
                raise ValueError(f"{kind} holds no float")


_LAST_PLACE = {Kind.F64: 2.0**-52, Kind.F32: 2.0**-23, Kind.HALF: 2.0**-10, Kind.BRAIN: 2.0**-7}
_LEAST = {Kind.F64: 2.0**-1074, Kind.F32: 2.0**-149, Kind.HALF: 2.0**-24, Kind.BRAIN: 2.0**-133}
_SINGLE = {Kind.HALVES: Kind.HALF, Kind.BRAINS: Kind.BRAIN}

Bound = Callable[[Floats, Floats], Floats]
"""Operand, result -> greatest absolute error, without that of the result's own rounding."""


def _relative(error: float) -> Bound:
    return lambda _, y: error * np.abs(y)


def _absolute(error: float) -> Bound:
    return lambda _, y: np.full_like(y, error)


def _sine(x: Floats, y: Floats) -> Floats:
    """Documented for |x| up to 100 pi; beyond, any value of a sine."""
    small, large = np.abs(x) <= 2 * np.pi, np.abs(x) <= 100 * np.pi
    most: Floats = np.where(small, 2.0**-20.5, np.where(large, 2.0**-14.7, 2.0)) + 0 * y
    return most


def _logarithm(x: Floats, y: Floats) -> Floats:
    near_one = (x > 0.5) & (x < 2)
    return np.where(near_one, 2.0**-22, 2.0**-22 * np.abs(y))


BOUNDS: Mapping[str, Bound] = {
    "div.approx": _relative(2 * 2.0**-23),
    "div.full": _relative(2 * 2.0**-23),
    "rcp.approx": _relative(2.0**-23),
    "sqrt.approx": _relative(2.0**-23),
    "rsqrt.approx": _relative(2.0**-22.9),
    "sin.approx": _sine,
    "cos.approx": _sine,
    "lg2.approx": _logarithm,
    "ex2.approx": _relative(2.0**-22.5),
    "tanh.approx": _relative(2.0**-11),
    "rcp.approx.f64": _relative(2.0**-19),
    "rsqrt.approx.f64": _relative(2.0**-20),
    "ex2.approx.f16": _relative(2.0**-9.9),
    "ex2.approx.bf16": _relative(2.0**-7),
    "tanh.approx.f16": _absolute(2.0**-10.987),
    "tanh.approx.bf16": _absolute(2.0**-8),
}
"""Errors that the PTX manual grants an approximation."""


def within_bound(bound: str, kind: Kind, operands: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two results differ by no more than the error bound and one unit in the last place.

    Args:
        bound: a name in `BOUNDS`.
        kind: of the results.
        operands: bits, one row each.
        one: bits.
        other: bits.
    """
    x, a, b = floats(kind, operands[0]), floats(kind, one), floats(kind, other)
    single = _SINGLE.get(kind, kind)
    with np.errstate(all="ignore"):
        allowed = BOUNDS[bound](x, b) + np.maximum(_LAST_PLACE[single] * np.abs(b), _LEAST[single])
        close: np.ndarray = (np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(np.atleast_2d(close).all(axis=0))


def digest(program: Program, memory: np.ndarray) -> str:
    """A digest of all exact results in memory after a run; bound to the program's text and inputs."""
    cells = program.cells(memory).copy()
    for slot in program.slots:
        if slot.form.bound:
            cells[list(slot.result_cells)] = 0
    content = hashlib.sha256(program.ptx.encode())
    for part in (program.memory, cells, program.scratch(memory)):
        content.update(np.ascontiguousarray(part).tobytes())
    return content.hexdigest()[:16]
