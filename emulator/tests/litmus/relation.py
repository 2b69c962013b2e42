"""Binary relations over the events of an execution, as rows of bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Relation:
    """A relation over the numbers below `size`.

    Args:
        size: Number of events.
        pairs: Pairs of the relation.
    """

    def __init__(self, size: int, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.rows = [0] * size
        for a, b in pairs:
            self.add(a, b)

    def add(self, a: int, b: int) -> None:
        """Adds a pair."""
        self.rows[a] |= 1 << b

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return bool(self.rows[pair[0]] >> pair[1] & 1)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for a, row in enumerate(self.rows):
            while row:
                low = row & -row
                yield a, low.bit_length() - 1
                row ^= low

    def __or__(self, other: Relation) -> Relation:
        result = Relation(0)
        result.rows = [a | b for a, b in zip(self.rows, other.rows, strict=True)]
        return result

    def __and__(self, other: Relation) -> Relation:
        result = Relation(0)
        result.rows = [a & b for a, b in zip(self.rows, other.rows, strict=True)]
        return result

    def then(self, other: Relation) -> Relation:
        """Pairs (a, c) with some b for which (a, b) is in this relation and (b, c) in the other."""
        result = Relation(len(self.rows))
        for a, b in self:
            result.rows[a] |= other.rows[b]
        return result

    def closed(self) -> Relation:
        """The transitive closure."""
        result = Relation(0)
        result.rows = rows = list(self.rows)
        for middle, _ in enumerate(rows):
            onward = rows[middle]
            for a, row in enumerate(rows):
                if row >> middle & 1:
                    rows[a] = row | onward
        return result

    @property
    def is_irreflexive(self) -> bool:
        """Whether no number is related to itself."""
        return not any(row >> a & 1 for a, row in enumerate(self.rows))

    @property
    def is_acyclic(self) -> bool:
        """Whether no chain of pairs leads back."""
        return self.closed().is_irreflexive
