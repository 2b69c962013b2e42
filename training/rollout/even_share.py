"""Equal shares of the prompts of all ranks, for generation that is a collective.

TRL's vLLM backends take as many completions for a rank as it passed prompts, beginning at its rank times that number:
right only where all ranks pass equally many. In later rounds of rollouts they do not, as some have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from pkb_gym.training.processes.host_group import HostGroup

Reply = TypeVar("Reply")


def generate_evenly(
    host: HostGroup, prompts: Sequence[list[int]], generate: Callable[[list[list[int]]], Sequence[Reply]]
) -> list[Reply]:
    """Generates for the prompts of all ranks, of which each rank passes equally many; a collective.

    Args:
        host: Group of all ranks.
        prompts: Token ids of this rank's prompts, any number of them.
        generate: Function from prompts, equally many on all ranks, to a reply for each. It is called on all ranks, or
            on none where no rank has a prompt.

    Returns:
        Replies to this rank's prompts, in order.
    """
    of_ranks = host.gather(list(prompts))
    everything = list(chain.from_iterable(of_ranks))
    if not everything:
        return []
    size = -(-len(everything) // len(of_ranks))
    everything += [everything[-1]] * (size * len(of_ranks) - len(everything))
    begin = host.rank * size
    replies = list(chain.from_iterable(host.gather(list(generate(everything[begin : begin + size])))))
    first = sum(len(of_rank) for of_rank in of_ranks[: host.rank])
    return replies[first : first + len(prompts)]


def budget_groups(
    of_ranks: Sequence[Sequence[tuple[int, int]]], context: float
) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
    """Groups of prompts that share a limit on new tokens, none of which goes beyond the context; one if possible.

    A server of vLLM refuses a request in which any prompt and the limit together are longer than its context.

    Args:
        of_ranks: Length of each prompt and its budget of new tokens, together at most `context`, for each rank.
        context: Maximum length of a sequence in tokens.

    Returns:
        Limits, and for each the places of its prompts, by rank.

    Example:
        >>> budget_groups([[(10, 90), (60, 40)], [(50, 30)]], context=100)
        [(90, ((0,), ())), (40, ((1,), (0,)))]
    """
    waiting = sorted(
        (
            (-budget, rank, place, length)
            for rank, own in enumerate(of_ranks)
            for place, (length, budget) in enumerate(own)
        )
    )
    groups = []
    while waiting:
        limit = -waiting[0][0]
        chosen = [one for one in waiting if one[3] + limit <= context] or waiting[:1]
        waiting = [one for one in waiting if one not in chosen]
        places = tuple(tuple(sorted(one[2] for one in chosen if one[1] == rank)) for rank in range(len(of_ranks)))
        groups.append((limit, places))
    return groups
