"""Drawing of the contents of arguments.

Every stream of numbers is seeded by HMAC-SHA256 over what it is for, keyed by the evaluator's secret: a candidate that
sees any number of inputs can predict none of the next.
"""

from __future__ import annotations

import hmac
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from math import prod
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeAlias

from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.problem.arguments import Linear, Sparse, Tensor, TensorList
from pkb_gym.engine.problem.axes import Axes, resolve_dtype, resolve_shape
from pkb_gym.engine.problem.drawn_together import DrawnTogether, Fill
from pkb_gym.engine.problem.recurrence import NEW, Recurrence
from pkb_gym.engine.problem.values import torch_dtype

if TYPE_CHECKING:
    import torch


DRAWN_TOGETHER = 1 << 28
"""Numbers of a tensor that are drawn before they are rounded: the widest copy of a tensor never exists as a whole."""

RENEWED_PART = 8
"""Inverse of the share of a tensor that is drawn anew where the rest returns."""


@dataclass(frozen=True)
class TrialKey:
    """Names one trial of one evaluation.

    Attributes:
        key: Secret key of the evaluator.
        seed: Seed given to `reset`, or 0.
        problem: Name of the problem.
        turn: Index of the turn in the episode.
        trial: Index of the input set in one evaluation, checks and timing together.
        timed: Whether the trial serves timing; modes then stay as the size names them.
        recurrence: Return of an earlier trial's values in this one.
    """

    key: bytes
    seed: int
    problem: str
    turn: int
    trial: int
    timed: bool = False
    recurrence: Recurrence = NEW

    def derive_seed(self, *stream: str | int) -> int:
        """A seed in [0, 2**63) for one stream of numbers of this trial."""
        message = json.dumps([self.seed, self.problem, self.turn, self.trial, *stream]).encode()
        return int.from_bytes(hmac.digest(self.key, message, "sha256")[:8], "big") >> 1

    def stream_keys(self, stream: tuple[str | int, ...], rank: int) -> tuple[TrialKey, TrialKey | None]:
        """The keys of a stream, and of the part of its numbers that is new; None where all or none are.

        Args:
            stream: Name of the stream.
            rank: Number of the rank that draws.
        """
        earlier = self.recurrence.values_of
        if earlier is None:
            return self, None
        is_whole = stream == SHARED or (stream == own_stream(rank) and rank == self.recurrence.whole_rank)
        return replace(self, trial=earlier), None if is_whole else self


SHARED = ("shared",)
"""The name of the stream that is equal on all ranks."""


def own_stream(rank: int) -> tuple[str | int, ...]:
    """The name of a rank's own stream."""
    return "rank", rank


CALLS_OF_ROOT = 4
"""Checked calls in which a rank stays the root, one after the other: so many show a rank that is two calls ahead, and
one that is a call ahead of a rank that is slow within it."""


def checked_calls(world_size: int) -> int:
    """The least number of checked calls: one, then every rank is the root."""
    return 1 + CALLS_OF_ROOT * world_size


class Draw(random.Random):
    """Draws for `Trials.vary`: a standard `random.Random` that gives the same on all ranks.

    Attributes:
        trial: Index of the trial.
        timed: Whether the trial serves timing.
    """

    def __init__(self, trial: TrialKey) -> None:
        super().__init__(trial.derive_seed("axes"))
        self.trial = trial.trial
        self.timed = trial.timed

    def root(self, world_size: int) -> int:
        """The rank that is the root of a checked call, for problems that have one.

        Every rank is it for `CALLS_OF_ROOT` calls in turn; the first call, of trial 0, is the last rank's.
        """
        return (self.trial - 1) // CALLS_OF_ROOT % world_size

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Draw is made anew from its TrialKey, never pickled")


Arguments = ParamSpec("Arguments")
Drawing: TypeAlias = "Callable[Concatenate[Stream, Arguments], torch.Tensor]"
"""A method of a `Stream`."""


def _names_its_device(draw: Drawing[Arguments]) -> Drawing[Arguments]:
    """Keeps torch from looking at each call for one that does not name the device of a tensor.

    It does so wherever a default device is set, as for inputs on GPUs, and takes as long as a small call itself.
    """

    @wraps(draw)
    def drawn(stream: Stream, /, *args: Arguments.args, **named: Arguments.kwargs) -> torch.Tensor:
        import torch

        with torch._C.DisableTorchFunction():  # it has no public name
            return draw(stream, *args, **named)

    return drawn


