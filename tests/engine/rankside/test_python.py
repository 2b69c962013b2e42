"""Executing sources that are no files: candidates of the python dialect and references."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pkb_gym.engine.rankside import python
from pkb_gym.engine.rankside.python import execute, import_what_first_calls_import
from pkb_gym.problems.catalogue import find_problem, reference_source

SOURCE = """\
def solution(x):
    return x + 1
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/else")
    return tmp_path


@pytest.mark.parametrize("name", ["candidate.py", "reference.py"])
def test_the_text_of_functions_is_found(name: str, own_folder: Path) -> None:
    """Triton compiles a kernel from its text, which lies in no file."""
    module = ModuleType("a_module")
    execute(SOURCE, module, name)
    assert module.solution(1) == 2
    assert inspect.getsource(module.solution) == SOURCE
    assert not (own_folder / name).exists()


def test_kernels_are_cached_in_the_folder_of_the_gang(own_folder: Path) -> None:
    """A cache in the home folder outlives the gang: one candidate could leave there what a later reference loads."""
    module = ModuleType("a_module")
    execute("import os\nfound = os.environ['TRITON_CACHE_DIR']", module)
    assert module.found == str(own_folder / "triton")


@pytest.mark.parametrize("name", ["BlockedFP8Quantize", "BlockedFP8Dequantize"])
def test_references_with_a_triton_kernel_load_without_triton(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # as where it is not installed
    module = ModuleType("reference")
    execute(reference_source(find_problem(name)), module, "reference.py")
    assert module.triton is None and callable(module.solution)


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import torch\nadam = torch.optim.Adam", ["torch._dynamo"]),
        ("import torch.distributed._functional_collectives as funcol", ["torch._dynamo"]),
        ("compiled = torch.compile(solution, backend='eager')", ["torch._dynamo"]),
        ("@torch.compiler.disable\ndef solution(x): ...", ["torch._dynamo"]),
        ("slope = torch.func.grad(loss)(x)", ["torch._dynamo"]),
        ("from torch.autograd.functional import jvp", ["torch._dynamo"]),
        ("from torch.utils.checkpoint import checkpoint", ["torch._dynamo"]),
        ("from torch.nn.attention.flex_attention import flex_attention", ["torch._dynamo"]),
        ("model = torch.nn.parallel.DistributedDataParallel(model)", ["torch._dynamo"]),
        ("from torch.distributed.fsdp import fully_shard", ["torch._dynamo"]),
        ("from torch.distributed.tensor import Shard, distribute_tensor", ["torch._dynamo"]),
        ("optimal = optimise(torch.compiled)", []),
        ("functional, checkpoints = torch.nn.functional, x.tensor", []),
    ],
)
def test_what_first_calls_import_is_imported_when_the_source_is_loaded(
    source: str, imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds, which a call does not have on a busy machine."""
    found: list[str] = []
    monkeypatch.setattr(python.importlib, "import_module", found.append)
    import_what_first_calls_import(source)
    assert found == imported
