"""The identity of a request: equal for equal requests, another for any other."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.rewards.examples import CONFIG


def request(problem: str = "AllReduce", source: str = "int x;", **config: object) -> EvaluationRequest:
    return EvaluationRequest(problem=problem, source=source, config=EvalConfig(**config))


def test_equal_requests_have_equal_keys():
    assert request().key == request().key == EvaluationRequest(problem="AllReduce", source="int x;").key
    assert len(request().key) == 64 and set(request().key) <= set("0123456789abcdef")


def test_the_order_of_axes_and_lists_for_tuples_change_nothing():
    one, other = {"M": 64, "shape": (2, 3)}, {"shape": [2, 3], "M": 64}
    assert request(size=one).key == request(size=other).key


OTHERS = {
    "race_check": "on",
    "device": "cpu",
    "world_size": 2,
    "ranks_per_gpu": 2,
    "size": "tiny",
    "dtype": "float32",
    "language": "cpp",
    "protocol": "published",
    "until": "check",
    "trials": 3,
    "seed": 1,
    "turn": 1,
    "timeout_s": 1.0,
    "compile_timeout_s": 1.0,
    "timing_budget_s": 1.0,
    "memory_bytes": 1,
    "trace": True,
    "debug": True,
    "sanitize": ("address",),
}


@pytest.mark.parametrize("name", EvalConfig.model_fields)
def test_every_field_of_the_config_is_part_of_the_key(name):
    assert request(**{name: OTHERS[name]}).key != request().key


def test_problem_and_source_are_part_of_the_key():
    requests = [request(), request(problem="Gather"), request(source="int y;"), request(source="int x; ")]
    assert len({one.key for one in requests}) == 4


def test_lone_surrogates_have_keys_too():
    """No encoding can carry them, and a source that holds one is rejected by the evaluation, not by its key."""
    keys = {request(source=source).key for source in ("\ud800", "\udfff", "?", "")}
    assert len(keys) == 4 and request(source="\ud800").key in keys


def test_a_resolved_config_is_a_request_that_leaves_nothing_open():
    for resolved in (CONFIG, CONFIG.model_copy(update={"size": {"M": 8, "shape": (1, 2)}})):
        requested = resolved.as_request()
        assert isinstance(requested, EvalConfig) and ResolvedConfig(**dict(requested)) == resolved
