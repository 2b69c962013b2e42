"""`pkb/ffi_light.h` in place of the FFI's headers: the same calls, results and errors."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm_ffi

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.library_headers import STANDARD
from pkb_gym.engine.compile.nvcc import LIGHT, compile_cuda, nvcc_available, takes_light_headers
from pkb_gym.engine.compile.toolchain import exports_solution, include_arguments, library_arguments

needs_nvcc = pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
MAGIC, VERSION = 0x504B4243, 3

SOURCE = """
#include <stdexcept>
#include <string>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView x, int64_t n, double a, bool flag, pkb::Comm comm) {
  if (n == -1) TVM_FFI_THROW(ValueError) << "n " << n << ' ' << a << ' ' << flag << sizeof(n) << std::string(" text");
  if (n == -2) TVM_FFI_THROW(TypeError) << x.shape() << " " << x.strides() << " " << x.dtype() << " " << x.ndim();
  if (n == -3) TVM_FFI_THROW(RuntimeError) << a / 3 << " " << 1e30f << " " << uint8_t(65) << " " << ~uint64_t(0);
  if (n == -4) throw std::runtime_error("plain");
  if (n == -5) (void)x.size(7);
  if (n == -6) (void)x.shape().at(9);
  if (n == -7) comm.group(5);
  const bool is_matrix = x.size(-1) == 3 && x.stride(0) == 3 && x.numel() == 6 && x.IsContiguous() && x.dim() == 2;
  if (is_matrix) static_cast<float*>(x.data_ptr())[0] = float(n + a + flag + comm.rank);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> list[Any]:
    """The source, compiled with the FFI's headers and with the light ones."""
    folder = tmp_path_factory.mktemp("light")
    Path(folder, "kernel.cpp").write_text(SOURCE, encoding="utf-8")
    loaded = []
    for name, definitions in (("ffi.so", []), ("light.so", [LIGHT])):
        command = ["g++", STANDARD, "-fPIC", "-shared", *definitions, *include_arguments(), "kernel.cpp", "-o", name]
        subprocess.run([*command, *library_arguments()], cwd=folder, check=True)
        loaded.append(tvm_ffi.load_module(str(folder / name)))
    return loaded


def comm(magic: int = MAGIC, version: int = VERSION, rank: int = 4) -> ctypes.Array[ctypes.c_uint32]:
    """The first words of a `pkb::CommData`, and zeros."""
    return (ctypes.c_uint32 * 2048)(magic, version, rank)


MATRIX, OK = torch.zeros(2, 3), comm()
CALLS: dict[str, tuple[Any, ...]] = {
    "right": (MATRIX, 3, 1.5, True, OK),
    "whole number for a float": (MATRIX, 3, 1, False, OK),
    "number for a bool": (MATRIX, 3, 1, 1, OK),
    "bool for a number": (MATRIX, True, 1, 1, OK),
    **{f"error {-n}": (MATRIX, n, 2.5, True, OK) for n in range(-7, 0)},
    "error in bfloat16": (MATRIX.bfloat16(), -2, 2.5, True, OK),
    "other version": (MATRIX, 3, 1.0, True, comm(version=2)),
    "other magic": (MATRIX, 3, 1.0, True, comm(magic=1)),
    "no communicator": (MATRIX, 3, 1.0, True, 5),
    "None": (MATRIX, 3, 1.0, True, None),
    "too few": (MATRIX, 3),
    "text for a number": (MATRIX, "a", 1.0, True, OK),
    "number for a tensor": (3, 3, 1.0, True, OK),
    "float for a number": (MATRIX, 1.5, 1.0, True, OK),
}
RIGHT = {"right", "whole number for a float", "number for a bool", "bool for a number"}


def outcome(library: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    MATRIX.zero_()
    given = [ctypes.c_void_p(ctypes.addressof(each)) if isinstance(each, ctypes.Array) else each for each in arguments]
    try:
        return library.solution(*given), MATRIX[0, 0].item()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_as_with_the_headers_of_the_ffi(libraries, name):
    of_ffi, light = (outcome(library, CALLS[name]) for library in libraries)
    assert light == of_ffi
    assert isinstance(of_ffi[0], type) == (
        name.split()[0] not in ("right", "whole", "bool") and name != "number for a bool"
    )


TAKEN = '#include "pkb/symm.h"\nvoid solution(tvm::ffi::TensorView x) { TVM_FFI_THROW(E); }\n'


@pytest.mark.parametrize(
    ("source", "is_light"),
    [
        (TAKEN, True),
        (TAKEN + "#include <tvm/ffi/reflection/registry.h>", False),
        (TAKEN + "tvm::ffi::Array<tvm::ffi::Tensor> list;", False),
        (TAKEN + "namespace ffi = tvm::ffi; ffi::String text;", False),
        (TAKEN + "using namespace tvm::ffi;", False),
        (TAKEN + "TVM_FFI_ICHECK(true);", False),
        ("__global__ void kernel() {}", False),
    ],
)
def test_sources_that_name_more_of_the_ffi_take_its_headers(source, is_light):
    assert takes_light_headers(source) == is_light


@needs_nvcc
def test_a_source_that_uses_what_the_headers_of_the_ffi_include_compiles(tmp_path):
    """std::vector came with them."""
    body = "void solution(tvm::ffi::TensorView x, pkb::Comm comm) { std::vector<int> v{1}; (void)v; }"
    source = f'#include "pkb/symm.h"\n{body}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);\n'
    assert takes_light_headers(source)
    artifact = compile_cuda(source, CompileCache(tmp_path), 300.0)
    assert artifact.binary is not None and exports_solution(artifact.binary), artifact.log
