# expect: runtime_error moved: none; kernel objects: none
# needs: bubblewrap
# Looks for counters of the whole machine that a candidate can move and a later one read, by reading all of /proc before
# and after work that moves them: memory, files, switches between threads, interrupts.
import os
import threading
import time
from collections.abc import Iterator

import torch

NOT_COUNTERS = {"self", "thread-self", "net", "ns_last_pid", "sysrq-trigger", "uuid"}
"""Of the gang's own processes and network; a random number."""
OBJECTS = ("kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "keys", "slabinfo", "timer_list", "irq", "fs")


def readable(folder: str = "/proc") -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name in NOT_COUNTERS or entry.name.isdigit() or entry.is_symlink():
            continue
        if entry.is_dir():
            yield from readable(entry.path)
        else:
            yield entry.path


def content(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 18)
    except OSError:
        return b""
    finally:
        os.close(fd)


def work() -> None:
    tensors = [torch.ones(1 << 20) for _ in range(16)]
    for number in range(50):
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(1 << 16))
        thread = threading.Thread(target=time.sleep, args=(0.01,))
        thread.start()
        thread.join()
    del tensors


def solution(tensor: torch.Tensor) -> torch.Tensor:
    before = {path: content(path) for path in readable()}
    work()
    moved = sorted(path for path, text in before.items() if content(path) != text)
    objects = [name for name in OBJECTS if content(f"/proc/{name}") or list_of(f"/proc/{name}")]
    raise RuntimeError(f"moved: {', '.join(moved) or 'none'}; kernel objects: {', '.join(objects) or 'none'}")


def list_of(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []
