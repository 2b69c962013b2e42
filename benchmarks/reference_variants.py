"""Times other versions of references beside the current ones: the same gang, the same inputs, in turn.

python -m benchmarks.reference_variants FOLDER, where FOLDER holds NAME.py for each problem NAME to be measured, for
example what `git show REVISION:problems/.../reference.py` prints.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, save
from benchmarks.gpu_baselines_gang import BaselineGang
from benchmarks.gpu_baselines_records import BaselineTask

DEADLINE_S = 60.0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference_variants", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="holds NAME.py, the other version of problem NAME's reference")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--size", choices=("tiny", "published", "large"), default="published")
    parser.add_argument("--world-size", type=int, default=2, help="ranks (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help='"cpu" tries the logic on gloo')
    parser.add_argument("--rounds", type=int, default=2, help="times each, in turn (default: %(default)s)")
    parser.add_argument("--measure-s", type=float, default=0.2, help="timed seconds each (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Measures, prints and saves."""
    args = read_arguments()
    paths = sorted(args.folder.resolve().glob("*.py"))
    if not paths:
        sys.exit(f"{args.folder} holds no NAME.py: give the folder of the other versions")
    rows: list[dict[str, Any]] = []
    gang = BaselineGang(args.device, args.world_size)
    about = gang.about
    try:
        for path in paths:
            for version in [path, None] * args.rounds:
                task = BaselineTask(path.stem, args.size, "robust", args.measure_s, version)
                outcome = gang.run(task, DEADLINE_S)
                times = {kind: (outcome.row.get(kind) or {}).get("lower_quartile_us") for kind in ("eager", "graph")}
                rows.append(
                    {"problem": path.stem, "version": "other" if version else "current", "error": outcome.error}
                    | {f"{kind}_us": time_us for kind, time_us in times.items()}
                )
                print(rows[-1], file=sys.stderr, flush=True)
                if not outcome.usable:
                    gang.close()
                    gang = BaselineGang(args.device, args.world_size)
    finally:
        gang.close()
    save("reference_variants", about | {"world_size": args.world_size, "size": args.size, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
