"""How probable a value is that is larger than all that were seen, for quantities with light tails.

Of the m largest among n values, x_1 >= ... >= x_m = t, two ends of a distribution are fitted.

*Weibull tail*, P(X > x) = exp(-(x / lambda)^(1 / theta)) up to slowly varying factors: theta is 1 for an exponential
tail and 1/2 for a normal one. S. Girard's estimator is

    theta = sum_i (ln x_i - ln t) / sum_i (ln ln (n / i) - ln ln (n / m)),    i = 1 .. m - 1

("A Hill type estimator of the Weibull tail-coefficient", Communications in Statistics - Theory and Methods 33
(2004), 205-234), with a standard deviation of theta / sqrt(m).

*Generalised Pareto*, P(X > t + y | X > t) = (1 - k y / alpha)^(1 / k): k is 0 for an exponential tail and above 0 for a
quantity with an upper end, t + alpha / k. J. R. M. Hosking and J. R. Wallis ("Parameter and quantile estimation for the
generalized Pareto distribution", Technometrics 29 (1987), 339-349) estimate k = a_0 / (a_0 - 2 a_1) - 2 and
alpha = 2 a_0 a_1 / (a_0 - 2 a_1), with a_0 the mean of y and a_1 that of (1 - F) y; the standard deviation of k is
about 1.15 / sqrt(m) near 0.

Either is moved towards the longer tail by `DEVIATIONS` standard deviations, and the smaller of the two chances counts:
sums of rounding errors are nearly normal, where the second is far too large unless they are bounded, and errors below a
worst-case bound are bounded, which the first does not know. Where theta is above 1, the tail is longer than
exponential, and the second counts alone.

*Results that differ by their last rounding alone* (`log_chance_beyond_rounding`). Values c and r before it, rounded to
neighbours of spacing s, differ with probability |c - r| / s, so that E |fl(c) - fl(r)| = E |c - r| while this
is below s: the mean of the few differences that are seen is that of the error before the rounding. The rounding adds s
at most. A normal error whose variance itself is distributed exponentially over the elements has an exponential tail
(Laplace's distribution), so that P(|c - r| > room) = exp(-room / mean) for the room between rounding and bound; the
mean is raised by its confidence limit, and by `SPREAD`.

*Norms of errors* (`log_chance_of_norm`): a norm is a Lipschitz function of the errors, so that beyond its mean it has a
normal tail, P(X > mean + t) <= exp(-t^2 / (2 L)), with L the largest variance of a direction (S. Boucheron, G. Lugosi
and P. Massart, "Concentration inequalities", 2013, theorem 5.6); for errors of one variance, L is twice the norm's own.
That is taken. The norm's variance within a trial, doubled for safety, comes from how pieces of the tensor differ. The
mean hangs on axes that trials draw from their ranges: the largest norm seen is taken for it, raised by the standard
deviation between trials.

*Counts of elements* (`log_chance_of_count`): the gamma distribution of the same mean and variance, whose tail is longer
than Poisson's, by its Chernoff bound P(X > r mean) <= exp(-a (r - 1 - ln r)) for shape a, both moved likewise.

*Few values* (`log_chance_normal`): a sum of independent rounding errors, each uniform, is strictly sub-Gaussian
(J. Arbel, O. Marchal and H. D. Nguyen, "On strict sub-Gaussianity, optimal proxy variance and symmetry for bounded
random variables", ESAIM: Probability and Statistics 24 (2020), 39-55): P(|X| > x) <= 2 exp(-x^2 / (2 variance)), with
the upper confidence limit of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DEVIATIONS = 2.0
"""See the module; the chance is rather too large than too small."""

SHAPE_DEVIATION = 1.15
"""Standard deviation of the generalised Pareto's shape near 0, times sqrt(m)."""

FEW = 20
"""So few values show no shape: their tail is taken as exponential."""

SPREAD = 4.0
"""How many times the mean error of all elements that of the least accurate ones is taken to be."""


@dataclass(frozen=True)
class Tail:
    """The fitted end of a distribution; see the module.

    Attributes:
        threshold: t; 0 where all values are 0.
        probability: of a value above t.
        theta: of the Weibull tail; None where there are too few values, or a heavy tail.
        shape, scale: k and alpha.
    """

    threshold: float
    probability: float
    theta: float | None
    shape: float
    scale: float

    def log_chance_above(self, x: float) -> float:
        """Natural logarithm of the probability of one value above x."""
        if self.threshold <= 0:
            return -math.inf
        beyond = math.log(self.probability)
        if x <= self.threshold:
            return beyond
        excess = (x - self.threshold) / self.scale if self.scale else math.inf
        if self.shape * excess >= 1:
            return -math.inf
        pareto = beyond + (math.log1p(-self.shape * excess) / self.shape if self.shape else -excess)
        weibull = 0.0 if self.theta is None else beyond * (x / self.threshold) ** (1 / self.theta)
        return min(pareto, weibull)


