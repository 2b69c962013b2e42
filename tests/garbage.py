"""Collections of garbage, which take a tenth of the processor time of imports and of quick tests."""

from __future__ import annotations

import gc
import runpy
import sys

COLLECTED_AT = (100_000, 50, 100)
"""As for `gc.set_threshold`, instead of Python's own."""


def pause_collections() -> None:
    """While modules are imported and tests collected: a million objects, which every full collection looks at again."""
    gc.disable()


def resume_collections() -> None:
    """What there is by now is never looked at again: a forked child would copy what a collection touches."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AT)


# python -m tests.garbage MODULE ...: a program that is imported and ends without collections.
if __name__ == "__main__":
    pause_collections()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
