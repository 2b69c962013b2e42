# expect: passed
# needs: bubblewrap
# twice: true
# Leaves a file wherever it may write, and objects of the kernel; a later candidate must not find them (this one is run
# twice).
import ctypes
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

HOME = Path(os.environ.get("HOME", "/tmp"))
FOLDERS = [Path("/tmp"), Path("/dev/shm"), Path("/dev/mqueue"), Path("/var/tmp"), Path("/run"), Path("/"), Path(), HOME]
FOLDERS += [HOME / name for name in (".nv/ComputeCache", ".triton/cache", ".cache/torch_extensions", ".config")]
FOLDERS += [
    Path(os.environ[name]) for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR") if name in os.environ
]
KEY, PORT, SOCKET = 0x706B62, 47113, "\0pkb-mark"
IPC_CREAT = 0o1000
LIBC = ctypes.CDLL(None)
OBJECTS = {
    "shared memory": lambda flags: LIBC.shmget(KEY, 4096, flags),
    "messages": lambda flags: LIBC.msgget(KEY, flags),
    "semaphores": lambda flags: LIBC.semget(KEY, 1, flags),
}
kept = []


def connects(family: socket.AddressFamily, address: object) -> bool:
    with socket.socket(family) as sock:
        return sock.connect_ex(address) == 0


found = [str(folder) for folder in FOLDERS if (folder / "mark").exists()]
found += [name for name, get in OBJECTS.items() if get(0o600) >= 0]
found += [
    str(address)
    for family, address in ((socket.AF_UNIX, SOCKET), (socket.AF_INET, ("127.0.0.1", PORT)))
    if connects(family, address)
]
if found:
    raise RuntimeError(f"another candidate was here: {', '.join(found)}")


def solution(tensor: torch.Tensor) -> torch.Tensor:
    for folder in FOLDERS:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "mark").touch()
        except OSError:
            pass
    for get in OBJECTS.values():
        get(IPC_CREAT | 0o600)
    if dist.get_rank() == 0 and not kept:
        for family, address in ((socket.AF_UNIX, SOCKET), (socket.AF_INET, ("127.0.0.1", PORT))):
            kept.append(socket.socket(family))
            kept[-1].bind(address)
            kept[-1].listen()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
