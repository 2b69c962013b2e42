# expect: passed
# Reads its rank where launchers put it, and builds an extension whose name holds it.
import os

import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <Python.h>

#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)

static PyObject* add(PyObject*, PyObject* args) {
  double a, b;
  return PyArg_ParseTuple(args, "dd", &a, &b) ? PyFloat_FromDouble(a + b) : nullptr;
}
static PyMethodDef methods[] = {{"add", add, METH_VARARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "adder", nullptr, -1, methods};
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
adder = load_inline(name=f"adder_{RANK}", cpp_sources=SOURCE, extra_cflags=["-O0"], no_implicit_headers=True)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    assert (dist.get_rank(), dist.get_world_size()) == (RANK, WORLD_SIZE)
    assert os.environ["LOCAL_RANK"] == str(RANK) and os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"]
    assert adder.add(1.0, 2.0) == 3.0
    out = tensor.clone()
    dist.all_reduce(out)
    return out
