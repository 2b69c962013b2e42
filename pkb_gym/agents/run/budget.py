"""Limits of a run: submissions, tokens, hours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pkb_gym.engine.records.attempt import Attempt


@dataclass(frozen=True)
class RunLimits:
    """The limits of a run; None for no limit.

    Attributes:
        evaluations: Number of submissions, those of earlier calls included.
        tokens: Number of tokens read and written, those of earlier calls included.
        hours: Duration of this call in hours.
    """

    evaluations: int | None = None
    tokens: int | None = None
    hours: float | None = None


@dataclass(frozen=True)
class Usage:
    """The amounts that attempts have used.

    Attributes:
        evaluations: Number of submissions.
        tokens: Number of tokens read and written, as far as they are counted.
        cost_usd: Price in US dollars of the replies whose price is known.
    """

    evaluations: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    @classmethod
    def of(cls, *attempts: Attempt) -> Self:
        """The sum over some attempts.

        Example:
            >>> Usage.of()
            Usage(evaluations=0, tokens=0, cost_usd=0.0)
        """
        counted = [attempt.tokens for attempt in attempts if attempt.tokens is not None]
        return cls(
            evaluations=sum(attempt.source is not None for attempt in attempts),
            tokens=sum(tokens.prompt + tokens.completion for tokens in counted),
            cost_usd=sum(attempt.cost_usd or 0.0 for attempt in attempts),
        )


class Budget:
    """The remaining budget of a run; safe to use from several threads.

    A turn that has begun is finished, so that as many more may be used as episodes are played at a time.

    Args:
        limits: Limits of the run.
        attempts: Attempts of earlier calls.

    Attributes:
        evaluations: Number of submissions so far.
        tokens: Number of tokens so far.
        cost_usd: Price in US dollars of all replies so far whose price is known.
    """

    def __init__(self, limits: RunLimits, attempts: Iterable[Attempt]) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.evaluations = self.tokens = 0
        self.cost_usd = 0.0
        for attempt in attempts:
            self.count(attempt)

    def count(self, attempt: Attempt) -> None:
        """Takes off what an attempt used."""
        self.use(Usage.of(attempt))

    def use(self, usage: Usage) -> None:
        """Takes off what several attempts used together, also in another process."""
        with self._lock:
            self.evaluations += usage.evaluations
            self.tokens += usage.tokens
            self.cost_usd += usage.cost_usd

    @property
    def exhausted(self) -> str | None:
        """The limit that is reached, in words; None while there is more."""
        limits = self._limits
        with self._lock:
            if limits.evaluations is not None and self.evaluations >= limits.evaluations:
                return f"the budget of {limits.evaluations} evaluations is used up"
            if limits.tokens is not None and self.tokens >= limits.tokens:
                return f"the budget of {limits.tokens} tokens is used up"
        if limits.hours is not None and time.monotonic() - self._began >= limits.hours * 3600:
            return f"the budget of {limits.hours:g} hours is used up"
        return None
