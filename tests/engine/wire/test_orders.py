"""What a candidate's rank may report: of the right types, or it is no report."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pkb_gym.engine.wire.messages import ProtocolError, read
from pkb_gym.engine.wire.orders import ProfileDone
from tests.engine.gpu_events import EVENTS
from tests.engine.reports import reported

NONSENSE: list[tuple[str, object]] = [
    ("wall_ns", "much"),
    ("wall_ns", 1.5),
    ("transfers.waits", 10**400),
    ("device", []),
    ("device", 7),
    ("calls_ns", [[1]]),
    ("calls_ns", [["a", "b"]]),
    ("calls_ns", 4),
    ("usage.user_ns", None),
    ("device.busy_us", "nan"),
    ("device.busy_us", float("nan")),
    ("device.overlap_us", 1e300),
    ("device.nccl_kernels", None),
    ("device.kernels", {"a": 1}),
    ("device.kernels", [{"name": 3, "launches": 1, "total_us": 1}]),
    ("device.kernels", [["a"]]),
    ("device.names", [None]),
    ("device.events", [["kernel", 0, 1, 1, 7, 0]]),
    ("device.events", [{"kind": "virus", "name": 0, "start_us": 1, "duration_us": 1, "stream": 7, "nbytes": 0}]),
    ("device.events", [{"kind": "kernel", "name": 0, "start_us": "now", "duration_us": 1, "stream": 7, "nbytes": 0}]),
    ("device.events", [{"kind": "kernel", "name": 0}]),
    ("device.events", [{"kind": [], "name": 0, "start_us": 1, "duration_us": 1, "stream": 7, "nbytes": 0}]),
]


@pytest.mark.parametrize(("where", "what"), NONSENSE, ids=repr)
def test_nonsense_in_a_profile_is_refused(where: str, what: object) -> None:
    frame: Any = json.loads(json.dumps(reported(*EVENTS).to_json()))
    assert read(copy.deepcopy(frame), ProfileDone) == reported(*EVENTS)
    *outer, name = where.split(".")
    (frame[outer[0]] if outer else frame)[name] = what
    with pytest.raises(ProtocolError, match=rf"^ProfileDone\.{where}"):
        read(frame, ProfileDone)
