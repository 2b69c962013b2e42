"""A picture with the labels that its parts show under the pointer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Part:
    """The description of one group of shapes.

    Attributes:
        titles: One title for the whole group, or one for each shape in it, in the order of drawing.
        agent: Number of the agent that the group belongs to, so that the page can hide it.
    """

    titles: tuple[str, ...] = ()
    agent: int | None = None


@dataclass
class Drawing:
    """A picture and its parts.

    Attributes:
        figure: Figure of matplotlib.
        parts: Id of the group in the SVG -> part.
    """

    figure: Figure
    parts: dict[str, Part] = field(default_factory=dict)

    def label(self, artist: Artist, *titles: str, agent: int | None = None) -> None:
        """Names what an artist draws."""
        name = f"part-{len(self.parts)}"
        artist.set_gid(name)
        self.parts[name] = Part(titles, agent)

    def label_each(self, artists: Sequence[Artist], titles: Sequence[str], agent: int | None = None) -> None:
        """Names what each of several artists draws."""
        for artist, title in zip(artists, titles, strict=True):
            self.label(artist, title, agent=agent)
