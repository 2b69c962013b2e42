"""What is asked of the device "emulated": what it takes, what it refuses, and the orders of execution that follow."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.records.config_request import checked_config
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.emulate import schedules
from pkb_gym.problems.catalogue import find_problem
from tests.fake_gpus import pretend

PROBLEM = find_problem("AllReduce")
KERNEL = '#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\n'


def resolved(**requested: object) -> ResolvedConfig:
    config = EvalConfig.model_validate({"device": "emulated"} | requested)
    return resolve(config, PROBLEM, device="emulated", language="cuda", memory_total_bytes=8 << 30)


def test_it_checks_cuda_sources_at_tiny_size_by_default() -> None:
    config = resolved()
    assert (config.until, config.size, config.world_size, config.language) == ("check", "tiny", 4, "cuda")
    assert config.race_check == "on" and config.dialect == "native" and config.host_device == "cpu"
    assert resolved(until="compile").until == "compile"
    assert resolved(world_size=8, size={"M": 16}, trials=3, timeout_s=5.0).trials == 3


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"until": "time"}, "nothing is timed on device 'emulated', .* choose until='check', or device 'cuda'"),
        ({"until": "profile"}, "for until='profile'"),
        ({"language": "triton"}, "runs CUDA sources of the native dialect; language 'triton' runs on device 'cuda'"),
        ({"language": "python"}, "language 'python' runs on device 'cpu'"),
        ({"language": "cpp"}, "language 'cpp' runs on device 'cpu'"),
        ({"debug": True}, "device 'emulated' has no debug builds"),
        ({"trace": True}, "device 'emulated' has no timelines"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_choice(requested: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"AllReduce: .*{message}"):
        resolved(**requested)


def test_races_are_detected_unless_it_is_asked_not_to() -> None:
    assert resolved(race_check="off").race_check == "off"
    assert resolved(race_check="strict").race_check == "strict"
    elsewhere = resolve(EvalConfig(device="cpu"), PROBLEM, device="cpu", language="cpp", memory_total_bytes=8 << 30)
    assert elsewhere.race_check == "off"
    with pytest.raises(ConfigError, match="race_check='lax': expected 'auto', 'on', 'off' or 'strict'"):
        checked_config({"race_check": "lax"})


@pytest.mark.parametrize("names", [(), ("NVIDIA H200",)])
@pytest.mark.parametrize("language", ["auto", "cuda", "cpp"])
def test_auto_never_stands_for_it(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], language: str) -> None:
    pretend(monkeypatch, *names)
    assert execution_environment.choose_device("auto", language) != "emulated"
    assert execution_environment.choose_device("emulated", language) == "emulated"
    assert execution_environment.can_run("emulated")


def test_without_nvcc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device 'emulated' is not available here: .* install the CUDA toolkit"):
        execution_environment.choose_device("emulated")


@pytest.mark.parametrize("text", ["import torch\ndef solution(x):\n    return x\n", "import triton\nsolution = 1\n"])
def test_modules_are_no_sources_of_it(text: str) -> None:
    source = Source.parse(text, "emulated")
    assert source.defect is not None and "on device 'cpu' or 'cuda'" in source.defect
    kernel = Source.parse(KERNEL, "emulated")
    assert kernel.defect is None and kernel.language == "cuda"


def test_orders_of_execution_follow_from_seed_and_turn() -> None:
    first, again = list(schedules(resolved(seed=3))), list(schedules(resolved(seed=3)))
    assert first == again
    assert first != list(schedules(resolved(seed=4))) and first != list(schedules(resolved(seed=3, turn=1)))


@pytest.mark.parametrize("trials", [1, 2, 4, 14, 15, 40])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_first_calls_are_together_and_all_trials_are_used(trials: int, world_size: int) -> None:
    found = list(schedules(resolved(trials=trials, world_size=world_size)))
    assert found[0][0].policy == "together" and all(schedule.policy != "together" for schedule, _ in found[1:])
    assert sum(calls for _, calls in found) == trials and all(calls > 0 for _, calls in found)


def test_each_way_of_holding_ranks_back_has_its_calls() -> None:
    assert {schedule.policy for schedule, _ in schedules(resolved())} == {
        "together",
        "hold_arrival",
        "one_ahead",
        "hold_departure",
        "late_stores",
    }
