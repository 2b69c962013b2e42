# expect: passed
# world_size: 2
# Builds a C++ extension when it is imported; the ranks, which may start no compiler, get what was built.
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <Python.h>

static PyObject* add(PyObject*, PyObject* args) {
  double a, b;
  return PyArg_ParseTuple(args, "dd", &a, &b) ? PyFloat_FromDouble(a + b) : nullptr;
}
static PyMethodDef methods[] = {{"add", add, METH_VARARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "adder", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_adder() { return PyModule_Create(&module); }
"""
adder = load_inline(name="adder", cpp_sources=SOURCE, extra_cflags=["-O0"], no_implicit_headers=True)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    assert adder.add(1.0, 2.0) == 3.0
    out = tensor.clone()
    dist.all_reduce(out)
    return out
