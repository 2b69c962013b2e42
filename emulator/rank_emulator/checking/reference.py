"""A reference of a program: what each rank's outputs must hold."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .buffers import Array, Buffer, Role, UsageError, from_bytes, random_content, to_bytes

Reference = Callable[..., Mapping[str, Sequence[Array]]]
"""A function of inputs by name, each a list of one array for each rank; it returns outputs in the same form."""


@dataclass(frozen=True)
class Tolerance:
    """Largest difference of an output's element: `atol + rtol * |expected|`.

    Attributes:
        rtol: Relative part; None for a unit in the last place of bf16, f16 and f32, eight of them, and 0 for integers.
        atol: Absolute part.
    """

    rtol: float | None = None
    atol: float = 0.0

    def rtol_of(self, buffer: Buffer) -> float:
        """The relative part for a buffer."""
        defaults = {"bf16": 2**-5, "f16": 2**-8, "f32": 2**-20, "f64": 2**-48}
        return defaults.get(buffer.type.name, 0.0) if self.rtol is None else self.rtol


def load_reference(path: Path) -> Reference:
    """The function `reference` of a Python file.

    Raises:
        UsageError: There is no such file or function, or it cannot be imported.
    """
    if not path.is_file():
        raise UsageError(f"--reference: {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"check_ranks_reference_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--reference: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"--reference: {path}: {type(error).__name__}: {error}") from error
    function: object = getattr(module, "reference", None)
    if not callable(function):
        raise UsageError(
            f"--reference: {path} has no function `reference`; for an all-reduce it is\n"
            "def reference(x):  # x[rank] is an array\n"
            '    return {"out": [sum(x)] * len(x)}'
        )
    return function


def expected_outputs(
    reference: Reference, buffers: Sequence[Buffer], world_size: int, call: int, seed: int
) -> dict[str, list[Array]]:
    """The outputs of a call, by name and rank.

    Args:
        reference: Function of the inputs. It may have a parameter of each input's name, and `world_size`.
        buffers: Declared buffers.
        world_size: Number of ranks.
        call: Number of the call whose inputs it gets.
        seed: Seed of the inputs.

    Raises:
        UsageError: The function raises an exception, or returns something else than outputs of the buffers' shapes.
    """
    known = {buffer.name: buffer for buffer in buffers}
    given: dict[str, object] = {"world_size": world_size}
    for buffer in buffers:
        if buffer.role is Role.INPUT:  # as the program gets them: rounded to the buffer's type
            values = (random_content(buffer, rank, call, seed) for rank in range(world_size))
            given[buffer.name] = [from_bytes(to_bytes(value, buffer), buffer) for value in values]
    parameters = inspect.signature(reference).parameters
    unknown = [name for name in parameters if name not in given]
    if unknown:
        raise UsageError(f"the reference asks for {', '.join(unknown)}; inputs are {', '.join(given)}")
    try:
        returned = reference(**{name: given[name] for name in parameters})
    except Exception as error:
        raise UsageError(f"the reference has raised {type(error).__name__}: {error}") from error
    if not isinstance(returned, Mapping):
        raise UsageError(f"the reference must return a dict of outputs by name, not a {type(returned).__name__}")
    expected = {}
    for name, of_ranks in returned.items():
        if name not in known or known[name].role is Role.STATE:
            raise UsageError(f"the reference returns {name!r}, which is no output; the buffers are {', '.join(known)}")
        if len(of_ranks) != world_size:
            raise UsageError(f"the reference returns {len(of_ranks)} arrays of {name} for {world_size} ranks")
        arrays = [np.asarray(array) for array in of_ranks]
        for array in arrays:
            if array.shape != known[name].shape:
                raise UsageError(f"the reference returns {name} of shape {array.shape}, not {known[name].shape}")
        expected[name] = arrays
    return expected


def difference(buffer: Buffer, content: bytes, expected: Array, tolerance: Tolerance) -> str | None:
    """A description of how an output differs from what is expected; None where it does not."""
    got = from_bytes(content, buffer)
    if np.issubdtype(buffer.type.shown, np.floating):
        bound = tolerance.atol + tolerance.rtol_of(buffer) * np.abs(expected.astype(np.float64))
        wrong = ~(np.abs(got.astype(np.float64) - expected) <= bound)
    else:
        wrong = got != expected
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return None
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    place = ", ".join(map(str, first))
    return (
        f"{count} of {got.size} elements of `{buffer.name}` are wrong; the first is {buffer.name}[{place}]: "
        f"got {got[first]:g}, expected {expected[first]:g}"
    )
