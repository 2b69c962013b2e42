"""Which device a configuration comes to, on machines with and without GPUs and nvcc, and the record of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.problems.catalogue import find_problem
from tests.fake_gpus import pretend_gpus

PROBLEM = find_problem("AllReduce")
H200 = "NVIDIA H200"


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    execution_environment.describe.cache_clear()
    yield
    execution_environment.describe.cache_clear()


def on_a_machine(monkeypatch: pytest.MonkeyPatch, *names: str, nvcc: bool = False) -> None:
    """With these GPUs."""
    pretend_gpus(monkeypatch, *names)
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: nvcc)
    monkeypatch.setattr(execution_environment, "nvcc_version", lambda: "nvcc 13.0")
    monkeypatch.setattr(execution_environment, "compiler_version", lambda: "g++ 13")


@pytest.mark.parametrize("nvcc", [False, True])
def test_gpus_are_used_where_there_are_any(monkeypatch: pytest.MonkeyPatch, nvcc: bool) -> None:
    on_a_machine(monkeypatch, H200, nvcc=nvcc)
    assert [execution_environment.choose_device(requested) for requested in ("auto", "cuda", "cpu")] == [
        "cuda",
        "cuda",
        "cpu",
    ]
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


def test_the_record_names_gpu_driver_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, H200, H200, nvcc=True)
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    found = execution_environment.describe("cuda", "native")
    assert (found.hardware, found.driver, found.toolchain, found.multicast) == (H200, "580.95", "nvcc 13.0", False)
    assert execution_environment.describe("cuda", "python").toolchain is None
    execution_environment.describe.cache_clear()
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST")
    assert execution_environment.describe("cuda", "native").multicast is True


@pytest.mark.parametrize("names", [(), (H200,)], ids=["no GPU", "GPU"])
def test_the_record_of_the_cpu_names_no_gpu(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    on_a_machine(monkeypatch, *names)
    found = execution_environment.describe("cpu", "native")
    assert found.hardware != H200 and found.toolchain == "g++ 13"
    assert (found.driver, found.multicast) == (None, None)


def test_what_is_only_compiled_runs_on_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, nvcc=True)
    found = execution_environment.describe("cuda", "native")
    assert (found.driver, found.multicast, found.toolchain) == (None, None, "nvcc 13.0")


MODULE = "import triton\n\n\ndef solution(tensor):\n    return tensor\n"


@pytest.mark.parametrize(
    ("names", "requested", "device", "language", "dialect"),
    [
        ((), {}, "cpu", "python", "python"),
        ((H200,) * 2, {}, "cuda", "triton", "python"),
        ((H200,) * 2, {"device": "cpu"}, "cpu", "python", "python"),
        ((H200,) * 2, {"language": "python"}, "cuda", "python", "python"),
        ((H200,) * 2, {"language": "cpp"}, "cpu", "cpp", "native"),
    ],
)
def test_a_submission_is_parsed_for_the_device_that_it_comes_to(
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    requested: dict[str, str],
    device: str,
    language: str,
    dialect: str,
) -> None:
    on_a_machine(monkeypatch, *names)
    config = EvalConfig(**requested)  # type: ignore[arg-type]
    source, resolved = execution_environment.resolve_source(config, PROBLEM, MODULE)
    assert (source.text, source.language, resolved.language) == (MODULE, language, language)
    assert (resolved.device, resolved.dialect) == (device, dialect)
    assert execution_environment.resolve_here(config, PROBLEM, source) == resolved


def test_where_there_is_no_source_yet_its_language_is_the_devices_native_one(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, H200)
    resolve_here = execution_environment.resolve_here
    assert resolve_here(EvalConfig(), PROBLEM).language == "cuda"
    assert resolve_here(EvalConfig(device="cpu"), PROBLEM).language == "cpp"
    assert resolve_here(EvalConfig(language="python"), PROBLEM).language == "python"


def test_what_to_say_of_a_source_that_is_only_compiled() -> None:
    assert execution_environment.compiled_only("native").startswith("compiled for sm_90a; this machine has no GPU")
    assert execution_environment.compiled_only("python").startswith("imported; this machine has no GPU")


TABLES = find_problem("GNNSparseFeatureFetch")


def memory(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    monkeypatch.setattr(gpus, "memory_bytes", lambda: gib << 30)
    monkeypatch.setattr(host, "memory_total_bytes", lambda: gib << 30)


@pytest.mark.parametrize(
    ("names", "language", "requested", "words"),
    [
        ((H200,), "cuda", {}, r"size 'published' in bfloat16 on 1 rank needs 1\d\d\.\d GiB of each GPU's memory, and "
         r"this machine has 100\.0 GiB; choose a smaller size, or more ranks"),
        ((), "cpp", {"size": "published"}, r"size 'published' in bfloat16 on 4 ranks needs 1\d\d\.\d GiB of main "
         r"memory, and this machine has 100\.0 GiB; choose a smaller size$"),
    ],
)  # fmt: skip
def test_a_size_that_this_machine_has_no_memory_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], language: str, requested: dict[str, str], words: str
) -> None:
    """It was found out by an allocation that failed, in the middle of an evaluation."""
    on_a_machine(monkeypatch, *names)
    memory(monkeypatch, 100)
    config = EvalConfig(language=language, **requested)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"^GNNSparseFeatureFetch: {words}"):
        execution_environment.resolve_source(config, TABLES, "a source")
    memory(monkeypatch, 200)
    execution_environment.resolve_source(config, TABLES, "a source")


@pytest.mark.parametrize(
    ("names", "version", "words"),
    [
        ((H200,), "3.9.0", ""),
        ((H200,), "3.10.1+git1", ""),
        ((H200,), "4.0", ""),
        ((H200,), "3.8.0", "Triton 3.8.0 is installed, and Triton 3.9 or later has it"),
        ((H200,), None, "Triton is not installed; Triton 3.9 or later has it"),
        ((), "3.9.0", "this machine has no GPU"),
    ],
)
def test_gsan_is_that_of_the_installed_triton(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], version: str | None, words: str
) -> None:
    on_a_machine(monkeypatch, *names, nvcc=True)
    installed = importlib.metadata.version

    def of(name: str) -> str:
        if name != "triton":
            return installed(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", of)
    assert execution_environment.no_gsan() == execution_environment.this_machine().no_gsan == words
    config = EvalConfig(device="cuda", language="triton", world_size=1)
    assert execution_environment.resolve_here(config, PROBLEM, Source.parse(MODULE, "cuda")).race_check == (
        "off" if words else "on"
    )


def test_memory_is_not_asked_for_where_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, nvcc=True)
    memory(monkeypatch, 1)
    for config in (EvalConfig(language="cuda"), EvalConfig(size="published", until="compile")):
        execution_environment.resolve_source(config, TABLES, "a source")
    execution_environment.resolve_here(EvalConfig(size="published"), TABLES)  # the task can be shown


def test_gpus_whose_memory_the_driver_does_not_report_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, H200)
    monkeypatch.setattr(gpus, "memory_bytes", lambda: None)
    execution_environment.resolve_source(EvalConfig(language="cuda"), TABLES, "a source")


@pytest.mark.parametrize(
    ("names", "nvcc", "processors", "words"),
    [
        ((H200,) * 2, True, 6, ""),
        ((H200,) * 2, True, 5, "5 processors leave none to spare beside 2 GPUs"),
        ((H200,) * 2, False, 64, "install the CUDA toolkit"),
        ((), True, 64, "this machine has no GPU"),
    ],
)
def test_the_race_detector_needs_processors_beside_gpus(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], nvcc: bool, processors: int, words: str
) -> None:
    on_a_machine(monkeypatch, *names, nvcc=nvcc)
    monkeypatch.setattr(host, "processors", lambda: processors)
    found = execution_environment.no_detector()
    assert words in found and bool(found) == bool(words)
    config = EvalConfig(device="cuda", world_size=2, until="check" if names else "compile")
    assert execution_environment.resolve_here(config, PROBLEM).race_check == ("off" if words else "on")
    assert execution_environment.resolve_here(EvalConfig(device="cpu"), PROBLEM).race_check == "off"
