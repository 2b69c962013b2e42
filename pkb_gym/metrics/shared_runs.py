"""The longest run of tokens that a source shares with others: whether it is a copy of what somebody has read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pkb_gym.engine.support.source_tokens import tokens_of

NEAR_COPY = 0.5
"""Share of a source's tokens in one run that is found elsewhere, from which it counts as a near copy.

Signature, headers and the usual loop stand in every kernel of a problem, and are well below it."""

_Ints = npt.NDArray[np.int64]


def longest_shared_runs(sources: Sequence[str], known: Sequence[str]) -> list[int]:
    """The number of tokens in the longest run that each source shares with one of the known texts.

    Method: a suffix array of all texts by prefix doubling (Manber, Myers, Suffix Arrays, SIAM Journal on Computing 22
    (1993)); the longest match of a suffix among the known ones is with the next before or after it in sorted order.

    Args:
        sources: Sources.
        known: Texts that they are compared with.

    Example:
        >>> longest_shared_runs(["a = b + c;", "z"], ["a = b - c;"])
        [3, 0]
    """
    if not sources:
        return []
    texts = [tokens_of(text) for text in (*sources, *known)]
    numbers: dict[str, int] = {}
    ids, text_of = [], []
    for place, text in enumerate(texts):
        ids += [numbers.setdefault(token, len(numbers)) for token in text]
        ids.append(-1 - place)  # an end of its own, so that no run goes beyond its text
        text_of += [place] * (len(text) + 1)
    levels = list(_ranks(np.array(ids, dtype=np.int64)))
    order = np.argsort(levels[-1], kind="stable")
    owner = np.array(text_of)[order]
    is_known = owner >= len(sources)
    runs = np.zeros(len(order), dtype=np.int64)
    for neighbour in (_last_known(is_known), len(order) - 1 - _last_known(is_known[::-1])[::-1]):
        here = np.flatnonzero(~is_known & (neighbour >= 0) & (neighbour < len(order)))
        runs[here] = np.maximum(runs[here], _common_prefixes(levels, order[here], order[neighbour[here]]))
    longest = np.zeros(len(texts), dtype=np.int64)
    np.maximum.at(longest, owner, runs)
    return [int(run) for run in longest[: len(sources)]]


def near_copies(sources: Sequence[str], known: Sequence[str]) -> list[bool]:
    """Whether each source shares a run of at least `NEAR_COPY` of its tokens with one of the known texts."""
    runs = longest_shared_runs(sources, known)
    return [run >= NEAR_COPY * max(1, len(tokens_of(source))) for source, run in zip(sources, runs, strict=True)]


def _ranks(ids: _Ints) -> Iterator[_Ints]:
    """The rank of each suffix by its first 1, 2, 4, ... tokens, until all ranks differ."""
    rank = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    yield rank
    width = 1
    while rank.max() < len(rank) - 1:
        following = np.zeros_like(rank)  # 0: beyond the end
        following[:-width] = rank[width:] + 1
        rank = np.unique(rank * (len(rank) + 1) + following, return_inverse=True)[1].astype(np.int64)
        yield rank
        width *= 2


def _last_known(is_known: npt.NDArray[np.bool_]) -> _Ints:
    """For each place of the order: the last place before it that is known; -1 where there is none."""
    places = np.where(is_known, np.arange(len(is_known)), -1)
    return np.asarray(np.maximum.accumulate(places))


def _common_prefixes(levels: Sequence[_Ints], a: _Ints, b: _Ints) -> _Ints:
    """The number of tokens that two suffixes have in common, for pairs of them."""
    a, b, common = a.copy(), b.copy(), np.zeros_like(a)
    for level in range(len(levels) - 1, -1, -1):
        ranks = levels[level]
        alike = (a < len(ranks)) & (b < len(ranks))
        alike[alike] = ranks[a[alike]] == ranks[b[alike]]
        width = 1 << level
        common[alike] += width
        a[alike] += width
        b[alike] += width
    return common
