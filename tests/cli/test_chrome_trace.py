"""A timeline in the format that chrome://tracing and Perfetto read."""

from __future__ import annotations

import json

from pkb_gym.cli.chrome_trace import chrome_trace
from pkb_gym.engine.records.feedback import TraceEvent


def test_chrome_trace_has_a_process_for_each_rank_and_a_thread_for_each_stream() -> None:
    slices = [
        TraceEvent(rank=0, kind="call", name="call 0", stream=None, start_us=0, duration_us=4),
        TraceEvent(rank=0, kind="kernel", name="mine", stream=0, start_us=1.23456, duration_us=2),
        TraceEvent(rank=1, kind="copy", name="Memcpy", stream=7, start_us=3, duration_us=4, nbytes=64),
    ]
    trace = json.loads(chrome_trace(slices, "AllReduce"))
    names = {
        (entry["name"], entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in trace["traceEvents"]
        if entry["name"] in ("process_name", "thread_name")
    }
    assert names == {
        ("process_name", 0, 0): "rank 0",
        ("process_name", 1, 0): "rank 1",
        ("thread_name", 0, 0): "calls of solution",
        ("thread_name", 0, 1): "stream 0",
        ("thread_name", 1, 8): "stream 7",
    }
    drawn = [entry for entry in trace["traceEvents"] if entry["ph"] == "X"]
    assert [(entry["pid"], entry["tid"], entry["ts"], entry["dur"]) for entry in drawn] == [
        (0, 0, 0, 4),
        (0, 1, 1.235, 2),
        (1, 8, 3, 4),
    ]
    assert drawn[2]["args"] == {"bytes": 64} and drawn[2]["cat"] == "copy"