def fit_tail(largest: Sequence[float], values: int) -> Tail:
    """Fits the end of a distribution.

    Args:
        largest: the largest values of all, in any order, at most a third of them.
        values: how many there were in all.
    """
    ordered = sorted((value for value in largest if value > 0), reverse=True)
    m = len(ordered)
    if not m:
        return Tail(0.0, 1.0, None, 0.0, 0.0)
    threshold = ordered[-1]
    shape, scale = _pareto([value - threshold for value in ordered])
    theta = _weibull(ordered, values)
    return Tail(threshold, m / values, None if theta is not None and theta > 1 else theta, shape, scale)


def _weibull(ordered: Sequence[float], values: int) -> float | None:
    """Theta of values in falling order, moved."""
    m, threshold = len(ordered), ordered[-1]
    if m < FEW or ordered[0] <= threshold:
        return None
    span = sum(math.log(math.log(values / i)) - math.log(math.log(values / m)) for i in range(1, m))
    theta = sum(math.log(value / threshold) for value in ordered[:-1]) / span
    return theta * (1 + DEVIATIONS / math.sqrt(m))


def _pareto(excesses: Sequence[float]) -> tuple[float, float]:
    """Shape and scale of excesses in falling order, moved."""
    m = len(excesses)
    mean = sum(excesses) / m
    moved = 1 + DEVIATIONS / math.sqrt(m)
    if m < FEW or not mean:
        return 0.0, mean * moved
    weighted = sum((rank - 0.35) / m * excess for rank, excess in enumerate(excesses, start=1)) / m
    shape = mean / (mean - 2 * weighted) - 2 - DEVIATIONS * SHAPE_DEVIATION / math.sqrt(m)
    return shape, mean * (1 + shape)


def chance_of_any(log_chance: float, values: float) -> float:
    """The probability that any of so many values is as improbable as that."""
    return -math.expm1(-min(700.0, values * math.exp(log_chance)))


def log_chance_beyond_rounding(total: float, squares: float, largest: float, values: int) -> float:
    """Natural logarithm of the chance that an error before the last rounding exceeds the room that this leaves.

    Args:
        total: of the differences as shares of their room, not 0.
        squares: the sum of their squares.
        largest: of them.
        values: how many elements were compared.
    """
    mean = (total + DEVIATIONS * math.sqrt(squares) + DEVIATIONS * largest) / values
    return -1 / (SPREAD * mean)


def log_chance_of_norm(values: Sequence[float], noise: float) -> float:
    """Natural logarithm of the chance that a norm exceeds 1.

    Args:
        values: norms of different trials or ranks, above 0.
        noise: the largest variance of one of them within its trial.
    """
    if not values:
        return -math.inf
    mean = sum(values) / len(values)
    level = max(values) + math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    return 0.0 if level >= 1 else -((1 - level) ** 2) / (4 * 2 * max(noise, 1e-9))


def log_chance_of_count(values: Sequence[float]) -> float:
    """Natural logarithm of the chance that a count exceeds 1; the values are independent, and not all 0."""
    if not any(values):
        return -math.inf
    mean, variance = _moments(values)
    return 0.0 if mean >= 1 else -(mean**2 / variance) * (1 / mean - 1 + math.log(mean))


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance, moved by their confidence limits."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    variance = max(variance, 1e-6 * mean**2) * _variance_factor(len(values))
    return mean + DEVIATIONS * math.sqrt(variance / len(values)), variance


def log_chance_normal(mean_square: float, independent: int) -> float:
    """Natural logarithm of the chance that an error exceeds 1.

    Args:
        mean_square: of the errors that were seen, not 0.
        independent: how many of them are.
    """
    return min(0.0, math.log(2) - 1 / (2 * mean_square * _variance_factor(independent)))


def _variance_factor(independent: int) -> float:
    """From a variance to its upper confidence limit, by Wilson and Hilferty's quantile of chi-square."""
    degrees = max(2, independent - 1)
    spread = 2 / (9 * degrees)
    return 1 / max(0.05, 1 - spread - DEVIATIONS * math.sqrt(spread)) ** 3
