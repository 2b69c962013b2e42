"""How often kernels that lack one synchronisation are refused, and their right twins pass.

python -m benchmarks.missing_synchronisation [KERNEL ...] [--device cpu|cuda|emulated] [--evaluations N]

Kernels are those of tests/candidates/twins, for GPUs of tests/candidates/cuda/twins; `pkb_gym.authoring.twins` says how
the wrong ones are made. They are compiled side by side first. On a machine with one GPU the ranks share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import save
from benchmarks.outcomes import Kernel, count_outcomes, evaluated, make_outcomes_parser, ranks_per_gpu, refused
from pkb_gym.authoring.twins import kernel_text, synchronisations, without

CANDIDATES = Path(__file__).resolve().parents[1] / "tests" / "candidates"
WORLD_SIZE = 2


def kernels(device: str) -> Iterator[Kernel]:
    """Every right kernel of a device, each followed by the wrong ones that are made from it."""
    folder = CANDIDATES / ("twins" if device == "cpu" else "cuda/twins")
    for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.cu")]):
        source = kernel_text(path)
        found = re.search(r"^// problem: (\S+)$", source, re.MULTILINE)
        problem = found[1] if found else "AllReduce"
        yield Kernel(path.name, problem, source)
        for lacks in synchronisations(source):
            yield Kernel(path.name, problem, without(source, lacks), lacks)


def main() -> None:
    """Evaluates all kernels of a device and keeps the result."""
    parser = make_outcomes_parser("missing_synchronisation", __doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="names of files without suffix (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda", "emulated"), default="cpu")
    given = parser.parse_args()
    settings: dict[str, object] = {"device": given.device, "race_check": given.race, "world_size": WORLD_SIZE}
    settings |= {"until": "check", "timeout_s": 2.0 if given.device == "cuda" else 5.0}
    if given.device == "cuda":
        settings["ranks_per_gpu"] = ranks_per_gpu(WORLD_SIZE)
    chosen = [
        kernel for kernel in kernels(given.device) if not given.kernels or Path(kernel.name).stem in given.kernels
    ]
    rows = count_outcomes(chosen, given, settings)
    wrong = [row for row in rows if row.kernel.lacks is not None]
    right = [row for row in rows if row.kernel.lacks is None]
    total = {
        "wrong_refused": refused(wrong),
        "wrong_evaluated": evaluated(wrong),
        "right_refused": refused(right),
        "right_evaluated": evaluated(right),
    }
    name = f"missing_synchronisation_{given.device}" + ("_without_detector" if given.race == "off" else "")
    save(name, {**settings, **total, "rows": [row.saved() for row in rows]})


if __name__ == "__main__":
    main()