class Stream:
    """One stream of random tensors; `name` picks shape and dtype from the declared argument of that name.

    All tensors come contiguous on the CPU or on the device of the maker.
    """

    def __init__(self, maker: InputMaker, *stream: str | int) -> None:
        self._maker = maker
        self._key, self._part_key = maker.trial_key.stream_keys(stream, maker.rank)
        self._stream = stream
        self._draws = 0
        self._together = maker.together if self._key.timed else None

    @cached_property
    def generator(self) -> torch.Generator:
        """The generator of the stream's numbers, but for those that several timed calls draw together."""
        import torch

        generator = torch.Generator(device=self._maker.device)
        return generator.manual_seed(self._key.derive_seed(*self._stream))

    def normal(self, name: str, std: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        """Normal values, drawn in float32 (float64 for float64) and rounded to the argument's dtype."""
        return self._rounded(
            name, ("normal", std, mean), lambda wide, generator: wide.normal_(mean, std, generator=generator)
        )

    def uniform(self, name: str, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Uniform values in [low, high)."""
        return self._rounded(
            name, ("uniform", low, high), lambda wide, generator: wide.uniform_(low, high, generator=generator)
        )

    @_names_its_device
    def _rounded(
        self,
        name: str,
        distribution: tuple[object, ...],
        fill: Callable[[torch.Tensor, torch.Generator], torch.Tensor],
    ) -> torch.Tensor:
        """The values that `fill` writes at 32 or 64 bits a number, rounded to the argument's dtype, in its shape."""
        import torch

        shape, dtype = self._maker.spec(name)
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def draw(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
            if dtype == wide or prod(shape) <= DRAWN_TOGETHER:
                return fill(torch.empty(shape, dtype=wide, device=self._maker.device), generator).to(dtype)
            values = torch.empty(shape, dtype=dtype, device=self._maker.device)
            flat = values.view(-1)
            for first in range(0, flat.numel(), DRAWN_TOGETHER):
                part = flat[first : first + DRAWN_TOGETHER]
                part.copy_(fill(torch.empty(part.shape, dtype=wide, device=self._maker.device), generator))
            return values

        return self._drawn(shape, dtype, distribution, draw)

    def _drawn(
        self, shape: tuple[int, ...], dtype: torch.dtype, distribution: tuple[object, ...], draw: Fill
    ) -> torch.Tensor:
        """Independent numbers of equal distribution, some in a row of which are drawn anew where the stream returns.

        The first and the last number return, as kernels that recognise values look there.
        """
        import torch

        self._draws += 1
        if self._together is not None:
            identity = (*self._stream, self._draws, *distribution, dtype)
            key, device = self._key, self._maker.device
            return self._together.of_trial(key.trial, self._seed_of, device, identity, shape, dtype, draw)
        values = draw(shape, self.generator)
        if self._part_key is not None and values.numel() > 2:
            seed = self._part_key.derive_seed(*self._stream, "part", self._draws)
            generator = torch.Generator(device=self._maker.device)
            generator.manual_seed(seed)
            count = -(-values.numel() // RENEWED_PART)
            begin = random.Random(seed).randint(1, values.numel() - 1 - count)
            values.view(-1)[begin : begin + count] = draw((count,), generator)
        return values

    def _seed_of(self, trial: int, stream: tuple[str, ...]) -> int:
        return replace(self._key, trial=trial).derive_seed(*stream)

    @_names_its_device
    def integers(self, name: str, low: int, high: int) -> torch.Tensor:
        """Whole numbers in [low, high), in the argument's dtype."""
        shape, dtype = self._maker.spec(name)
        return self._randint(low, high, shape).to(dtype)

    @_names_its_device
    def bits(self, name: str) -> torch.Tensor:
        """Random bit patterns: every value of the argument's dtype alike, NaN, infinities and -0.0 included.

        For arguments that are only moved: they cannot be compressed, and `checks.same_bits` can compare the results.
        """
        import torch

        shape, dtype = self._maker.spec(name)
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        info = torch.iinfo(width)
        return self._randint(info.min, info.max, shape, width).view(dtype)

    @_names_its_device
    def powers_of_two(self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """2 to the power of whole numbers in [low, high), of a free shape and dtype."""
        import torch

        def draw(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
            exponents = torch.randint(low, high, shape, generator=generator, device=self._maker.device)
            return torch.exp2(exponents.to(dtype))

        return self._drawn(shape, dtype, ("powers of two", low, high), draw)

    @_names_its_device
    def randn(self, *shape: int) -> torch.Tensor:
        """float32 standard normal values of a free shape, for inputs that are computed."""
        import torch

        return self._drawn(
            shape,
            torch.float32,
            ("randn",),
            lambda shape, generator: torch.randn(shape, generator=generator, device=self._maker.device),
        )

    @_names_its_device
    def rand(self, *shape: int) -> torch.Tensor:
        """float32 uniform values in [0, 1) of a free shape."""
        import torch

        return self._drawn(
            shape,
            torch.float32,
            ("rand",),
            lambda shape, generator: torch.rand(shape, generator=generator, device=self._maker.device),
        )

    @_names_its_device
    def randint(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """int64 values in [low, high) of a free shape."""
        return self._randint(low, high, shape)

    def _randint(self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        import torch

        device, dtype = self._maker.device, dtype or torch.int64
        return self._drawn(
            shape,
            dtype,
            ("randint", low, high),
            lambda shape, generator: torch.randint(low, high, shape, dtype=dtype, generator=generator, device=device),
        )

    @_names_its_device
    def permutation(self, n: int) -> torch.Tensor:
        """int64 random permutation of 0 .. n-1."""
        import torch

        return torch.randperm(n, generator=self.generator, device=self._maker.device)


class Declared(Protocol):
    """The fields of a `Problem` that an `InputMaker` reads."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def number(self) -> int: ...  # noqa: D102

    @property
    def data_args(self) -> tuple[Tensor | TensorList | Linear | Sparse, ...]: ...  # noqa: D102


class InputMaker(Stream):
    """The random streams of `Trials.inputs`: this rank's own, and others by key.

    Attributes:
        ax: Axes of this rank in this trial.
        rank, world_size: Rank and world size, as in torch.distributed.
        trial: Index of the trial.
        device: Device on which tensors are made.
        together: Numbers that several timed calls of a block draw together; None where each draws its own.
    """

    def __init__(
        self,
        problem: Declared,
        ax: Axes,
        trial_key: TrialKey,
        device: str = "cpu",
        together: DrawnTogether | None = None,
    ) -> None:
        self.problem = problem
        self.ax = ax
        self.rank = ax.number("r")
        self.world_size = ax.number("W")
        self.trial_key = trial_key
        self.trial = trial_key.trial
        self.device = device
        self.together = together
        self._args: dict[str, Tensor | TensorList | Linear | Sparse] = {arg.name: arg for arg in problem.data_args}
        super().__init__(self, *own_stream(self.rank))

    @cached_property
    def shared(self) -> Stream:
        """A stream that is equal on all ranks."""
        return Stream(self, *SHARED)

    @property
    def dtype(self) -> torch.dtype:
        """The problem's floating dtype in this evaluation."""
        return torch_dtype(self.ax.dtype)

    def stream(self, *key: str | int) -> Stream:
        """A stream of its own for `key`: equal on the ranks that pass an equal key (such as a group's index)."""
        return Stream(self, "key", *key)

    def seeded(self, seed: int) -> Stream:
        """A stream with a fixed seed, as the published benchmark has them; only for protocol "published"."""
        stream = Stream(self, "published")
        stream.generator.manual_seed(seed)
        stream._part_key = stream._together = None
        return stream

    def spec(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of the tensor argument `name` on this rank.

        Raises:
            DeclarationError: no Tensor argument has that name.
        """
        arg = self._args.get(name)
        if not isinstance(arg, Tensor):
            tensors = ", ".join(key for key, value in self._args.items() if isinstance(value, Tensor))
            raise DeclarationError(f"{self.problem.name}: no tensor argument {name!r}; there are {tensors}")
        return resolve_shape(arg.shape, self.ax), torch_dtype(resolve_dtype(arg.dtype, self.ax))
