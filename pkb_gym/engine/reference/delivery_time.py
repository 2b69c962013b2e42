"""Times the copy of a call's results into the heap, by which the python dialect delivers them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.wire.orders import Dialect

ROUNDS, COPIES = 5, 4
"""Times that it is timed, and copies each time: a GPU's launches follow each other as in a block."""


def delivery_us(block: BoundBlock, dialect: Dialect, synchronize: Callable[[], None]) -> float:
    """Microseconds that the results of a call take to be copied; the median of a few rounds, on all ranks at once.

    Args:
        block: Block whose first call gives the results.
        dialect: Dialect of the candidate.
        synchronize: Waits for the device.
    """
    result = block.call(0)
    delivery = block.delivery(0, dialect)
    times_us = []
    for _ in range(ROUNDS):
        synchronize()
        began_ns = time.perf_counter_ns()
        for _ in range(COPIES):
            delivery.deliver(result)
        synchronize()
        times_us.append((time.perf_counter_ns() - began_ns) / COPIES / 1e3)
    return statistics.median(times_us)
