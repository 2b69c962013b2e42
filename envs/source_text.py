"""The space of any text, and why it is no array."""

from __future__ import annotations

import string
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten_space
from gymnasium.vector.utils import create_shared_memory
from numpy.typing import NDArray

from pkb_gym.engine.errors import ConfigError


class SourceText(spaces.Text):
    """Any text of at most `max_length` characters, whatever the characters are.

    `gymnasium.spaces.Text` lists its characters, which costs 193 MB for all of Unicode; here length alone is checked.
    Samples are short and printable.

    Args:
        max_length: Greatest number of characters.
        min_length: Least number of characters.
        seed: Seed of the samples.

    Example:
        >>> space = SourceText(100, seed=0)
        >>> "// αβγ" in space, "" in space, "x" * 101 in space
        (True, True, False)
        >>> space.sample() in space
        True
    """

    SAMPLE_CHARS = 32
    """Longest sample, unless the space asks for more."""

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=min_length, charset=string.ascii_letters + string.digits, seed=seed)

    def contains(self, x: Any) -> bool:  # noqa: ANN401  # as in the base class
        """Whether it is a text of fitting length."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """A short text of letters and digits; masks as in the base class."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        longest = min(self.max_length, max(self.min_length, self.SAMPLE_CHARS))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return "".join(self.np_random.choice(self.character_list, size=length))

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text of any characters is no array of known width."""
        return False

    def __repr__(self) -> str:
        return f"SourceText({self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SourceText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )

    __hash__ = None  # type: ignore[assignment]  # spaces are mutable, as in the base class


@create_shared_memory.register(SourceText)
def _refuse_shared_memory(*_: object, **__: object) -> NoReturn:
    """Gymnasium reads the texts of a shared memory once, when it is made, and shows them ever after."""
    raise ConfigError(
        "texts do not lie in shared memory; leave out vectorization_mode, and all copies share one evaluator, or pass "
        'vector_kwargs={"shared_memory": False}'
    )


@flatten_space.register(SourceText)
@flatdim.register(SourceText)
def _refuse_flattening(_: SourceText) -> NoReturn:
    raise ConfigError(
        "texts of any characters are no array of numbers; take pkb_gym.envs.ChatObservation for one text, or choose "
        "numbers by gymnasium.wrappers.FilterObservation"
    )
