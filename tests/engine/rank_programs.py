"""A rank program for tests of gangs: carries out orders."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
import time
from dataclasses import dataclass

from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Armed, Failed, Go


@dataclass(frozen=True)
class Do(WireMessage):
    """What each rank is to do."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Did(WireMessage):
    """What a rank has done, and the bytes that came with its order."""

    word: str
    rank: int
    world_size: int
    pid: int
    nbytes: int


def main(wire: Wire, rank: int, world_size: int) -> None:
    while True:
        order, raw, fds = wire.receive_with_fds(Do)
        word = order.words[rank]
        act(word, wire)
        for fd in fds:
            os.close(fd)
        wire.send(Did(word, rank, world_size, os.getpid(), len(raw)))


def read_for_long() -> None:
    """One call of the kernel that takes a while, and that no signal interrupts."""
    fd = os.memfd_create("long")
    piece = bytearray(2 << 20)
    os.ftruncate(fd, 1024 * len(piece))
    os.preadv(fd, [piece] * 1024, 0)


def act(word: str, wire: Wire) -> None:
    if word == "exit":
        os._exit(0)
    if word == "status 5":
        os._exit(5)
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "block":
        wire.send(Armed())
        wire.receive(Go)
    if word == "late":
        time.sleep(0.005)
    if word == "nap":
        time.sleep(0.05)
    if word == "late crash":
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "sleep":
        time.sleep(1000)
    if word == "spin":
        while True:
            pass
    if word == "spin in a thread":
        threading.Thread(target=act, args=("spin", wire), daemon=True).start()
    if word == "raise":
        raise RuntimeError("no luck")
    if word == "error":
        wire.send(Failed("out_of_memory", "too much"))
        time.sleep(1000)
    if word == "echo of a peer":  # what gloo says when another rank is gone
        wire.send(Failed("runtime_error", "Connection closed by peer [127.0.0.1]"))
        time.sleep(1000)
    if word == "print":
        os.write(1, b"word of rank\n" * 100)
    if word.startswith("print in Python "):
        sys.stdout.write(word.removeprefix("print in Python "))
    if word.startswith("print in C "):
        ctypes.CDLL(None).printf(b"%s", word.removeprefix("print in C ").encode())
    if word.startswith("print and crash "):
        ctypes.CDLL(None).printf(b"%s", word.removeprefix("print and crash ").encode())
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "read in a thread":
        threading.Thread(target=read_for_long, daemon=True).start()
        time.sleep(0.01)
    if word == "end the main thread":
        threading.Thread(target=act, args=("spin", wire), daemon=True).start()
        ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)  # exit: of this thread alone
    if word == "fork" and os.fork() == 0:
        time.sleep(1000)
    if word == "orphan" and os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    if word == "flood":
        while True:
            wire.send(Did("flood", 0, 0, 0, 0))
    if word == "twice":
        wire.send(Did("once", 0, 0, 0, 0))
