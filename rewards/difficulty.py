"""The difficulty of problems for a policy, from the records of its submissions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right

JEFFREYS = (0.5, 0.5)
"""Prior counts of right and wrong submissions that favour no rate under any scale (Jeffreys 1946)."""


@dataclass(frozen=True)
class Difficulty:
    """The posterior of one problem's pass rate: a Beta distribution.

        pass_rate = (right + a) / (right + wrong + a + b),    a, b = prior

    Range of the rate: (0, 1). Source: the Beta-binomial model, Gelman et al., Bayesian Data Analysis, 3rd ed., ch. 2.

    Attributes:
        right: submissions that were right.
        wrong: submissions that were not.
        prior: counts of right and wrong submissions before the first, both positive.

    Example:
        >>> Difficulty(right=3, wrong=0).pass_rate
        0.875
    """

    right: int
    wrong: int
    prior: tuple[float, float] = JEFFREYS

    def __post_init__(self) -> None:
        if min(self.right, self.wrong) < 0 or not all(isfinite(count) and count > 0 for count in self.prior):
            raise ValueError(f"counts must not be negative and those of the prior must be positive, got {self}")

    @property
    def pass_rate(self) -> float:
        """Posterior mean of the chance that a submission is right; unlike the share seen, never 0 or 1."""
        a, b = self._counts
        return a / (a + b)

    @property
    def difficulty(self) -> float:
        """1 - pass_rate."""
        return 1 - self.pass_rate

    @property
    def _counts(self) -> tuple[float, float]:
        return self.right + self.prior[0], self.wrong + self.prior[1]


def difficulties(feedbacks: Iterable[Feedback], prior: tuple[float, float] = JEFFREYS) -> dict[str, Difficulty]:
    """Problem -> its difficulty, hardest first; faults of ours do not count.

    Example:
        >>> from .examples import failed, timed
        >>> difficulties([failed("compile_error"), timed(), timed()])
        {'AllReduce': Difficulty(right=2, wrong=1, prior=(0.5, 0.5))}
    """
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for feedback in feedbacks:
        if not is_infrastructure_failure(feedback):
            (right if is_right(feedback) else wrong)[feedback.problem] += 1
    found = {name: Difficulty(right[name], wrong[name], prior) for name in {*right, *wrong}}
    return dict(sorted(found.items(), key=lambda item: (item[1].pass_rate, item[0])))


def read_feedbacks(path: Path) -> Iterator[Feedback]:
    """The records in a results file of `pkb eval-dir`, or in a file of bare records, one a line.

    Raises:
        ConfigError: a line is neither; the message says which. A last line that was cut off is passed over.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            yield Feedback.model_validate(content.get("feedback", content))
        except (ValueError, RecursionError, AttributeError) as error:  # pydantic's are ValueErrors
            raise ConfigError(f"{path}, line {number}: no record of an evaluation: {error}") from error
