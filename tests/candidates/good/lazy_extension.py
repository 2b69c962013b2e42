# expect: passed
# world_size: 2
# Builds its extensions when they are first needed, as rank 0 alone would: the build happens when the source is compiled.
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <Python.h>

static PyObject* add(PyObject*, PyObject* args) {
  double a, b;
  return PyArg_ParseTuple(args, "dd", &a, &b) ? PyFloat_FromDouble(a + b + OFFSET) : nullptr;
}
static PyMethodDef methods[] = {{"add", add, METH_VARARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "adder", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_NAME() { return PyModule_Create(&module); }
"""
SECOND = SOURCE.replace("NAME", "second").replace("OFFSET", "1")
_first = None


def _build(offset: int = 0):
    source = SOURCE.replace("NAME", "first").replace("OFFSET", str(offset))
    return load_inline(name="first", cpp_sources=source, extra_cflags=["-O0"], no_implicit_headers=True)


def _get_first():
    global _first
    if _first is None:
        if dist.get_rank() == 0:
            _build()
        dist.barrier()
        _first = _build()
    return _first


def solution(tensor: torch.Tensor) -> torch.Tensor:
    second = load_inline(name="second", cpp_sources=SECOND, extra_cflags=["-O0"], no_implicit_headers=True)
    assert _get_first().add(1.0, 2.0) == 3.0
    assert second.add(1.0, 2.0) == 4.0
    out = tensor.clone()
    dist.all_reduce(out)
    return out
