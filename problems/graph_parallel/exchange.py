"""Row counts of the cooperative feature exchange, which its forward and backward problems share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, AxisValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pkb_gym.engine.problem import Draw

Ints = tuple[int, ...]
Requests = tuple[Ints, ...]


def requests_of(ax: Axes) -> Requests:
    """Rows that rank p (second index) asked of rank q (first index); equal shares where none are drawn."""
    return ((ax.rows // ax.W,) * ax.W,) * ax.W if ax["requests"] is None else ax.int_lists("requests")


def count_lists(requests: Requests, rank: int) -> dict[str, Ints]:
    """The two lists of a rank; entry i belongs to rank (rank + i) mod W."""
    world_size = len(requests)
    peers = [(rank + i) % world_size for i in range(world_size)]
    return {
        "counts_sent": tuple(requests[peer][rank] for peer in peers),
        "counts_received": tuple(requests[rank][peer] for peer in peers),
    }


def as_timed(ax: Axes, draw: Draw) -> list[int]:
    """Ranks that hold in this check what the size names, in timing too: no rank can infer the others' from its own.

    Half of the ranks on every fourth trial.
    """
    return draw.sample(range(ax.W), ax.W // 2) if draw.trial % 4 == 0 and not draw.timed else []


def draw_requests(ax: Axes, draw: Draw, mean_of: Sequence[int]) -> Requests:
    """Timed: 1/2 to 3/2 of the mean. Else 0 to twice the mean, some 0; a rank without requests on every third trial.

    Args:
        ax: Axes that all ranks share.
        draw: Random draws of this trial.
        mean_of: Ranks that send to all, and receive from all, just the mean.
    """
    world_size, mean = ax.W, ax.rows // ax.W
    if draw.timed:
        return tuple(
            tuple(draw.randint(mean // 2, mean + mean // 2) for _ in range(world_size)) for _ in range(world_size)
        )
    rows = [
        [draw.randint(0, 2 * mean + 1) if draw.random() < 0.9 else 0 for _ in range(world_size)]
        for _ in range(world_size)
    ]
    rows[0][world_size - 1] = mean + 1
    if draw.trial % 3 == 2 and world_size > 1:
        idle = draw.randrange(world_size)
        for q in range(world_size):
            rows[q][idle] = 0  # receives no feature rows
            if draw.trial % 2:
                rows[idle][q] = 0  # and sends none
    for rank in mean_of:
        for q in range(world_size):
            rows[rank][q] = rows[q][rank] = mean
    if mean_of:
        other = next(rank for rank in range(world_size) if rank not in mean_of)
        rows[other][other] = mean + 1  # a rank's own rows precede all others in its tensors
    return tuple(tuple(row) for row in rows)


def draw_sizes(ax: Axes, draw: Draw, as_named: Sequence[int]) -> Ints:
    """Rows S of every rank's seed table, unequal but for some ranks' that are as the size names them."""
    sizes = [draw.randint(max(1, ax.S // 2), ax.S) + rank for rank in range(ax.W)]
    return tuple(ax.S if rank in as_named else size for rank, size in enumerate(sizes))


def world_group(ax: Axes, draw: Draw) -> AxisValue:
    """None, or every second time the group of all ranks."""
    return (tuple(range(ax.W)),) if draw.trial % 2 else None
