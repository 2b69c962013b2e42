"""One instruction, or a short sequence, as text with places for registers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The content of a register: prefix of its name, type of its declaration, bytes."""

    PREDICATE = ("p", "pred", 4)
    I16 = ("s", "b16", 2)
    I32 = ("r", "b32", 4)
    I64 = ("d", "b64", 8)
    F32 = ("f", "f32", 4)
    F64 = ("q", "f64", 8)
    HALF = ("h", "b16", 2)
    BRAIN = ("e", "b16", 2)
    HALVES = ("g", "b32", 4)
    BRAINS = ("k", "b32", 4)

    @property
    def prefix(self) -> str:
        """The prefix of its registers' names."""
        return self.value[0]

    @property
    def declared(self) -> str:
        """PTX type of its registers."""
        return self.value[1]

    @property
    def bytes(self) -> int:
        """The bytes of a value in memory; a predicate is stored as a word."""
        return self.value[2]


class Where(Enum):
    """Where a program may use a form."""

    ANYWHERE = "anywhere"
    WARP = "warp"
    """Where all lanes of a warp, or those of a mask, come together."""
    BLOCK = "block"
    """Where all threads of a block come together."""


@dataclass(frozen=True)
class Form:
    """An instruction or a short sequence.

    Attributes:
        text: PTX; {0}, {1} ... are results, then operands; {n} is unique, {mask} is the mask of the lanes that come
            together. Braces of PTX are doubled.
        results: Kinds of the results.
        operands: Kinds of the operands.
        group: Group that its comparisons are counted under.
        bound: Name of the approximation if results may differ from those of a GPU, else "".
        where: Restriction of the operands.
    """

    text: str
    results: tuple[Kind, ...]
    operands: tuple[Kind, ...]
    group: str
    bound: str = ""
    where: Where = Where.ANYWHERE

    @property
    def name(self) -> str:
        """The opcode, or the sequence in one line."""
        lines = self.text.replace("{{", "{").replace("}}", "}").strip().rstrip(";").split("\n")
        return lines[0].split(" ")[0] if len(lines) == 1 and self.group != "memory" else " ".join(lines)

    @property
    def is_single(self) -> bool:
        """Whether it is one instruction, which may have a guard."""
        return self.text.count(";") == 1 and self.where is Where.ANYWHERE


def plain(opcode: str, result: Kind, *operands: Kind, group: str, bound: str = "") -> Form:
    """The form `opcode result, operands...;`."""
    places = ", ".join(f"{{{index}}}" for index in range(1 + len(operands)))
    return Form(f"{opcode} {places};", (result,), operands, group, bound)
