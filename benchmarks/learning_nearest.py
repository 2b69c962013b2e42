"""How far the kernels of a policy are from those that it was shown: edit distance in words to the nearest one.

A word is an identifier, a number, or any other character that is no blank. The distance is that of Levenshtein: the
least number of words that are inserted, left out or replaced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.results.policy_summary import prompt_key

WORD = re.compile(r"\w+|[^\w\s]")
BINS = {"verbatim": 0, "1 to 10": 10, "11 to 40": 40, "more": None}
"""Name of a range of distances -> its greatest."""


@dataclass(frozen=True)
class Shown:
    """A kernel of the corpus.

    Attributes:
        problem: which it solves.
        words: of its text.
    """

    problem: str
    words: tuple[str, ...]


def words_of(source: str) -> tuple[str, ...]:
    """The words of a text, without blanks.

    Example:
        >>> words_of("a[i] += 1;")
        ('a', '[', 'i', ']', '+', '=', '1', ';')
    """
    return tuple(WORD.findall(source))


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein's distance between two sequences of words.

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    numbers = {word: number for number, word in enumerate(set(one) | set(other))}
    target = np.array([numbers[word] for word in other], dtype=np.int64)
    places = np.arange(len(other) + 1)
    row = places.copy()
    for position, word in enumerate(one, start=1):
        replaced = row[:-1] + (target != numbers[word])
        best = np.minimum(row[1:] + 1, replaced)
        row = np.concatenate(([position], best))
        row = np.minimum.accumulate(row - places) + places  # insertions, each one place further
    return int(row[-1])


def nearest(source: str, corpus: Sequence[Shown]) -> tuple[int, str]:
    """Distance to the nearest kernel of the corpus, and its problem; of equally near ones that of the first."""
    words = words_of(source)
    bounds = sorted((_least_distance(words, shown.words), index) for index, shown in enumerate(corpus))
    best = (len(words) + max(len(shown.words) for shown in corpus), len(corpus))
    for bound, index in bounds:
        if bound > best[0]:
            break
        best = min(best, (edit_distance(words, corpus[index].words), index))
    return best[0], corpus[best[1]].problem


def _least_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """A lower bound: words that one has and the other lacks are at best replaced."""
    common = (Counter(one) & Counter(other)).total()
    return max(len(one), len(other)) - common


def shown_kernels(corpus: Iterable[Row]) -> list[Shown]:
    """The right kernels of a corpus, each text once for a problem."""
    found: dict[tuple[str, tuple[str, ...]], Shown] = {}
    for row in corpus:
        sources = [
            call["function"]["arguments"]["source"]
            for message in row["messages"]
            for call in message.get("tool_calls") or ()
        ]
        if row["failure"] is None and sources:
            words = words_of(sources[-1])
            found.setdefault((row["problem"], words), Shown(row["problem"], words))
    return list(found.values())


def nearness(rows: Sequence[Row], rings: Mapping[str, str], corpus: Sequence[Shown]) -> dict[str, dict[str, Any]]:
    """Of first submissions: ring -> range of distances -> how many, how many of them right.

    `other problem` counts those whose nearest kernel is of another problem than was asked for.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        ring = rings.get(prompt_key(row))
        if ring is None or row["turn"] != 0 or not row["source"]:
            continue
        distance, problem = nearest(row["source"], corpus)
        name = next(name for name, most in BINS.items() if most is None or distance <= most)
        names = [name, *(["other problem"] if problem != row["problem"] else [])]
        counts = found.setdefault(ring, {bin_: {"submissions": 0, "right": 0} for bin_ in (*BINS, "other problem")})
        for each in names:
            counts[each]["submissions"] += 1
            counts[each]["right"] += bool(row["is_right"])
    return found
