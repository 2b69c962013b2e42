"""Which device and how many ranks a configuration comes to, on machines with and without GPUs and nvcc."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus, lookup
from pkb_gym.engine.hardware.peaks import GPUS
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, default_world_size, resolve
from pkb_gym.engine.stages import execution_environment
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
H200 = "NVIDIA H200"


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    execution_environment.describe.cache_clear()
    yield
    execution_environment.describe.cache_clear()


def on_a_machine(monkeypatch: pytest.MonkeyPatch, *names: str, nvcc: bool = False) -> None:
    """With these GPUs."""
    monkeypatch.setattr(gpus, "names", lambda: names)
    monkeypatch.setattr(gpus, "driver_version", lambda: "580.1" if names else None)
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: nvcc)
    monkeypatch.setattr(execution_environment, "nvcc_version", lambda: "nvcc 13.0")
    monkeypatch.setattr(execution_environment, "compiler_version", lambda: "g++ 13")


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


@pytest.mark.parametrize("nvcc", [False, True])
def test_gpus_are_used_where_there_are_any(monkeypatch: pytest.MonkeyPatch, nvcc: bool) -> None:
    on_a_machine(monkeypatch, H200, nvcc=nvcc)
    assert [execution_environment.choose_device(asked) for asked in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert execution_environment.can_run("cuda") and execution_environment.can_run("cpu")


def test_without_a_gpu_sources_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, nvcc=True)
    assert execution_environment.choose_device("auto") == "cpu"
    assert execution_environment.can_run("cpu")


def test_without_a_gpu_but_with_nvcc_cuda_is_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, nvcc=True)
    assert execution_environment.choose_device("cuda") == "cuda"
    assert not execution_environment.can_run("cuda")


def test_without_either_cuda_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch)
    with pytest.raises(ConfigError, match="device 'cuda' is not available here: there is neither an NVIDIA GPU nor"):
        execution_environment.choose_device("cuda")


@pytest.mark.parametrize("names", [(), (H200,)])
def test_a_language_of_one_device_decides(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    on_a_machine(monkeypatch, *names, nvcc=True)
    chosen = [execution_environment.choose_device("auto", language) for language in ("cpp", "cuda", "triton")]
    assert chosen == ["cpu", "cuda", "cuda"]
    assert execution_environment.choose_device("cpu", "cuda") == "cpu", (
        "what was asked for stays, for `resolve` to refuse"
    )


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


def test_the_record_names_gpu_driver_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, H200, H200, nvcc=True)
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    found = execution_environment.describe("cuda", True)
    assert (found.hardware, found.driver, found.toolchain, found.multicast) == (H200, "580.1", "nvcc 13.0", False)
    assert execution_environment.describe("cuda", False).toolchain is None
    execution_environment.describe.cache_clear()
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST")
    assert execution_environment.describe("cuda", True).multicast is True


@pytest.mark.parametrize("names", [(), (H200,)], ids=["no GPU", "GPU"])
def test_the_record_of_the_cpu_names_no_gpu(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    on_a_machine(monkeypatch, *names)
    found = execution_environment.describe("cpu", True)
    assert found.hardware != H200 and found.toolchain == "g++ 13"
    assert (found.driver, found.multicast) == (None, None)


def test_what_is_only_compiled_runs_on_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, nvcc=True)
    found = execution_environment.describe("cuda", True)
    assert (found.driver, found.multicast, found.toolchain) == (None, None, "nvcc 13.0")


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
