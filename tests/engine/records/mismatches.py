"""A mismatch for tests to vary."""

from __future__ import annotations

from pkb_gym.engine.records.check_report import Mismatch


def mismatch(**changes: object) -> Mismatch:
    values: dict = {
        "trial": 3,
        "rank": 2,
        "output": "out",
        "reason": "values",
        "shape": (4, 8),
        "dtype": "bfloat16",
        "wrong_elements": 8,
        "elements": 32,
        "bounding_box": ((0, 3), (6, 7)),
        "worst_index": (1, 7),
        "got": "0",
        "expected": "22.4",
        "rule": "exact",
    }
    return Mismatch(**values | changes)
