"""Baselines of CUDA graphs are extras: measured once, and what goes wrong at them costs the candidate nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.timing import CAPTURED, REGISTERED
from pkb_gym.engine.stages import timing_statistics
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.captured_baseline import add_captured_baseline
from pkb_gym.rewards.examples import timed
from tests.engine.stages.fake_gangs import PYTHON, Bench

TIMING = timed(baseline_us=100).timing
assert TIMING is not None


def captured(
    cache: BaselineCache, *, fails: str = "", captures: bool = True, registers: bool = False, **requested: object
) -> Bench:
    """Replays take 40 us a call, on registered memory 30 us, and the gate what the timing says."""
    bench = Bench(gpus=2, **requested)
    bench.reference.call_us, bench.reference.block_us = 40.0, TIMING.gate_us
    bench.reference.captures, bench.reference.registers = captures, registers
    if fails:
        bench.reference.fails[fails] = InfrastructureError("the reference gang failed: out of memory")
    bench.feedback.timing = TIMING

    @contextlib.contextmanager
    def idle_devices() -> Iterator[None]:
        bench.log.append("devices held")
        yield
        bench.log.append("devices free")

    with bench.run() as run:
        add_captured_baseline(run, cache, idle_devices, lambda _: None)
    return bench


def found(bench: Bench) -> float | None:
    timing = bench.feedback.timing
    assert timing is not None
    nothing = dict.fromkeys((*CAPTURED, *REGISTERED))
    assert timing.model_copy(update=nothing) == TIMING
    assert not bench.feedback.failed
    return timing.baseline_graph_us


@pytest.mark.parametrize(
    ("fails", "captures", "graph_us"), [("", True, pytest.approx(40.0)), ("", False, None), ("capture", True, None)]
)
def test_it_is_measured_once_for_all_candidates(fails: str, captures: bool, graph_us: float | None) -> None:
    """A fault at it is no failure, and it is not met again."""
    cache = BaselineCache()
    first = captured(cache, fails=fails, captures=captures)
    assert found(first) == graph_us and len(first.logged("capture")) == 1
    again = captured(cache, fails=fails, captures=captures)
    assert found(again) == graph_us and again.logged("capture", "devices") == []


def test_it_is_measured_while_nothing_else_runs_on_blocks_of_replays() -> None:
    bench = captured(BaselineCache())
    graphs = timing_statistics.GRAPHS
    begin = [f"make {graphs} timed", f"warm up {graphs}", f"capture {graphs} native"]
    replays = [f"replay {timing_statistics.replays_per_block(100)}"] * timing_statistics.GRAPH_BLOCKS
    held = bench.log[bench.log.index("devices held") : bench.log.index("devices free")]
    assert held[1:] == [*begin, *replays]


@pytest.mark.parametrize(
    ("found_by", "graph_us", "registered_us"),
    [
        ({"registers": True}, 40.0, 30.0),
        ({"registers": False}, 40.0, None),
        ({"registers": True, "captures": False}, None, None),
        ({"registers": True, "fails": "register"}, 40.0, None),
        ({"registers": True, "world_size": 1}, 40.0, None),
    ],
)
def test_registered_memory_comes_after_the_graphs_and_once(
    found_by: dict[str, Any], graph_us: float | None, registered_us: float | None
) -> None:
    """A fault at it leaves the captured baseline; one rank has nobody whose memory to reach."""
    cache = BaselineCache()
    bench = captured(cache, **found_by)
    timing = bench.feedback.timing
    assert timing is not None and found(bench) == (graph_us and pytest.approx(graph_us))
    assert timing.baseline_registered_us == (registered_us and pytest.approx(registered_us))
    if registered_us is not None:
        assert timing.over_registered is not None and timing.leading.baseline != "registered"
        assert timing.over_registered.low < registered_us / timing.candidate_us < timing.over_registered.high
    again = captured(cache, **found_by)
    assert again.feedback.timing == timing and again.logged("capture", "register") == []


def test_the_devices_are_free_again_after_a_fault() -> None:
    with contextlib.ExitStack() as stack:
        bench = Bench(gpus=2)
        bench.feedback.timing = TIMING
        bench.reference.fails["warm up"] = InfrastructureError("the reference gang failed")
        held: list[bool] = []

        @contextlib.contextmanager
        def idle_devices() -> Iterator[None]:
            held.append(True)
            try:
                yield
            finally:
                held.append(False)

        run = stack.enter_context(bench.run())
        add_captured_baseline(run, BaselineCache(), idle_devices, lambda _: None)
    assert held == [True, False]


def test_the_speedup_over_it_has_an_interval() -> None:
    timing = captured(BaselineCache()).feedback.timing
    assert timing is not None and timing.graph_speedup_low is not None and timing.graph_speedup_high is not None
    assert timing.baseline_graph_us is not None
    middle = timing.baseline_graph_us / timing.candidate_us
    assert timing.graph_speedup_low < middle < timing.graph_speedup_high


@pytest.mark.parametrize("other", [{"size": "published"}, {"dtype": "float32"}, {"protocol": "published"}])
def test_each_case_has_its_own(other: dict[str, object]) -> None:
    cache = BaselineCache()
    captured(cache)
    assert captured(cache, **other).logged("capture") != []
    assert captured(cache, seed=9).logged("capture") == [], "inputs make no difference"


def test_it_copies_its_results_where_the_candidate_does() -> None:
    """AllReduce at size large took 301 us beside a native candidate and 336 us beside one that returns its tensor."""
    cache = BaselineCache()
    assert captured(cache).logged("capture")[0].endswith("native")
    assert captured(cache, source=PYTHON).logged("capture")[0].endswith("python"), "another case than that of natives"
