"""`utils.parallelkittens_runtime`, with a class in the place of ThunderKittens' and without GPUs."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension as cpp_extension

from pkb_gym.engine.rankside import builder, python
from pkb_gym.engine.wire.orders import FILE_NAME
from tests.engine.header_libraries import thunderkittens, write

RANK, WORLD_SIZE = 1, 2


class TKParallelTensor:
    """What an extension binds: it keeps its arguments."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.data_ = torch.ones(args[0], dtype=args[1])

    def data(self) -> torch.Tensor:
        return self.data_


@pytest.fixture
def extension() -> ModuleType:
    module = ModuleType("extension")
    vars(module)["TKParallelTensor"] = TKParallelTensor
    return module


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the module as candidates do, as rank 1 of 2 on a machine with the headers."""
    header = {"include/pyutils/parallel_tensor.cuh": ""}
    monkeypatch.setenv("THUNDERKITTENS_ROOT", str(write(thunderkittens(tmp_path), **header)))
    monkeypatch.syspath_prepend(python.SHIMS)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: WORLD_SIZE)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: RANK)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    # A candidate that another test has loaded in this process would count as the source that the class is built for.
    monkeypatch.delitem(linecache.cache, FILE_NAME, raising=False)

    def fresh() -> ModuleType:
        forget()
        return importlib.import_module("utils.parallelkittens_runtime")

    yield fresh
    forget()


def forget() -> None:
    """As if `utils` had not been imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "utils"]:
        del sys.modules[name]


