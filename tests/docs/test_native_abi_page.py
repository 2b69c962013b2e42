"""docs/native-abi.md shows the signature as it is generated, and its worked examples are judged right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.library_headers import STANDARD
from pkb_gym.engine.compile.nvcc import FLAGS, compile_cuda, nvcc_available
from pkb_gym.engine.compile.toolchain import exports_solution
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.check_report import Race
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.problems.catalogue import find_problem
from tests.docs.pages import DOCS, ROOT, code_blocks
from tests.engine.compiling import cpp_errors
from tests.engine.joined_libraries import can_join, compile_together, joined
from tests.whole_tables import sampled

PAGE = DOCS / "native-abi.md"
INCLUDE = ROOT / "pkb_gym" / "engine" / "include" / "pkb"
ON_GPUS = PAGE.read_text(encoding="utf-8").split("## On GPUs")[1].split("## Errors and limits")[0]


def test_the_signature_is_the_generated_one():
    shown = code_blocks(PAGE, "signature")
    assert shown, "the page shows no signature"
    for name, text in shown.items():
        assert text == cpp_signature(find_problem(name))


EXAMPLES = code_blocks(PAGE, "evaluate")
MOVED_BYTES = {"ReduceScatter": (0, 0), "AllReduce": (32 * 48 * 2, 0), "AllGather": (0, 32 * 48 * 2)}
"""By `put` and by `get` a call, with one peer, of the examples for the CPU."""


WAITS = [
    (name, found.span())
    for name, source in EXAMPLES.items()
    for found in re.finditer(r"comm\.(?:barrier|wait)\([^;]*\);", source)
]


def without(name: str, place: tuple[int, int]) -> str:
    """An example that lacks a call."""
    return EXAMPLES[name][: place[0]] + ";" + EXAMPLES[name][place[1] :]


@pytest.fixture(scope="module")
def compiled(compiled_before: Path) -> None:
    """The examples for the CPU, and what lacks a wait."""
    sources = [*(EXAMPLES[name] for name in MOVED_BYTES), *(without(*wait) for wait in sampled(WAITS, 2))]
    compile_together(sources, CompileCache.in_folder(compiled_before))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", MOVED_BYTES)
def test_examples_for_the_cpu_pass(name, evaluator):
    config = EvalConfig(device="cpu", world_size=2, size="tiny", timing_budget_s=0.05)
    assert cpp_errors(EXAMPLES[name]) == ""
    feedback = evaluator.evaluate(find_problem(name), EXAMPLES[name], config)
    assert feedback.passed and feedback.stage is Stage.PROFILE, feedback.message
    assert (feedback.profile.ranks[0].put_bytes, feedback.profile.ranks[0].got_bytes) == MOVED_BYTES[name]


def test_every_example_for_the_cpu_is_judged():
    assert EXAMPLES.keys() == MOVED_BYTES.keys()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("name", "place"), sampled(WAITS, 2), ids=lambda value: value if isinstance(value, str) else str(value[0])
)
def test_every_wait_of_an_example_is_needed(name, place, evaluator):
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
    failure = evaluator.evaluate(find_problem(name), without(name, place), config).failure
    # Without its only wait a kernel cannot be given time: then it is simply wrong.
    assert failure in (Failure.RACE, Failure.OUTPUT_MISMATCH)


def test_every_kind_of_race_is_on_the_page():
    for kind in get_args(Race.model_fields["kind"].annotation):
        assert f"| `{kind}` |" in PAGE.read_text(encoding="utf-8"), kind


KERNELS = ("push_and_add", "exchange_and_add")
"""Names of the kernels of the examples for GPUs, which are also the names of their files."""


def cuda_example(name: str) -> str:
    """The source of an example for GPUs, which the page links."""
    assert f"(kernels/{name}.cu)" in ON_GPUS
    return (DOCS / "kernels" / f"{name}.cu").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The examples for GPUs, compiled together."""
    sources = [cuda_example(name) for name in KERNELS]
    assert all(map(can_join, sources)), "each exports one `solution`"
    first, second = ({line for line in source.splitlines() if line.startswith("#include")} for source in sources)
    assert first <= second, "the second takes no include from the first"
    cache = CompileCache(tmp_path_factory.mktemp("compiled"))
    return compile_cuda(joined(sources, "kernel.cu"), cache, timeout_s=200.0)


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("number", range(len(KERNELS)), ids=KERNELS)
def test_examples_for_gpus_compile(number: int, library: Artifact):
    assert library.ok, library.log
    assert library.log == "", "a page's example has no warnings"
    assert exports_solution(library.binary)
    found = [kernel for kernel in library.kernels if kernel.name.startswith(f"source_{number}::")]
    (kernel,) = [(each.name.partition("::")[2], each.spill_store_bytes) for each in found]
    assert kernel == (KERNELS[number], 0)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "size"), [(KERNELS[0], "tiny"), (KERNELS[0], "published"), (KERNELS[1], "tiny")])
def test_examples_for_gpus_pass(evaluator, name, size):
    world_size = min(2, len(gpus.names()))
    config = EvalConfig(device="cuda", world_size=world_size, size=size, timing_budget_s=0.2)
    feedback = evaluator.evaluate(find_problem("AllReduce"), cuda_example(name), config)
    assert feedback.passed and feedback.stage is Stage.PROFILE, feedback.message


def test_the_flags_of_nvcc_are_those_shown():
    for flag in (STANDARD, *FLAGS):
        assert flag in ON_GPUS, flag


def test_every_header_for_gpus_is_on_the_page():
    for header in INCLUDE.glob("*.h"):
        if header.name not in ("comm.h", "host_comm.h", "symm.h", "symm_cpu.h", "bf16.h", "fp16.h"):
            assert f"`pkb/{header.name}`" in PAGE.read_text(encoding="utf-8"), header.name
    for name in re.findall(r"`pkb/(\w+\.h)`", PAGE.read_text(encoding="utf-8")):
        assert (INCLUDE / name).is_file(), name


MEMBERS = ["group", "peer", "put", "get", "signal", "wait", "barrier", "scratch"]
DEVICE_MEMBERS = [
    *("peer", "scratch", "signal", "wait", "put", "get", "barrier_blocks"),
    *("arrive_blocks", "wait_blocks", "signal_block", "wait_block"),
    *("signal_begun", "wait_begun", "wait_all_begun", "hold"),
    *("group_size", "group_rank", "group_member", "signal_word"),
]


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("header", ["symm_cpu.h", "symm_cuda.h"])
def test_every_public_member_is_on_the_page(member, header):
    own = (INCLUDE / header).read_text(encoding="utf-8").split("class Comm ")[1].split("private:")[0]
    declared = (INCLUDE / "host_comm.h").read_text(encoding="utf-8") + own
    assert re.search(rf"\b{member}\(", declared), f"{member} is no longer in {header}"
    assert f"`comm.{member}" in PAGE.read_text(encoding="utf-8")


def test_every_member_for_kernels_is_on_the_page():
    device = (INCLUDE / "symm_cuda.h").read_text(encoding="utf-8").split("class Device ")[1].split("private:")[0]
    declared = set(re.findall(r"__device__ (?:__forceinline__ )?[\w*]+ (\w+)\(", device))
    assert declared == set(DEVICE_MEMBERS)
    for member in DEVICE_MEMBERS:
        assert f"`comm.{member}" in ON_GPUS, member
