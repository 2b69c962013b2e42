"""Checks of the text alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import pkb_gym
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.static import (
    MAX_IMPORT_DOTS,
    MAX_PARSED_CHARS,
    calls_torch_distributed,
    check_statically,
    makes_streams,
)
from tests.engine.stages.fake_gangs import KERNEL, PYTHON, builder


def test_a_text_that_is_no_source_stops_here() -> None:
    feedback = builder(source="I am sorry, I cannot help with that.")
    with pytest.raises(Stopped):
        check_statically(feedback)
    found = feedback.build()
    assert (found.failure, found.stage, found.message) == (Failure.REJECTED, None, feedback.source.defect)


@pytest.mark.parametrize(
    ("source", "calls"),
    [(KERNEL, None), (PYTHON, True), ("def solution(tensor):\n    return tensor\n", False)],
    ids=["native", "baseline", "module"],
)
def test_modules_are_looked_through_for_collectives(source: str, calls: bool | None) -> None:
    feedback = builder(source=source)
    check_statically(feedback)
    assert feedback.calls_torch_distributed is calls and not feedback.failed


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("import torch.distributed as dist\ndist.all_reduce(x)", True),
        ("import torch\ntorch.distributed.all_gather(x, y)", True),
        ("from torch.distributed import broadcast\nbroadcast(x, 0)", True),
        ("import torch.distributed as dist\ndist.get_rank()", False),
        ("# dist.all_reduce(x)\nmine.all_reduce(x)", False),
        ("torch.other.distributed.all_reduce(x)", False),
        ("def broken(:", False),
        ("(" * 10_000, False),
    ],
)
def test_calls_of_the_baselines_library_are_seen(source: str, calls: bool) -> None:
    assert calls_torch_distributed(source) is calls


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        ("#include <nvshmem.h>\n", {}, None),
        ("#include <nvshmem.h>\n", {"ranks_per_gpu": 2}, "2 ranks share one"),
        ("#include <nvshmem.h>\n", {"sanitize": ["memcheck"]}, "leave out `sanitize`"),
        ("#include <nccl_device.h>\n", {}, None),
        ("#include <nccl_device.h>\n// ncclGin would not do\n", {}, None),
        ("#include <nccl_device.h>\nncclGin gin(comm, 0);\n", {}, "ncclGin: NCCL's GIN goes through network adapters"),
        ("#include <cuda.h>\nint ncclGin;\n", {"ranks_per_gpu": 2}, None),
    ],
)
def test_what_nvshmem_and_nccl_cannot_do_here(source: str, settings: dict[str, object], words: str | None) -> None:
    """A source that does not include either is never refused."""
    feedback = builder(gpus=2, source=f'{source}#include "pkb/symm.h"\nvoid solution();\n', language="cuda", **settings)
    if words is None:
        check_statically(feedback)
        assert feedback.calls_torch_distributed is None
        return
    with pytest.raises(Stopped):
        check_statically(feedback)
    found = feedback.build()
    assert found.failure is Failure.REJECTED and words in found.message


@pytest.mark.parametrize(
    ("call", "calls"),
    [("ncclAllReduce(a, b, n, t, o, c, s)", True), ("pncclSend (a)", True), ("ncclReduceCopy(a)", None)],
)
def test_a_kernel_that_calls_the_baselines_collectives_is_seen(call: str, calls: bool | None) -> None:
    source = f'#include <nccl.h>\n#include "pkb/symm.h"\nvoid solution() {{ {call}; }}\n// ncclSend()\n'
    feedback = builder(gpus=2, source=source, language="cuda")
    check_statically(feedback)
    assert feedback.calls_torch_distributed is calls


def test_no_text_holds_the_interpreter() -> None:
    """Parsing takes a time that grows with the text, in which no other thread of a service runs."""
    short, long = (f"{'[1,1]' + chr(10)}" * count for count in (MAX_PARSED_CHARS // 6 - 10, MAX_PARSED_CHARS))
    call = "torch.distributed.all_reduce(x)"
    began = time.monotonic()
    assert calls_torch_distributed(short + call) is True
    assert calls_torch_distributed(long + call) is None
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("gap", ["", " ", "\f", "\\\n", "\\\r\n", "\\\r"])
@pytest.mark.parametrize("begin", ["import é.", "from a.", "x = 1; import a."])
def test_names_of_modules_without_end_are_not_parsed(begin: str, gap: str) -> None:
    """A name of 30,000 parts, not in ASCII, took two seconds, and held a service up."""
    call = "torch.distributed.all_reduce(x)"
    longest = f"{begin}{f'é.{gap}' * (MAX_IMPORT_DOTS + 1)}b"
    assert calls_torch_distributed(f"{call}\n{longest}\n") is None
    assert calls_torch_distributed(f"{call}\n{'import a.b.c' + chr(10)}{'x = a.b.c' + chr(10)}" * 1000) is True
    assert calls_torch_distributed(f"{call}\nx = [{'0.5, ' * (MAX_IMPORT_DOTS + 1)}]\n") is True


def test_warnings_about_a_text_are_nobodys_to_read(recwarn: pytest.WarningsRecorder) -> None:
    assert calls_torch_distributed("x = '\\d'\n" * 100 + "torch.distributed.all_reduce(x)") is True
    assert not recwarn


CHAINS = {
    "attributes": "x" + ".a" * 400 + ".all_reduce(y)",
    "of the module": "torch.distributed" + ".a" * 400 + ".all_reduce(y)",
    "many of them": "\n".join(["dist" + ".a" * 90 + ".all_reduce(y)"] * 300),
    "sums": "x = " + "+".join(["1"] * 900),
    "calls": "f" + "()" * 900 + ".all_reduce(y)",
}


@pytest.mark.parametrize("source", CHAINS.values(), ids=list(CHAINS))
def test_long_chains_are_looked_through(source: str) -> None:
    """A chain of 400 attributes was too deep for the function that turned each into text, and cost the evaluation."""
    began = time.monotonic()
    assert calls_torch_distributed(source) is False
    assert calls_torch_distributed(f"{source}\ntorch.distributed.all_reduce(x)") is True
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("depth", [100, 1000, 5000, 20_000])
def test_no_depth_is_too_much(depth: int) -> None:
    for source in ("x" + ".a" * depth, "-" * depth + "1", "x = " + "[" * depth, "f(" * depth + ")" * depth):
        assert calls_torch_distributed(source) is False


@pytest.mark.parametrize(
    ("source", "streams"),
    [
        ("kernel<<<grid, block, 0, (cudaStream_t)comm.stream>>>(x);", False),
        ("cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, stream);", False),
        ("cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);", True),
        ("cuStreamCreateWithPriority(&side, CU_STREAM_NON_BLOCKING, 0);", True),
        ("kernel<<<grid, block, 0, cudaStreamPerThread>>>(x);", True),
        ("kernel<<<grid, block, 0, cudaStreamLegacy>>>(x);", True),
        ("cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, args, 0);", True),
        ("cudaGraphLaunch(graph, stream);", True),
        ("cuGreenCtxStreamCreate(&side, context, 0, 0);", True),
        ("pkb::copy_side_by_side(moves, 4, bytes, comm.cuda_stream());", True),
        ("const pkb::FetchBeside fetch(comm, group);", True),
    ],
)
def test_whether_a_kernel_makes_streams(source: str, streams: bool) -> None:
    assert makes_streams(source) is streams


def test_headers_make_streams_where_it_is_known() -> None:
    headers = (Path(pkb_gym.__file__).parent / "engine/include/pkb").glob("*.h")
    making = {header.name for header in headers if "StreamCreate" in header.read_text()}
    assert making == {"transfer_cuda.h", "fetch_beside_cuda.h"}, "`makes_streams` must know what kernels call of it"
