# expect: runtime_error refused 8 of 8; its threads may be named
# needs: bubblewrap
# Opens settings of the machine and the memory of the process that watches over it; it writes nothing there. The names of
# its own threads, which CUDA sets, are its to choose.
import os
import threading

import torch

MACHINE = ("sys/kernel/hostname", "sys/kernel/core_pattern", "sys/vm/overcommit_memory", "sys/net/ipv4/ip_forward")
OTHERS = ("sysrq-trigger", "irq/default_smp_affinity", "1/mem", f"{os.getppid()}/mem")


def solution(tensor: torch.Tensor) -> torch.Tensor:
    refused = 0
    for name in MACHINE + OTHERS:
        try:
            os.close(os.open(f"/proc/{name}", os.O_WRONLY))
        except OSError:
            refused += 1
    named = []
    for thread in ("self", f"self/task/{threading.get_native_id()}"):
        with open(f"/proc/{thread}/comm", "w") as file:
            file.write("renamed")
        with open(f"/proc/{thread}/comm") as file:
            named.append(file.read() == "renamed\n")
    raise RuntimeError(f"refused {refused} of 8" + ("; its threads may be named" if all(named) else ""))
