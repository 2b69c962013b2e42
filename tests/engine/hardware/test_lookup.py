"""The peaks of this machine's GPUs, where they are known."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import lookup
from pkb_gym.engine.hardware.peaks import GPUS
from tests.fake_gpus import pretend_gpus

H200 = "NVIDIA H200"


def on_a_machine(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """With these GPUs."""
    pretend_gpus(monkeypatch, *names)


def test_the_hardware_is_the_first_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, H200, "NVIDIA B200")
    spec = lookup.find_hardware("cuda")
    assert (spec.name, spec.device) == (H200, "cuda")
    assert spec.peaks == GPUS[(H200,)]


def test_hardware_that_is_not_known_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, "NVIDIA H200 MIG 1g.18gb")
    with pytest.raises(ConfigError, match="no peaks known for GPU 'NVIDIA H200 MIG"):
        lookup.find_hardware("cuda")
    on_a_machine(monkeypatch)
    with pytest.raises(ConfigError, match="no NVIDIA GPU"):
        lookup.find_hardware("cuda")
