"""Which gang a request needs."""

from __future__ import annotations

import pytest

from pkb_gym.cluster.requests import resolved_request
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.service import EvaluationRequest

PYTHON = "import torch\n\ndef solution(tensor):\n    return tensor\n"


@pytest.mark.parametrize(
    ("config", "gpus", "device", "world_size", "devices"),
    [
        ({}, 8, "cuda", 8, 8),
        ({}, 0, "cpu", 4, 4),
        ({"device": "cpu", "world_size": 2}, 8, "cpu", 2, 2),
        ({"language": "cuda"}, 0, "cuda", 4, 4),
        ({"language": "cpp", "world_size": 2}, 8, "cpu", 2, 2),
        ({"world_size": 8, "ranks_per_gpu": 4}, 4, "cuda", 8, 2),
        ({"device": "emulated", "language": "cuda", "world_size": 2}, 0, "emulated", 2, 2),
    ],
)
def test_device_and_ranks(config, gpus, device, world_size, devices):
    request = EvaluationRequest(problem="AllReduce", source=PYTHON, config=EvalConfig(**config))
    fixed, on, of_gang = resolved_request(request, gpus)
    assert (on, of_gang) == (device, devices)
    assert (fixed.config.device, fixed.config.world_size) == (device, world_size)
    assert fixed.model_copy(update={"config": request.config}) == request, "nothing else is decided here"


def test_more_ranks_than_a_node_has_gpus():
    request = EvaluationRequest(problem="AllReduce", source=PYTHON, config=EvalConfig(device="cuda", world_size=8))
    with pytest.raises(ConfigError, match="4"):
        resolved_request(request, 4)
