"""The parts of a pair of blocks: what is noted of them, and when."""

from __future__ import annotations

import time

import pytest

from benchmarks import pair_parts
from pkb_gym.engine.stages import pipeline

MS = 1_000_000


@pytest.fixture
def gangs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gangs that do nothing, and the names of what they are asked for."""
    asked: list[str] = []

    def returning(name: str, result: object) -> object:
        def method(_: object) -> object:
            asked.append(name)
            time.sleep(0.001)
            return result

        return method

    results = {"baseline": 7 * MS, "candidate, with its staging": (3 * MS, [])}
    for part, (owner, name) in pair_parts.PARTS.items():
        monkeypatch.setattr(owner, name, returning(part, results.get(part)))
    return asked


def call_all() -> None:
    for owner, name in pair_parts.PARTS.values():
        getattr(owner, name)(None)


def test_parts_are_noted_while_blocks_are_timed_and_only_then(
    gangs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_parts, "time_blocks", lambda pairs: [call_all() for _ in range(pairs)])
    before = pipeline.time_blocks
    pairs = pair_parts.Pairs()
    with pairs.watch():
        call_all()  # a block that is checked
        pipeline.time_blocks(3)
        pipeline.time_blocks(1)
    call_all()
    assert pipeline.time_blocks is before
    found = pairs.medians()
    assert found["baseline: its block"] == 7 and found["candidate, with its staging: its block"] == 3
    assert found["pairs"] == 2 and len(pairs.evaluations) == 2
    assert all(len(times) == 4 and min(times) >= 1 for times in pairs.parts.values())
    assert len(gangs) == 6 * len(pair_parts.PARTS)
