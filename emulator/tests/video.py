"""Video instructions: their forms, and what they compute by the pseudo code of the PTX ISA.

An H100 computes the same for all SIMD forms (vadd4 and its kin), and for 1065 of the 1456 scalar forms. The code that
ptxas 13.0 puts for scalar instructions departs from the pseudo code where a result overflows before `.sat`, `.min` or
`.max`, and gives 0 in most merges into `.h1`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

TYPES = ("u32", "s32")
PARTS = ("b0", "b1", "b2", "b3", "h0", "h1")
COMPARISONS = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


@dataclass(frozen=True)
class Video:
    """A video instruction.

    Attributes:
        opcode: Opcode with its modifiers.
        d: Selection of the result, such as "h1", or a mask such as "b310"; "" for all of it.
        a: Selection of the first operand, with "-" in front where it is negated.
        b: Selection of the second operand, likewise.
        c: "c", "-c" or "", where it has no third operand.
    """

    opcode: str
    d: str = ""
    a: str = ""
    b: str = ""
    c: str = ""

    def text(self, d: str, a: str, b: str, c: str) -> str:
        """PTX with these registers."""
        operands = [d + (f".{self.d}" if self.d else "")]
        for register, selection in ((a, self.a), (b, self.b)):
            part = selection.removeprefix("-")
            operands.append("-" * selection.startswith("-") + register + (f".{part}" if part else ""))
        if self.c:
            operands.append(self.c.replace("c", c))
        return f"{self.opcode} {', '.join(operands)};"

    @property
    def words(self) -> list[str]:
        """The modifiers."""
        return self.opcode.split(".")[1:]

    @property
    def types(self) -> list[str]:
        """Types of the result, of a and of b; the result of a comparison is unsigned."""
        found = [word for word in self.words if word in TYPES]
        return found if len(found) == 3 else ["u32", *found]

    def computed(self, a: int, b: int, c: int) -> int:
        """The result of three words."""
        name = self.opcode.split(".")[0]
        if name == "vmad":
            return self._product(a, b, c) & 0xFFFFFFFF
        if name[-1] in "24":
            return self._parallel(int(name[-1]), a, b, c) & 0xFFFFFFFF
        return self._scalar(a, b, c) & 0xFFFFFFFF

    def _scalar(self, a: int, b: int, c: int) -> int:
        d_type, a_type, b_type = self.types
        result = self._operation(selected(a, a_type, self.a), selected(b, b_type, self.b))
        bits = {"": 32, "b": 8, "h": 16}[self.d[:1]]
        if "sat" in self.words:
            result = clamped(result, bits, d_type)
        with_c = selected(c, d_type, "")
        if second := next((word for word in self.words if word in ("add", "min", "max")), None):
            word = selected(result & 0xFFFFFFFF, d_type, "")
            return {"add": word + with_c, "min": min(word, with_c), "max": max(word, with_c)}[second]
        if not self.d:
            return result
        shift, field = bits * int(self.d[1]), (1 << bits) - 1
        return (result & field) << shift | c & ~(field << shift)

    def _parallel(self, count: int, a: int, b: int, c: int) -> int:
        d_type, a_type, b_type = self.types
        bits = 32 // count
        both = [(a | b << 32) >> bits * index & (1 << bits) - 1 for index in range(2 * count)]
        a_parts = [int(digit) for digit in self.a[:0:-1]] or list(range(count))
        b_parts = [int(digit) for digit in self.b[:0:-1]] or list(range(count, 2 * count))
        mask = [int(digit) for digit in self.d[1:]] if self.d else range(count)
        results = []
        for i in range(count):
            left, right = (
                signed(both[parts[i]], bits) if kind == "s32" else both[parts[i]]
                for parts, kind in ((a_parts, a_type), (b_parts, b_type))
            )
            result = self._operation(left, right)
            results.append(clamped(result, bits, d_type) if "sat" in self.words else result)
        if "add" in self.words:
            return c + sum(results[i] for i in mask)
        field = (1 << bits) - 1
        return sum((results[i] & field if i in mask else c >> bits * i & field) << bits * i for i in range(count))

    def _product(self, a: int, b: int, c: int) -> int:
        _, a_type, b_type = self.types
        negated = self.a.startswith("-") != self.b.startswith("-")
        is_signed = "s32" in (a_type, b_type) or negated or self.c == "-c"
        left, right = selected(a, a_type, self.a.removeprefix("-")), selected(b, b_type, self.b.removeprefix("-"))
        result, last = left * right, int("po" in self.words)
        if not last and negated:
            result, last = ~result, 1
        elif not last and self.c == "-c":
            c, last = ~c & 0xFFFFFFFF, 1
        result += (signed(c, 32) if is_signed else c) + last
        result >>= 7 if "shr7" in self.words else 15 if "shr15" in self.words else 0
        return clamped(result, 32, "s32" if is_signed else "u32") if "sat" in self.words else result

    def _operation(self, a: int, b: int) -> int:
        name = self.opcode.split(".")[0].rstrip("24")
        if name == "vset":
            return int(next(COMPARISONS[word] for word in self.words if word in COMPARISONS)(a, b))
        if name in ("vshl", "vshr"):
            b = b & 31 if "wrap" in self.words else min(b, 32)
            return a << b if name == "vshl" else a >> b
        return {
            "vadd": a + b,
            "vsub": a - b,
            "vabsdiff": abs(a - b),
            "vmin": min(a, b),
            "vmax": max(a, b),
            "vavrg": (a + b + 1) >> 1 if a + b >= 0 else (a + b) >> 1,
        }[name]


def signed(value: int, bits: int) -> int:
    """A number of so many bits in two's complement."""
    return value - (value >> bits - 1 << bits)


