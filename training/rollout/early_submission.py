"""Reports each sequence as soon as it is complete, while `generate` still writes the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList


class FinishedSequences(StoppingCriteria):
    """Stops nothing, and calls a function with each sequence that has just ended.

    Args:
        ends: Tokens that end a sequence.
        on_finished: Function that receives the sequence's place in the batch and its new tokens, the ending one
            included.
    """

    def __init__(self, ends: Sequence[int], on_finished: Callable[[int, list[int]], None]) -> None:
        self._ends, self._on_finished = frozenset(ends), on_finished
        self._begin: int | None = None
        self._finished: set[int] = set()

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: Any) -> torch.BoolTensor:  # noqa: ARG002
        """Reports newly ended sequences; called after each new token of the batch."""
        if self._begin is None:
            self._begin = input_ids.shape[1] - 1
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if token in self._ends and row not in self._finished:
                self._finished.add(row)
                self._on_finished(row, input_ids[row, self._begin :].tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]


@contextlib.contextmanager
def stopped_by(model: Any, criteria: StoppingCriteria) -> Iterator[None]:  # noqa: ANN401  # it is wrapped in many ways
    """While it lasts, every `model.generate` has these criteria too."""
    generate = model.generate

    def generate_with_criteria(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # whatever `generate` takes and gives
        return generate(*args, **kwargs, stopping_criteria=StoppingCriteriaList([criteria]))

    had_its_own = "generate" in model.__dict__
    model.generate = generate_with_criteria
    try:
        yield
    finally:
        if had_its_own:
            model.generate = generate
        else:
            del model.generate
