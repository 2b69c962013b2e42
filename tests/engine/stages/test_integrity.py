"""What counts as interference, and what a clock's coarseness alone can bring about."""

from __future__ import annotations

import pytest

from pkb_gym.engine.stages import integrity


@pytest.mark.parametrize(
    ("ticks", "ticks_in_all", "ranks", "found"),
    [
        (0, 0, 1, False),
        (1, 1, 1, False),  # a tick that was running when the rank was stopped
        (2, 2, 1, True),
        (2, 2, 2, False),  # one of each rank
        (4, 8, 4, False),
        (5, 5, 4, True),
        (1, 4, 1, False),
        (1, 5, 1, True),  # little by little
        (0, 17, 4, True),
    ],
)
def test_ticks_of_a_frozen_gang(ticks, ticks_in_all, ranks, found):
    assert bool(integrity.interference(ticks, ticks_in_all, ranks)) is found


def test_the_finding_says_how_many():
    (finding,) = integrity.interference(3, 7, 1)
    assert finding.code == "interference" and "7 clock ticks" in finding.detail
