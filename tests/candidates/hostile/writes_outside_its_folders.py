# expect: runtime_error refused 9 of 9
# needs: bubblewrap
# Opens for writing what the next candidate, or the machine, would see; it writes nothing.
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    new = ("/mark", "/dev/mark", "/etc/mark", "/usr/mark", "/pkb/mark", "/proc/mark")
    old = ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", os.__file__)
    refused = 0
    for path, flags in [(path, os.O_CREAT) for path in new] + [(path, 0) for path in old]:
        try:
            os.close(os.open(path, os.O_WRONLY | flags))
        except OSError:
            refused += 1
    raise RuntimeError(f"refused {refused} of {len(new) + len(old)}")
