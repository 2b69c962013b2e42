"""What a configuration comes to: defaults of the device, and what cannot be met."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import DIALECTS, EvalConfig, ResolvedConfig, default_world_size, resolve
from pkb_gym.engine.records.config_request import checked_config
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")


def resolved(
    device: str, *, gpus: int = 0, no_detector: str = "", no_gsan: str = "", **requested: object
) -> ResolvedConfig:
    language = "cuda" if device == "cuda" else "cpp"
    return resolve(
        EvalConfig(**requested),
        PROBLEM,
        device=device,  # type: ignore[arg-type]
        language=language,  # type: ignore[arg-type]
        memory_total_bytes=64 << 30,
        gpus=gpus,
        no_detector=no_detector,
        no_gsan=no_gsan,
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
    message = "AllReduce: world size 8 needs as many GPUs; this machine has 4"
    with pytest.raises(ConfigError, match=message):
        resolved("cuda", gpus=4, world_size=8)
    assert resolved("cuda", gpus=4, world_size=2).world_size == 2
    assert resolved("cuda", gpus=0, world_size=8).world_size == 8, "what is only compiled needs none"
    assert resolved("cpu", gpus=1, world_size=8).world_size == 8


@pytest.mark.parametrize(
    ("gpus", "ranks_per_gpu", "world_size"), [(1, 4, 4), (1, 8, 8), (2, 4, 8), (2, 2, 4), (1, 3, 2)]
)
def test_ranks_may_share_gpus(gpus: int, ranks_per_gpu: int, world_size: int) -> None:
    found = resolved("cuda", gpus=gpus, ranks_per_gpu=ranks_per_gpu)
    assert (found.world_size, found.ranks_per_gpu) == (world_size, min(ranks_per_gpu, world_size))
    assert found.until == "check", "nothing is timed then"
    assert found.timeout_s == 10.0 * found.ranks_per_gpu, "they take turns"
    assert resolved("cuda", gpus=gpus, ranks_per_gpu=ranks_per_gpu, until="compile").until == "compile"
    assert resolved("cuda", gpus=gpus, ranks_per_gpu=ranks_per_gpu, timeout_s=3.0).timeout_s == 3.0


def test_one_rank_shares_with_nobody() -> None:
    found = resolved("cuda", gpus=1, ranks_per_gpu=4, world_size=1)
    assert (found.ranks_per_gpu, found.until) == (1, "profile")
    assert resolved("cuda", gpus=2).ranks_per_gpu == 1


def test_too_few_gpus_even_if_ranks_share_them() -> None:
    message = r"world size 8 needs 4 GPUs of 2 ranks each; this machine has 1\. Ranks may share .*: ranks_per_gpu=8$"
    with pytest.raises(ConfigError, match=message):
        resolved("cuda", gpus=1, world_size=8, ranks_per_gpu=2)
    message = r"needs as many GPUs; this machine has 3\. .* until stage 'check': ranks_per_gpu=3"
    with pytest.raises(ConfigError, match=message):
        resolved("cuda", gpus=3, world_size=8)


def test_there_is_no_gpu_to_share_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match="ranks_per_gpu=2 is for device 'cuda'; on device 'cpu' leave it out"):
        resolved("cpu", ranks_per_gpu=2)
    assert resolved("cpu", ranks_per_gpu=1).ranks_per_gpu == 1


def test_defaults_follow_the_device() -> None:
    cpu, cuda = resolved("cpu"), resolved("cuda", gpus=4)
    assert (cpu.size, cpu.timing_budget_s) == ("tiny", 0.2)
    assert (cuda.size, cuda.timing_budget_s) == ("published", 0.4)
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
    assert set(DIALECTS) >= {language} and "dialect" not in ResolvedConfig.model_fields, "the language decides it"


@pytest.mark.parametrize("name", ["seed", "turn", "memory_bytes"])
def test_numbers_are_such_as_every_message_carries(name: str) -> None:
    """A seed of 2**64 ended the reference gang."""
    assert getattr(checked_config({name: 2**63 - 1}), name) == 2**63 - 1
    with pytest.raises(ConfigError, match=rf"{name}=9223372036854775808: expected a whole number.* below 2\*\*63"):
        checked_config({name: 2**63})


@pytest.mark.parametrize("requested", ["auto", "on", "off", "strict"])
@pytest.mark.parametrize(("language", "of_other"), [("cuda", "no_gsan"), ("triton", "no_detector")])
def test_races_of_kernels_on_gpus_are_checked_unless_it_is_asked_not_to(
    requested: str, language: str, of_other: str
) -> None:
    where: dict[str, object] = {"gpus": 2, "language": language, "race_check": requested, of_other: "it is missing"}
    assert resolved("cuda", **where).race_check == {"auto": "on"}.get(requested, requested)
    assert resolved("cuda", **where, until="compile").race_check == "off"


@pytest.mark.parametrize(
    ("device", "language", "missing", "message"),
    [
        ("cpu", "cpp", {}, "races are detected in CUDA sources, on device 'emulated' or 'cuda'"),
        ("cuda", "python", {}, "races are detected in CUDA and Triton sources; this one is 'python'"),
        (
            "cuda",
            "triton",
            {"no_gsan": "Triton 3.6.0 is installed"},
            r"Triton's GSan cannot look for races here: Triton 3.6.0 is installed; rank_emulator.checking "
            r"\(TritonProgram\) checks kernels without a GPU",
        ),
        (
            "cuda",
            "triton",
            {"ranks_per_gpu": 2, "world_size": 4},
            "Triton's GSan cannot look for races here: each rank needs a GPU of its own, and ranks_per_gpu=2; .*",
        ),
        ("cuda", "cuda", {"no_detector": "install nvcc"}, "races cannot be detected here: install nvcc"),
    ],
)
@pytest.mark.parametrize("requested", ["on", "strict"])
def test_where_races_cannot_be_checked_it_is_left_out_or_refused(
    device: str, language: str, missing: dict[str, object], message: str, requested: str
) -> None:
    where: dict[str, object] = {"gpus": 2, "language": language, **missing}
    assert resolved(device, **where).race_check == resolved(device, **where, race_check="off").race_check == "off"
    with pytest.raises(ConfigError, match=f"AllReduce: {message}; leave out race_check='{requested}'"):
        resolved(device, **where, race_check=requested)


@pytest.mark.parametrize(("stored", "found"), [(True, "on"), (False, "off"), ("strict", "strict")])
def test_records_that_name_the_check_otherwise_are_read(stored: object, found: str) -> None:
    for record in (EvalConfig(), resolved("cpu")):
        content = record.model_dump(exclude={"race_check"}) | {"detect_races": stored}
        assert type(record).model_validate(content) == record.model_copy(update={"race_check": found})
    assert EvalConfig.model_validate({"detect_races": None}).race_check == "auto"
    with pytest.raises(ConfigError, match="no choice 'detect_races'"):
        checked_config({"detect_races": 1})
