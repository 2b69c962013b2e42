"""Shared parts of the token exchanges: groups of ranks, ragged tokens, and a routing that is known before it is drawn.

The sizes of a token exchange follow from the experts that all ranks' tokens chose. Axes hold them, so that every rank
knows them beforehand: a rank's routing is a tuple of kinds, each a number of tokens and the experts of their K slots.
Tokens whose slots are empty are dropped: no expert gets them.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from math import comb, exp
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from pkb_gym.engine.problem import Axes, AxisValue, Draw, InputMaker, SizeError

if TYPE_CHECKING:
    import torch

Kinds: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""(number of tokens, experts of their slots), ...; of one rank."""

Partition: TypeAlias = tuple[tuple[int, ...], ...]
Ints: TypeAlias = tuple[int, ...]

MAX_KINDS = 96
"""Kinds of a rank; up to this number of tokens each token is drawn on its own."""


def interleaved(world_size: int, parts: int) -> Partition:
    """Ranks i, i + parts, i + 2 parts, ... together."""
    return tuple(tuple(range(i, world_size, parts)) for i in range(parts))


def even_pieces(ax: Axes, name: str) -> Ints:
    """ax[name] rows in equal pieces, one for each of the G ranks of the group.

    Raises:
        SizeError: they leave a remainder.
    """
    return (ax.divide(name, by="G"),) * ax.G


def ragged_rows(world_size: int, most: int, draw: Draw) -> Ints:
    """A number of tokens for each rank, none for one of several."""
    empty = draw.randrange(world_size) if world_size > 1 else None
    return tuple(0 if rank == empty else draw.randint(1, most) for rank in range(world_size))


