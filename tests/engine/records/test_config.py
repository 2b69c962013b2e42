"""What a configuration comes to: defaults of the device, and what cannot be met."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import DIALECTS, EvalConfig, ResolvedConfig, default_world_size, resolve
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")


def resolved(device: str, *, gpus: int = 0, **asked: object) -> ResolvedConfig:
    language = "cuda" if device == "cuda" else "cpp"
    return resolve(
        EvalConfig(**asked),
        PROBLEM,
        device=device,  # type: ignore[arg-type]
        language=language,  # type: ignore[arg-type]
        memory_total_bytes=64 << 30,
        gpus=gpus,
    )


@pytest.mark.parametrize(
    ("gpus", "world_size"), [(0, 4), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (7, 4), (8, 8), (16, 8)]
)
def test_as_many_ranks_as_gpus_can_serve(gpus: int, world_size: int) -> None:
    assert default_world_size(gpus) == world_size
    assert resolved("cuda", gpus=gpus).world_size == world_size


def test_the_cpu_has_its_own_number_of_ranks() -> None:
    assert [resolved("cpu", gpus=gpus).world_size for gpus in (0, 1, 8)] == [4, 4, 4]


def test_a_rank_needs_a_gpu_of_its_own() -> None:
    said = "AllReduce: world size 8 needs as many GPUs; this machine has 4"
    with pytest.raises(ConfigError, match=said):
        resolved("cuda", gpus=4, world_size=8)
    assert resolved("cuda", gpus=4, world_size=2).world_size == 2
    assert resolved("cuda", gpus=0, world_size=8).world_size == 8, "what is only compiled needs none"
    assert resolved("cpu", gpus=1, world_size=8).world_size == 8


def test_defaults_follow_the_device() -> None:
    cpu, cuda = resolved("cpu"), resolved("cuda", gpus=4)
    assert (cpu.size, cpu.timing_budget_s) == ("tiny", 0.2)
    assert (cuda.size, cuda.timing_budget_s) == ("published", 0.5)
    assert resolved("cuda", gpus=4, size="tiny", timing_budget_s=3.0).timing_budget_s == 3.0


@pytest.mark.parametrize(("language", "device"), [("cpp", "cuda"), ("cuda", "cpu"), ("triton", "cpu")])
def test_a_language_that_the_device_does_not_run(language: str, device: str) -> None:
    with pytest.raises(ConfigError, match=f"language '{language}' does not run on device '{device}'"):
        resolved(device, gpus=4, language=language)


@pytest.mark.parametrize(
    ("language", "device"), [("cpp", "cpu"), ("cuda", "cuda"), ("triton", "cuda"), ("python", "cpu")]
)
def test_a_language_is_of_one_dialect(language: str, device: str) -> None:
    found = resolved(device, gpus=4, language=language)
    assert (found.language, found.dialect) == (language, "native" if language in ("cpp", "cuda") else "python")
    assert set(DIALECTS) >= {language} and "dialect" not in ResolvedConfig.model_fields, "told by the language alone"