@pytest.fixture
def runtime(load: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, on a machine without multicast."""
    module = load()
    group = SimpleNamespace(get_rank=lambda: RANK, get_world_size=lambda: WORLD_SIZE, barrier=lambda: None)
    monkeypatch.setattr(module, "dist", group)
    monkeypatch.setattr(module, "_has_multicast", lambda: False)
    return module


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        (((4, 8), torch.bfloat16), {}),
        ((torch.Size([4, 8]), torch.bfloat16, RANK, WORLD_SIZE, False), {}),
        (([4, 8], torch.bfloat16, WORLD_SIZE), {"device": torch.device("cuda", RANK)}),
        ((), {"shape": (4, 8), "dtype": torch.bfloat16, "local_rank": RANK, "local_world_size": WORLD_SIZE}),
    ],
)
def test_equal_arguments_in_any_form_give_one_tensor(
    runtime: Any, extension: ModuleType, args: Any, keywords: Any
) -> None:
    first = runtime.get_or_create_parallel_tensor(extension, (4, 8), torch.bfloat16)
    assert first.args == ([4, 8], torch.bfloat16, RANK, WORLD_SIZE, False)
    assert runtime.get_or_create_parallel_tensor(extension, *args, **keywords) is first
    assert runtime.get_or_create_parallel_tensor(TKParallelTensor, *args, **keywords) is first
    assert runtime.get_or_create_parallel_tensor(extension, "other", *args, **keywords) is not first
    assert runtime.get_or_create_parallel_tensor(extension, (8, 4), torch.bfloat16) is not first
    assert runtime.get_or_create_parallel_tensor(extension, (4, 8), torch.float32) is not first


def test_no_rank_gets_a_barrier_before_all_are_zero(runtime: Any, extension: ModuleType) -> None:
    made: list[torch.Tensor] = []
    met: list[bool] = []

    class Counters(TKParallelTensor):
        def data(self) -> torch.Tensor:
            made.append(self.data_)
            return self.data_

    runtime.dist.barrier = lambda: met.append(bool((made[-1] == 0).all()))
    barrier = runtime.get_or_create_barrier(Counters, shape=(1, 64), multicast=False)
    assert met == [True]
    assert runtime.get_or_create_barrier(Counters, shape=(1, 64), multicast=False) is barrier and len(met) == 1
    assert runtime.get_or_create_parallel_tensor(Counters, (1, 64), torch.int32) is not barrier


def test_without_multicast_the_error_names_what_fails(
    runtime: Any, extension: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in (runtime.get_or_create_parallel_tensor, runtime.get_or_create_barrier):
        with pytest.raises(RuntimeError, match=r"multicast is not available(?s:.*)barrier_t, barrier_all"):
            function(extension, (4, 8), torch.int32, multicast=True)
    with pytest.warns(UserWarning, match="made without multicast"):
        assert runtime.get_or_create_barrier(extension).args == ([1, 1], torch.int32, RANK, WORLD_SIZE, False)
    monkeypatch.setattr(runtime, "_has_multicast", lambda: True)
    assert runtime.get_or_create_barrier(extension).args[-1] is True
    assert runtime.get_or_create_parallel_tensor(extension, (4, 8), torch.int32, True).args[-1] is True


def test_ranks_that_thunderkittens_would_not_find_are_refused(
    runtime: Any, extension: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*args: Any, **keywords: Any) -> None:
        runtime.get_or_create_parallel_tensor(extension, (4, 8), torch.int32, *args, **keywords)

    with pytest.raises(ValueError, match="local_rank is 0; expected 1"):
        make(0, 2)
    with pytest.raises(ValueError, match="local_world_size is 8; expected 2"):
        make(8)
    with pytest.raises(ValueError, match="device is cuda:0; expected cuda:1"):
        make(device="cuda:0")
    with pytest.raises(TypeError, match=r"expected an extension, a name, .*got Tensor"):
        make(torch.zeros(1))
    with pytest.raises(TypeError, match="more than one value for shape"):
        make(shape=(4, 8))
    with pytest.raises(TypeError, match="no dtype"):
        runtime.get_or_create_parallel_tensor(extension, (4, 8))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(RuntimeError, match=r"needs a GPU for each rank, .*rank 1 has GPU 0"):
        make()


def test_a_build_goes_on_without_a_gpu(runtime: Any, extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """ThunderKittens would end the process instead."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError) as raised:
        runtime.get_or_create_barrier(extension)
    assert any(words in str(raised.value) for words in builder.NEEDS_A_GPU)


def test_the_class_is_found_where_no_extension_is_named(runtime: Any, extension: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="no extension here binds TKParallelTensor"):
        runtime.get_or_create_parallel_tensor(ModuleType("binds_nothing"), (4, 8), torch.int32)
    base = type("pybind11_object", (), {})  # as pybind11 names it
    bound = type("TKParallelTensor", (TKParallelTensor, base), {})
    for first in ([], [ModuleType("binds_nothing")]):
        assert type(runtime.get_or_create_parallel_tensor(*first, (4, 8), torch.int32)) is bound


@pytest.mark.parametrize(("text", "built"), [("m.def();", 1), ("BIND_TK_PARALLEL_TENSOR(m);", 0)])
def test_the_class_is_built_for_sources_that_do_not_bind_it(
    load: Any, monkeypatch: pytest.MonkeyPatch, text: str, built: int
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(cpp_extension, "load_inline", lambda **build: calls.append(build))
    monkeypatch.setitem(linecache.cache, FILE_NAME, (len(text), None, [text], FILE_NAME))
    load()
    assert len(calls) == built
    for call in calls:
        assert "BIND_TK_PARALLEL_TENSOR(m)" in call["cuda_sources"][0]
        assert {"-std=c++20", "-DKITTENS_HOPPER"} <= set(call["extra_cuda_cflags"])


def test_without_headers_the_import_says_so(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDERKITTENS_ROOT", str(thunderkittens(tmp_path / "older")))
    with pytest.raises(ImportError, match=r"older has no include/pyutils/parallel_tensor.cuh; set it to a checkout"):
        load()
    monkeypatch.delenv("THUNDERKITTENS_ROOT")
    with pytest.raises(ImportError, match="THUNDERKITTENS_ROOT is not set; set it to a checkout"):
        load()
