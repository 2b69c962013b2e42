"""The order of waiting items: higher priorities first, then clients in turn, then the order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)


class Turns(Generic[ItemT]):
    """A line for each priority and client, served round-robin; not safe in several threads.

    An item that several clients ask for waits in the line of each and leaves all of them with the first turn. So a
    client with a thousand items delays another client by one item at a time, and a request for what others want too is
    not served later for that.

    Example:
        >>> turns = Turns[str]()
        >>> for item, client in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        ...     turns.push(item, [client])
        >>> [turns.pop() for _ in range(3)]
        [('a1', 'a'), ('b1', 'b'), ('a2', 'a')]
    """

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[str, OrderedDict[ItemT, None]]] = {}
        self._places: dict[ItemT, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(list(self._places))

    def __contains__(self, item: ItemT) -> bool:
        return item in self._places

    def push(self, item: ItemT, clients: Iterable[str], priority: int = 0) -> None:
        """Adds an item at the end of the lines of clients; where it waits with a higher priority it stays."""
        places = self._places.setdefault(item, {})
        for client in clients:
            if client in places:
                if places[client] >= priority:
                    continue
                self._leave(item, client, places[client])
            places[client] = priority
            self._lines.setdefault(priority, OrderedDict()).setdefault(client, OrderedDict())[item] = None

    def pop(self, may_begin: Callable[[str], bool] = lambda _: True) -> tuple[ItemT, str] | None:
        """Takes the next item out.

        Args:
            may_begin: Whether a client may have one more item.

        Returns:
            The item and the client whose turn it was; None where there is no item that may begin.
        """
        for priority in sorted(self._lines, reverse=True):
            for client, line in self._lines[priority].items():
                if may_begin(client):
                    item = next(iter(line))
                    self.remove(item)
                    if client in self._lines.get(priority, ()):
                        self._lines[priority].move_to_end(client)
                    return item, client
        return None

    def remove(self, item: ItemT, client: str | None = None) -> None:
        """Takes an item out of the line of a client, by default out of all lines."""
        places = self._places.get(item, {})
        for name in [client] if client is not None else list(places):
            if name in places:
                self._leave(item, name, places.pop(name))
        if not places:
            self._places.pop(item, None)

    def counts(self) -> dict[str, int]:
        """Number of waiting items of each client that has any."""
        counts: dict[str, int] = {}
        for lines in self._lines.values():
            for client, line in lines.items():
                counts[client] = counts.get(client, 0) + len(line)
        return counts

    def _leave(self, item: ItemT, client: str, priority: int) -> None:
        lines = self._lines[priority]
        del lines[client][item]
        if not lines[client]:
            del lines[client]
        if not lines:
            del self._lines[priority]