def vary_routing(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Draws every rank's routing from a skewed law, softmax of normal scores.

    Checks, trial by trial: ragged tokens with an empty rank, an idle expert, experts named twice by one token, dropped
    tokens, and interleaved subgroups. Each rank and trial has an expert of its own that it never chooses.
    """
    trial = 0 if draw.timed else draw.trial
    rows = ragged_rows(ax.W, ax.T, draw) if trial % 2 else (ax.T,) * ax.W
    popularity = [exp(draw.gauss(0, 1)) for _ in range(ax.E)]
    if trial % 4 in (1, 2) and ax.K < ax.E:
        popularity[draw.randrange(ax.E)] = 0.0
    routing = []
    for count in rows:
        weights = list(popularity)
        if sum(weight > 0 for weight in weights) > ax.K:
            weights[draw.choice([e for e, weight in enumerate(weights) if weight])] = 0.0
        kinds = draw_kinds(draw, count, weights, ax.K)
        if trial % 4 == 3:
            kinds = tuple(
                (size, (*experts[:-1], experts[0]) if i % 3 == 0 else experts)
                for i, (size, experts) in enumerate(kinds)
            )
        if trial % 4 == 2:
            kinds = tuple((size, () if i % 5 == 0 else experts) for i, (size, experts) in enumerate(kinds))
        routing.append(kinds)
    parts = 2 if trial % 3 == 2 and ax.W > 1 else 1
    return {
        "rows": rows,
        "routing": tuple(routing),
        "group": interleaved(ax.W, parts) if parts > 1 else ax["group"],
    }


def draw_kinds(draw: Draw, tokens: int, weights: list[float], slots: int) -> Kinds:
    """Kinds of equal size, give or take one; the experts of a kind are distinct, drawn one after the other."""
    count = min(tokens, MAX_KINDS)
    sums, last = list(accumulate(weights)), len(weights) - 1
    kinds = []
    for i in range(count):
        left, sums_left, experts = list(weights), list(sums), []
        for _ in range(slots):
            # As `draw.choices` draws, without going through all weights again.
            chosen = bisect(sums_left, draw.random() * sums_left[-1], 0, last)
            experts.append(chosen)
            left[chosen] = 0.0
            sums_left[chosen:] = accumulate(left[chosen + 1 :], initial=sums_left[chosen - 1] if chosen else 0.0)
        kinds.append((tokens // count + (i < tokens % count), tuple(experts)))
    return tuple(kinds)


def derive_routing(ax: Axes) -> dict[str, AxisValue]:
    """Adds what the exchange of a routing needs on this rank.

    Without a routing everything is cut evenly, whatever the tokens choose, as the published benchmark has it.

        T           this rank's tokens
        G, L        size of the group, experts of one rank
        counts      (G, L) nested: rows that each rank has for each expert of this one
        P, R        rows that this rank sends and receives
        input_splits, output_splits
                    the same by rank of the group
        rows_out, rows_in
                    pairs (token, other rank) that need a row of their own over the link; expected where not known

    Raises:
        SizeError: E, or without a routing the number of rows, does not divide by G.
    """
    if ax.K > ax.E:
        raise SizeError(f"axis K={ax.K} must be at most E={ax.E}")
    group = ax.group_ranks("group")
    size = len(group)
    ax = ax.replace(G=size)
    local = ax.divide("E", by="G")
    if ax["routing"] is None:
        pieces = even_pieces(ax.replace(rows=ax.T * ax.K), "rows")
        total = sum(pieces)
        slots = [total // ax.E + (slot < total % ax.E) for slot in range(ax.E)]
        remote = ax.T * (size - 1) * (1 - comb(ax.E - local, ax.K) / comb(ax.E, ax.K))
        return {
            "G": size,
            "L": local,
            "T": ax.T,
            "counts": tuple(tuple(slots[s * local : (s + 1) * local]) for s in range(size)),
            "P": total,
            "R": total,
            "input_splits": pieces,
            "output_splits": pieces,
            "rows_out": remote,
            "rows_in": remote,
        }
    routing, place = routing_of(ax), group.index(ax.r)
    sent = {rank: expert_counts(routing[rank], ax.E) for rank in group}
    counts = tuple(tuple(sent[rank][place * local : (place + 1) * local]) for rank in group)
    input_splits = tuple(sum(sent[ax.r][d * local : (d + 1) * local]) for d in range(size))
    output_splits = tuple(sum(row) for row in counts)
    return {
        "G": size,
        "L": local,
        "T": ax.ints("rows")[ax.r],
        "counts": counts,
        "P": sum(input_splits),
        "R": sum(output_splits),
        "input_splits": input_splits,
        "output_splits": output_splits,
        "rows_out": sum(visits(routing[ax.r], d, local) for d in range(size) if d != place),
        "rows_in": sum(visits(routing[rank], place, local) for rank in group if rank != ax.r),
    }


def routing_of(ax: Axes) -> tuple[Kinds, ...]:
    """The kinds of every rank's tokens.

    Raises:
        SizeError: the axis holds something else.
    """
    return ax.read("routing", _is_routing, "a tuple of kinds of tokens for each rank")


def _is_routing(value: object) -> TypeGuard[tuple[Kinds, ...]]:
    # Kinds are many and were drawn here: looking into each would take longer than all that is done with them.
    return isinstance(value, tuple) and all(isinstance(kinds, tuple) for kinds in value)


def expert_counts(kinds: Kinds, experts: int) -> list[int]:
    """The number of tokens that chose each expert."""
    counts = [0] * experts
    for tokens, chosen in kinds:
        for expert in set(chosen):
            counts[expert] += tokens
    return counts


def visits(kinds: Kinds, place: int, local: int) -> int:
    """The number of tokens that chose an expert of the rank at that place in the group."""
    experts = frozenset(range(place * local, (place + 1) * local))
    return sum(tokens for tokens, chosen in kinds if not experts.isdisjoint(chosen))


def routed_experts(make: InputMaker) -> torch.Tensor:
    """The experts (T, K) int64 of this rank's tokens, in random order of tokens and slots; -1 in dropped tokens."""
    import torch

    ax = make.ax
    kinds = routing_of(ax)[make.rank]
    experts = torch.tensor([chosen or (-1,) * ax.K for _, chosen in kinds], device=make.device).view(len(kinds), ax.K)
    tokens = torch.tensor([count for count, _ in kinds], dtype=torch.int64, device=make.device)
    ids = experts.long().repeat_interleave(tokens, dim=0)[make.permutation(ax.T)]
    return ids.gather(1, make.rand(ax.T, ax.K).argsort(dim=1))


def uniform_experts(values: torch.Tensor, slots: int) -> torch.Tensor:
    """K distinct experts (T, K) of each token, the first of a random permutation; from uniform values (T, E)."""
    return values.argsort(dim=1)[:, :slots]


def mask_of(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """Mask (E, K, T): slot k of token t names expert e."""
    import torch

    return ids.T.unsqueeze(0) == torch.arange(experts, device=ids.device).view(-1, 1, 1)
