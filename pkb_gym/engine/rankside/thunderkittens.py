"""What ThunderKittens asks of those that compile it; the compile stage and the shims of ranks go by it."""

from __future__ import annotations

MACROS = {
    "sm_80": "KITTENS_AMPERE",
    "sm_90": "KITTENS_HOPPER",
    "sm_100": "KITTENS_BLACKWELL",
    "sm_103": "KITTENS_SM103",
    "sm_120": "KITTENS_SM120",
}
"""ThunderKittens compiles for exactly one architecture. The first three names are understood by every version of it."""