def selected(word: int, kind: str, part: str) -> int:
    """A part of a word, extended by its type."""
    bits = {"": 32, "b": 8, "h": 16}[part[:1]]
    value = word >> bits * int(part[1:] or 0) & (1 << bits) - 1
    return signed(value, bits) if kind == "s32" else value


def clamped(value: int, bits: int, kind: str) -> int:
    """The nearest number of a type."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "s32" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def forms(seed: int = 0) -> Iterator[Video]:
    """Every operation with every combination of types, saturation and second operation, and random selections."""
    draw = random.Random(seed)

    def part() -> str:
        return draw.choice(("", *PARTS))

    endings = [("", ""), *((f".{second}", "") for second in ("add", "min", "max")), *(("", d) for d in PARTS)]
    for types, sat, (second, d) in product(product(TYPES, repeat=3), ("", ".sat"), endings):
        c = "c" if second or d else ""
        for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax"):
            yield Video(f"{name}.{'.'.join(types)}{sat}{second}", d, part(), part(), c)
        if types[2] == "u32":
            for name, mode in product(("vshl", "vshr"), ("clamp", "wrap")):
                yield Video(f"{name}.{'.'.join(types)}{sat}.{mode}{second}", d, part(), part(), c)
    for types, compare, (second, d) in product(product(TYPES, repeat=2), COMPARISONS, endings):
        yield Video(f"vset.{'.'.join(types)}.{compare}{second}", d, part(), part(), "c" if second or d else "")
    for types, sat, scale in product(product(TYPES, repeat=2), ("", ".sat"), ("", ".shr7", ".shr15")):
        for a, b, c, po in (
            ("", "", "c", ""),
            ("-", "", "c", ""),
            ("", "-", "c", ""),
            ("", "", "-c", ""),
            ("", "", "c", ".po"),
        ):
            is_signed = "s32" in types or a != b or c == "-c"
            opcode = f"vmad.{'s32' if is_signed else 'u32'}.{'.'.join(types)}{po}{sat}{scale}"
            yield Video(opcode, "", a + part(), b + part(), c)
    for count, letter in ((2, "h"), (4, "b")):
        masks = [
            "",
            *(
                letter + "".join(str(i) for i in reversed(range(count)) if bits >> i & 1)
                for bits in range(1, 1 << count)
            ),
        ]

        def selection(count: int = count, letter: str = letter) -> str:
            return draw.choice(("", letter + "".join(str(draw.randrange(2 * count)) for _ in range(count))))

        for types, ending in product(product(TYPES, repeat=3), ("", ".sat", ".add")):
            for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"):
                opcode = f"{name}{count}.{'.'.join(types)}{ending}"
                yield Video(opcode, draw.choice(masks), selection(), selection(), "c")
        for types, compare, ending in product(product(TYPES, repeat=2), COMPARISONS, ("", ".add")):
            opcode = f"vset{count}.{'.'.join(types)}.{compare}{ending}"
            yield Video(opcode, draw.choice(masks), selection(), selection(), "c")
