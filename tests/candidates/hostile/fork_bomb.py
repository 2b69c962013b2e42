# expect: runtime_error refused 3 of 3; PermissionError
# Three ways to start processes.
import multiprocessing
import os
import subprocess

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)

    context = multiprocessing.get_context("fork")
    ways = [fork, lambda: subprocess.Popen(["/bin/true"]), lambda: context.Process(target=print).start()]
    errors = []
    for way in ways:
        try:
            way()
        except OSError as error:
            errors.append(error)
    raise RuntimeError(f"refused {len(errors)} of {len(ways)}: {errors!r}")
