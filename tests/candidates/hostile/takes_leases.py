# expect: runtime_error refused 2 of 2
# Leases on files of the system: whoever opens one waits for its holder, compilers of other candidates too.
import fcntl
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    refused = 0
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
        with open(os.__file__) as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
            except PermissionError:
                refused += 1
    raise RuntimeError(f"refused {refused} of 2")
