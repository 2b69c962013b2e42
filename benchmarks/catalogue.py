"""Time of a fresh process to import the catalogue of all problems.

python -m benchmarks.catalogue
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.common import make_parser, save

RUNS = 11
PROGRAM = """
import time
began = time.perf_counter()
from pkb_gym.problems.catalogue import catalogue
count = len(catalogue())
print(count, time.perf_counter() - began)
"""


def main() -> None:
    """Measures and saves; the first process, which may have to compile bytecode, is not counted."""
    make_parser("catalogue", __doc__).parse_args()
    seconds, count = [], 0
    for _ in range(RUNS + 1):
        output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        count = int(output.split()[0])
        seconds.append(float(output.split()[1]))
    counted = seconds[1:]
    result = {"problems": count, "median_s": round(statistics.median(counted), 3), "worst_s": round(max(counted), 3)}
    save("catalogue", result)


if __name__ == "__main__":
    main()
