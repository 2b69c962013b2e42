"""Process groups are made by all ranks alike, and once."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from pkb_gym.engine.rankside.process_groups import ProcessGroups


def test_every_group_of_a_partition_is_made_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []
    monkeypatch.setattr(dist, "new_group", lambda ranks: made.append(ranks) or f"group {ranks}")
    groups = ProcessGroups(rank=2)
    assert groups.of(((0, 1), (2, 3))) == "group [2, 3]" == groups.of(((0, 1), (2, 3)))
    assert groups.of(((0, 2), (1, 3))) == "group [0, 2]"
    assert groups.of(((0, 1),)) is None, "no part has this rank"
    assert made == [[0, 1], [2, 3], [0, 2], [1, 3], [0, 1]]
