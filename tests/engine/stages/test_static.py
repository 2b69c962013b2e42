"""Texts that no compiler needs to see, and which dialect a text is of."""

from __future__ import annotations

from pathlib import Path

import pytest

import pkb_gym
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages.static import (
    MAX_SOURCE_BYTES,
    Rejected,
    calls_torch_distributed,
    check_text,
    detect_language,
    makes_streams,
)
from pkb_gym.problems.catalogue import find_problem

CPP = '#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);\n'
PYTHON = "import torch\n\n\ndef solution(tensor):\n    return tensor\n"

REJECTED = {
    "empty": ("", "the source is empty"),
    "blank": (" \n\t\r\n\u2003", "the source is empty"),
    "over-long": (CPP + "//" + "x" * MAX_SOURCE_BYTES, f"at most {MAX_SOURCE_BYTES} are accepted"),
    "over-long in bytes": (CPP + "//" + "\u00e9" * (MAX_SOURCE_BYTES // 2), "at most"),
    "lone surrogate": (CPP + "// \ud800", f"not valid Unicode text (position {len(CPP) + 3}"),
    "NUL": (CPP + "\0", f"NUL character at position {len(CPP)}"),
    "absolute include": ('#include "/etc/passwd"\n' + CPP, "refers to a file of this machine"),
    "absolute include in brackets": ("#  include  </etc/passwd>\n" + CPP, "refers to a file of this machine"),
    "include upwards": ('#include "../../secrets.h"\n' + CPP, "refers to a file of this machine"),
    "embed": ('#embed "/etc/passwd"\n' + CPP, "refers to a file of this machine"),
    "incbin": ('asm(".incbin \\"/etc/passwd\\"");\n' + CPP, "refers to a file of this machine"),
    "has_include": ('#if __has_include("/etc/passwd")\n#endif\n' + CPP, "refers to a file of this machine"),
    "no solution in C++": ("#include <vector>\nint main() {}\n", "never mentions `solution`"),
    "prose": ("I am sorry, I cannot help with that.", "never mentions `solution`"),
}


@pytest.mark.parametrize(("source", "words"), REJECTED.values(), ids=list(REJECTED))
def test_what_is_no_source_is_rejected(source: str, words: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_text(source, detect_language(source, "cpu"))
    assert words in str(caught.value)


@pytest.mark.parametrize(("source", "words"), REJECTED.values(), ids=list(REJECTED))
def test_a_rejected_text_is_a_record_like_any_other(tmp_path, source: str, words: str) -> None:
    """No process is started, and the record survives JSON whatever the text holds."""
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        feedback = evaluator.evaluate(find_problem("AllReduce"), source, EvalConfig(device="cpu"))
        assert not evaluator._zygotes
    assert (feedback.stage, feedback.failure) == (None, Failure.REJECTED)
    assert words in feedback.message
    assert type(feedback).model_validate_json(feedback.model_dump_json()) == feedback


@pytest.mark.parametrize(
    "source", [CPP, PYTHON, CPP + "// h\u00e9\U0001f600\n", CPP.replace("\n", "\r\n"), "\ufeff" + CPP]
)
def test_sources_are_accepted(source: str) -> None:
    check_text(source, detect_language(source, "cpu"))


@pytest.mark.parametrize(
    ("source", "language"),
    [
        (CPP, "cpp"),
        (PYTHON, "python"),
        ("from torch import nn\n" + PYTHON, "python"),
        ('"""doc"""\n' + PYTHON, "python"),
        # A kernel inside a Python text, and the other way round: what comes first decides.
        (PYTHON + 'SOURCE = """\n#include <torch/extension.h>\n"""\n', "python"),
        ("/*\n#include <a>\nimport torch\n*/\n" + CPP, "cpp"),
        ("nothing of either kind", "cpp"),
    ],
)
def test_the_dialect_is_told_by_the_text(source: str, language: str) -> None:
    assert detect_language(source, "cpu") == language


def test_triton_and_cuda_are_told_apart_on_a_gpu() -> None:
    assert detect_language("import triton\n" + PYTHON, "cuda") == "triton"
    assert detect_language(PYTHON, "cuda") == "python"
    assert detect_language(CPP, "cuda") == "cuda"


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("import torch.distributed as dist\ndist.all_reduce(x)", True),
        ("import torch\ntorch.distributed.all_gather(x, y)", True),
        ("from torch.distributed import broadcast\nbroadcast(x, 0)", True),
        ("import torch.distributed as dist\ndist.get_rank()", False),
        ("# dist.all_reduce(x)\nmine.all_reduce(x)", False),
        ("def broken(:", False),
        ("(" * 10_000, False),
    ],
)
def test_calls_of_the_baselines_library_are_seen(source: str, calls: bool) -> None:
    assert calls_torch_distributed(source) is calls


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
    ],
)
def test_whether_a_kernel_makes_streams(source: str, streams: bool) -> None:
    assert makes_streams(source) is streams


def test_headers_make_streams_where_it_is_known() -> None:
    headers = (Path(pkb_gym.__file__).parent / "engine/include/pkb").glob("*.h")
    making = {header.name for header in headers if "StreamCreate" in header.read_text()}
    assert making == {"transfer_cuda.h"}, "`makes_streams` must know what kernels call of it"
