"""How far expert kernels have gone towards the roofline, which is the scale of speed in the default reward.

python -m benchmarks.reachable_speedups

Of the committed results of experts on the CPU and on GPUs: the share of the logarithmic distance from the better
baseline to the ceiling, for each expert that is faster than that baseline, and the error of `reachable_speedup`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from typing import Any

from benchmarks.common import RESULTS
from pkb_gym.rewards.performance import EXPERTS_EXPONENT, MAX_HEADROOM, MIN_REACHABLE

SOURCES = {"CPU": "experts.json", "GPUs": "gpu_experts_2_ranks.json"}


@dataclass(frozen=True)
class Measured:
    """One expert at one size.

    Attributes:
        where: Device and size.
        speedup: Speedup over the better baseline, above 1.
        headroom: Time of that baseline over the ceiling, above 1.
    """

    where: str
    speedup: float
    headroom: float

    @property
    def share(self) -> float:
        """The share of the logarithmic distance to the ceiling that the expert has gone."""
        return log(self.speedup) / log(self.headroom)

    @property
    def error(self) -> float:
        """The factor between the speedup that is taken for reachable and the expert's, at least 1."""
        reachable = max(MIN_REACHABLE, min(self.headroom, MAX_HEADROOM) ** EXPERTS_EXPONENT)
        return exp(abs(log(reachable / self.speedup)))


def measured() -> Iterator[Measured]:
    """The experts that are faster than the better baseline."""
    for device, name in SOURCES.items():
        rows: list[dict[str, Any]] = json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]
        for row in rows:
            if not row["passed"] or row.get("kernel", "expert") != "expert":
                continue
            eager_us: float = row["baseline_us"]
            better_us: float = min(eager_us, row.get("baseline_graph_us") or eager_us)
            speedup: float = row["speedup"] * better_us / eager_us
            if speedup > 1 and better_us > row["ceiling_us"] > 0:
                yield Measured(f"{device}, {row['size']}", speedup, better_us / row["ceiling_us"])


def main() -> None:
    """Prints medians and quantiles."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    experts = list(measured())
    shares = [each.share for each in experts]
    tenths = statistics.quantiles(shares, n=10)
    print(f"{len(experts)} measurements: median {statistics.median(shares):.2f}, ", end="")
    print(f"quantiles of 10 and 90 % {tenths[0]:.2f} and {tenths[-1]:.2f}")
    by_place = defaultdict(list)
    for each in experts:
        by_place[each.where].append(each)
    for where, those in sorted(by_place.items()):
        share = statistics.median(each.share for each in those)
        headroom = statistics.median(each.headroom for each in those)
        print(f"  {where}: {share:.2f} of {headroom:.0f} times ({len(those)})")
    print(f"predicted within a factor of {statistics.median(each.error for each in experts):.1f} in the median")


if __name__ == "__main__":
    main()
