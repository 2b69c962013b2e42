# expect: compile_error cannot be imported; main.cpp:2; expected
# An extension that is built at the first call only, and has an error.
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = "#include <Python.h>\nint broken(  { return 0; }\n"


def solution(tensor: torch.Tensor) -> torch.Tensor:
    load_inline(name="broken", cpp_sources=SOURCE, extra_cflags=["-O0"], no_implicit_headers=True)
    return tensor
