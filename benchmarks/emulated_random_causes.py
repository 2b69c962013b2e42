"""Why the emulator leaves other memory than a GPU after some random programs, without a GPU.

Each program that `benchmarks/data` lists as unlike runs again with the GPU's behaviour in some of its uses; where the
digest of the GPU's memory comes out, the causes of these uses explain all of the difference.

python -m benchmarks.emulated_random_causes [--seeds SEED ...] [--compiled FOLDER] [--out FOLDER]

Exit status: 0 if all are explained, else 1.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.random_ptx.attribution import attribute
from benchmarks.random_ptx.kept import Kept
from benchmarks.random_ptx.program import make_program
from benchmarks.random_ptx.sides import emulator_at
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.support.atomic_write import write_atomically


def main(argv: Sequence[str] | None = None) -> int:
    """Attributes, prints and saves."""
    parser = make_parser("emulated_random_causes", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="default: all that are unlike")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="of compiled files (default: the user's cache)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args(argv)
    kept = Kept.load()
    found: dict[int, tuple[str, ...] | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulator.so"
        path.write_bytes(build_emulator(CompileCache.in_folder(args.compiled)))
        with emulator_at(path) as emulator:
            for seed in args.seeds or sorted(kept.unlike):
                found[seed] = attribute(make_program(seed), kept.digests[seed], emulator)
                print(seed, "unexplained" if found[seed] is None else ", ".join(found[seed] or ("alike",)), flush=True)
    explained = {seed: causes for seed, causes in found.items() if causes is not None}
    unexplained = sorted(set(found) - set(explained))
    counts = Counter(cause for causes in explained.values() for cause in causes)
    result = header() | {
        "programs": len(found),
        "explained": len(explained),
        "causes": dict(sorted(counts.items())),
        "of_programs": {str(seed): list(causes) for seed, causes in sorted(explained.items())},
        "unexplained": unexplained,
    }
    write_atomically(args.out / "emulated_random_causes.json", json.dumps(result, indent=1) + "\n")
    print(f"{len(explained)} of {len(found)} explained: {dict(counts)}; not: {unexplained}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
