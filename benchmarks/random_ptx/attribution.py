"""Attributes a program's difference from a GPU to known causes, by the digest of the GPU's memory alone.

Each use of a form that a cause may concern is given the GPU's behaviour, by further PTX; where the program then leaves
the GPU's memory bit for bit, these causes explain all of the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice, permutations, product

from benchmarks.random_ptx.comparison import digest
from benchmarks.random_ptx.program import Program, Slot
from benchmarks.random_ptx.sides import EmulatedSide, SideError

MOST_USES = 4
"""That are changed together."""
MOST_RUNS = 2000
"""Of one program."""

REGISTERS = ".reg .pred %vp<2>;\n.reg .f64 %vq<3>;\n.reg .b64 %vd<2>;\n.reg .b32 %vr<3>;\n.reg .b16 %vh<2>;\n"
_BOTH = "setp.nan.f64 %vp0, %vq{0}, %vq{0};\nsetp.nan.and.f64 %vp0, %vq{1}, %vq{1}, %vp0;"
_USE = re.compile(r"(?:@(!?%\w+) )?([\w.]+) ([^\n]*);\s*")
_F64 = re.compile(r"(add|sub|mul|fma|div|min|max)(\.\w+)*\.f64")
_GUARDED = re.compile(r"testp\.|set\.\w+(\.\w+)*\.f32\.")
_TO_INTEGER = re.compile(r"cvt\.rzi\.\w+\.f16")
_SHIFT = re.compile(r"shl\.b16")
_EXTREME = re.compile(r"(min|max)(\.\w+)*\.f(16|32|64)")
_SIGN = re.compile(r"(neg|abs)(\.ftz)?\.f32")
_FLUSHES = re.compile(r"(add|sub|mul|fma|div|rcp)(\.\w+)*\.ftz(\.\w+)*\.f32")


@dataclass(frozen=True)
class Variant:
    """A use of a form with another behaviour.

    Attributes:
        slot: the use.
        cause: name in `known_differences`.
        text: in place of the slot's.
        earlier: another use that it needs something of, with the text in its place.
    """

    slot: Slot
    cause: str
    text: str
    earlier: tuple[tuple[Slot, str], ...] = ()


@dataclass(frozen=True)
class _Use:
    slot: Slot
    guard: str
    opcode: str
    operands: tuple[str, ...]

    def variant(self, cause: str, *lines: str) -> Variant:
        return Variant(self.slot, cause, "\n".join(lines))

    def where_it_ran(self) -> list[str]:
        """Narrows predicate %vp0 to the threads whose guard is true."""
        if not self.guard:
            return []
        name = self.guard.lstrip("!")
        narrow = f"and.pred %vp0, %vp0, {name};"
        return [f"not.pred %vp1, {name};", "and.pred %vp0, %vp0, %vp1;"] if self.guard.startswith("!") else [narrow]


def _read(slot: Slot) -> _Use | None:
    use = _USE.fullmatch(slot.text)
    if use is None:
        return None
    return _Use(slot, use[1] or "", use[2], tuple(operand.strip() for operand in use[3].split(",")))


def variants(slot: Slot) -> Iterator[Variant]:
    """The behaviours of a GPU that a known cause may give a use."""
    use = _read(slot)
    if use is None:
        return
    if _F64.fullmatch(use.opcode):
        yield from _nan_orders(use)
    if use.guard and _GUARDED.match(use.opcode):
        yield _last_step(use)
    if _TO_INTEGER.fullmatch(use.opcode):
        yield use.variant("f16 to integers", slot.text.replace(".rzi.", ".rni."))
    if _SHIFT.fullmatch(use.opcode) and use.operands[-1].isdecimal():
        cut = int(use.operands[-1]) & 0xFFFF
        yield use.variant("shift by a literal", slot.text.replace(f" {use.operands[-1]};", f" {cut};"))
    if _EXTREME.fullmatch(use.opcode):
        yield _move(use)
    if _FLUSHES.fullmatch(use.opcode):
        yield _flush(use)


def _nan_orders(use: _Use) -> Iterator[Variant]:
    """Of several NaN the one that comes first in some order of two or all operands; `sub` may flip the sign of one."""
    to, *sources = use.operands
    begin = [f"mov.f64 %vq{at}, {source};" for at, source in enumerate(sources)] + [use.slot.text]

    def take(at: int, where: int, sign: str = "") -> list[str]:
        """One operand where it and another are NaN."""
        both = f"setp.nan.f64 %vp0, %vq{at}, %vq{where};" if at == where else _BOTH.format(at, where)
        bits = [f"mov.b64 %vd0, %vq{at};", "or.b64 %vd0, %vd0, 0x0008000000000000;", sign]
        return [both, *use.where_it_ran(), *filter(None, bits), f"@%vp0 mov.b64 {to}, %vd0;"]

    places = range(len(sources))
    for order in sorted({*permutations(places), *permutations(places, 2)}, key=len):
        pairs = list(combinations(order, 2))[::-1]
        yield use.variant("NaN of f64", *begin, *(line for pair in pairs for line in take(*pair)))
    if use.opcode.startswith("sub"):
        flipped = take(1, 1, "xor.b64 %vd0, %vd0, 0x8000000000000000;")
        yield use.variant("NaN of f64", *begin, *flipped)
        yield use.variant("NaN of f64", *begin, *flipped, *take(0, 1))


def _last_step(use: _Use) -> Variant:
    """Without the guard; of `set` the conversion of a mask, 0 or -1, to f32, which takes its absolute value."""
    to = use.operands[0]
    if not use.opcode.startswith("set"):
        return use.variant("guard", f"{use.opcode} {', '.join(use.operands)};")
    inverse = use.guard.removeprefix("!") if use.guard.startswith("!") else f"!{use.guard}"
    mask = (f"mov.b32 %vr0, {to};", "abs.s32 %vr0, %vr0;")
    return use.variant("guard", use.slot.text, *mask, f"@{inverse} cvt.rn.f32.s32 {to}, %vr0;")


def _move(use: _Use) -> Variant:
    """Of two operands with the same bits, those bits."""
    to, one, other = use.operands
    bits = use.opcode.rpartition(".f")[2]
    left, right = {"16": ("%vh0", "%vh1"), "32": ("%vr0", "%vr1"), "64": ("%vd0", "%vd1")}[bits]
    kept = (f"mov.b{bits} {left}, {one};", f"mov.b{bits} {right}, {other};")
    lines = (*kept, use.slot.text, f"setp.eq.b{bits} %vp0, {left}, {right};", *use.where_it_ran())
    cause = "NaN of f64" if bits == "64" else "NaN of copies"
    return use.variant(cause, *lines, f"@%vp0 mov.b{bits} {to}, {left};")


def kept_signs(slots: Sequence[Slot]) -> Iterator[Variant]:
    """Of f32 instructions with a guard, behind a `neg` or `abs`: where the guard is false, its NaN with all other bits.

    Args:
        slots: of a program, in its order.
    """
    signs: dict[str, _Use] = {}
    for use in filter(None, map(_read, slots)):
        to = use.operands[0]
        if to in signs and use.guard and use.opcode.endswith(".f32"):
            source = signs[to]
            change = "xor.b32 %vr2, %vr2, 0x80000000;"
            if source.opcode.startswith("abs"):
                change = "and.b32 %vr2, %vr2, 0x7fffffff;"
            bits = "\n".join((f"mov.b32 %vr2, {source.operands[1]};", change, source.slot.text))
            is_false = "mov.pred" if use.guard.startswith("!") else "not.pred"
            lines = (
                f"setp.nan.f32 %vp0, {to}, {to};",
                f"{is_false} %vp1, {use.guard.lstrip('!')};",
                "and.pred %vp0, %vp0, %vp1;",
                f"@%vp0 mov.b32 {to}, %vr2;",
                use.slot.text,
            )
            text = "\n".join(lines)
            yield Variant(use.slot, "NaN that a guard keeps", text, ((source.slot, bits),))
        signs.pop(to, None)
        if _SIGN.fullmatch(use.opcode) and not use.guard:
            signs[to] = use


def unconverted(slots: Sequence[Slot]) -> Iterator[Variant]:
    """Of an f16 made of a bf16 and then rounded to an integer: the bits of the bf16 taken as an f16.

    Args:
        slots: of a program, in its order.
    """
    sources: dict[str, str] = {}
    for use in filter(None, map(_read, slots)):
        to, *operands = use.operands
        if _TO_INTEGER.fullmatch(use.opcode) and operands[0] in sources and not use.guard:
            opcode = use.opcode.replace(".rzi.", ".rni.")
            yield use.variant("f16 to integers", f"mov.b16 %vh0, {sources[operands[0]]};", f"{opcode} {to}, %vh0;")
        sources = {name: source for name, source in sources.items() if to not in (name, source)}
        if use.opcode.startswith("cvt.rn.f16.bf16") and not use.guard:
            sources[to] = operands[0]


def _flush(use: _Use) -> Variant:
    """Zero in place of the least normal number."""
    to = use.operands[0]
    sign = (f"mov.b32 %vr0, {to};", "and.b32 %vr1, %vr0, 0x7fffffff;", "and.b32 %vr0, %vr0, 0x80000000;")
    least = "setp.eq.u32 %vp0, %vr1, 0x00800000;"
    return use.variant("flushed", use.slot.text, *sign, least, *use.where_it_ran(), f"@%vp0 mov.b32 {to}, %vr0;")


def attribute(program: Program, expected: str, emulator: EmulatedSide) -> tuple[str, ...] | None:
    """The causes that together explain the digest of a GPU's memory; none where the emulator leaves it as it is.

    Args:
        program: that both have run.
        expected: digest of the GPU's memory.
        emulator: runs the variants.

    Returns:
        None if no combination of `MOST_USES` uses within `MOST_RUNS` runs explains it.
    """
    plain = digest(program, emulator.run(program))
    if plain == expected:
        return ()
    everything = [*chain(*map(variants, program.slots)), *kept_signs(program.slots), *unconverted(program.slots)]
    effective: list[Variant] = []
    for variant in everything:
        found = _digest_with(program, [variant], emulator)
        if found == expected:
            return (variant.cause,)
        if found not in ("", plain):
            effective.append(variant)
    pairs = product(effective, everything)  # the second may make a difference with the first alone
    more = chain.from_iterable(combinations(effective, count) for count in range(3, MOST_USES + 1))
    several = (chosen for chosen in chain(pairs, more) if len({one.slot.cell for one in chosen}) == len(chosen))
    for chosen in islice(several, MOST_RUNS):
        if _digest_with(program, chosen, emulator) == expected:
            return tuple(sorted({variant.cause for variant in chosen}))
    return None


def _digest_with(program: Program, chosen: Sequence[Variant], emulator: EmulatedSide) -> str:
    """The digest with these; "" where the emulator does not take the text, such as a literal of another width."""
    text = program.ptx
    changes = [change for variant in chosen for change in ((variant.slot, variant.text), *variant.earlier)]
    for slot, changed in changes:
        begin = text.index(f"\n{slot.text}\n")
        text = f"{text[:begin]}\n{changed}{text[begin + 1 + len(slot.text) :]}"
    declarations = text.index(".reg", text.index(".entry"))
    try:
        return digest(program, emulator.run_text(program, text[:declarations] + REGISTERS + text[declarations:]))
    except SideError:
        return ""
