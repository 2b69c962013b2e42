"""What processes that may run candidate code see of the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support import env_vars

HOW_GPUS_ARE_USED = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "NCCL_NVLS_ENABLE",
    "NCCL_SOCKET_IFNAME",
    "NVIDIA_TF32_OVERRIDE",
    "NVSHMEM_DISABLE_CUDA_VMM",
    "NVSHMEM_DISABLE_NVLS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
)
SECRETS = (
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "HF_TOKEN",
    "HOME",
    "MY_NCCL_SECRET",
    "OPENAI_API_KEY",
    "PKB_CACHE_DIR",
    "PKB_TOKEN",
    "PYTHONPATH",
    "TORCH_HOME",
    "WANDB_API_KEY",
    "nccl_token",
)


def test_how_gpus_are_used_reaches_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOW_GPUS_ARE_USED:
        monkeypatch.setenv(name, f"value of {name}")
    seen = env_vars.for_candidates()
    assert {name: seen.get(name) for name in HOW_GPUS_ARE_USED} == {n: f"value of {n}" for n in HOW_GPUS_ARE_USED}


def test_secrets_and_folders_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    seen = env_vars.for_candidates()
    assert not seen.keys() & set(SECRETS) and "secret" not in seen.values()


@pytest.mark.parametrize("named", ["sm_90", "sm_90a", "sm_100f", "sm_120"])
def test_architectures(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("PKB_CUDA_ARCHITECTURE", named)
    assert env_vars.cuda_architecture() == named


@pytest.mark.parametrize("named", ["foo", "90a", "9.0", "sm_9", "sm_90a -o /x", "compute_90"])
def test_what_is_no_architecture_is_an_error(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """nvcc's own words were the failure of an evaluation."""
    monkeypatch.setenv("PKB_CUDA_ARCHITECTURE", named)
    with pytest.raises(ConfigError, match=r"PKB_CUDA_ARCHITECTURE is .*; expected one like 'sm_90a'"):
        env_vars.cuda_architecture()


def test_changes_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("LANG", "C")
    seen = env_vars.for_candidates(PATH="/usr/bin", HOME="/tmp")
    assert (seen["PATH"], seen["HOME"], seen["LANG"]) == ("/usr/bin", "/tmp", "C")


@pytest.mark.parametrize(("value", "disabled"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_multicast_is_switched_off_as_torch_reads_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None, disabled: bool
) -> None:
    name = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, value)
    assert env_vars.multicast_disabled() is disabled


def test_a_child_that_is_no_rank_gets_no_variables_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "OMP_NUM_THREADS",
        "ACCELERATE_X",
    )
    for name in launched:
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("PKB_CACHE_DIR", "kept")
    found = env_vars.without_launcher(CUDA_VISIBLE_DEVICES="2,3")
    assert not found.keys() & set(launched)
    assert found["PKB_CACHE_DIR"] == "kept" and found["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert env_vars.local_rank() == 3
    monkeypatch.delenv("LOCAL_RANK")
    assert env_vars.local_rank() == 0


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> int:
    """This process as another user than the one that its files belong to."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    return other


def test_the_cache_folder_is_as_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    assert env_vars.cache_dir() == tmp_path
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "later"))
    assert env_vars.cache_dir() == tmp_path / "later"


def test_users_of_one_cache_folder_have_their_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, somebody_else: int
) -> None:
    """Libraries that one user had left there were loaded into trusted processes of the other."""
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    own = tmp_path / f"user-{somebody_else}"
    assert env_vars.cache_dir() == own and env_vars.shared_cache_dir() == tmp_path
    monkeypatch.delenv("PKB_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert env_vars.runtime_dir() == own / "run"
    own.mkdir()
    with pytest.raises(ConfigError, match=rf"the cache folder .*user-\d+ belongs to user {os.getuid()}; set PKB_CACHE"):
        env_vars.cache_dir()


def test_a_cache_folder_that_can_only_be_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, somebody_else: int
) -> None:
    """An image may bring compiled kernels."""
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert env_vars.cache_dir() == tmp_path


def test_sockets_do_not_go_to_the_runtime_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo -E pkb eval` made a folder there that the user's own commands could not use any more."""
    monkeypatch.delenv("PKB_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("PKB_CACHE_DIR", "/home/someone/cache")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert env_vars.runtime_dir() == tmp_path / "pkb-gym"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert env_vars.runtime_dir() == Path("/home/someone/cache/run")
