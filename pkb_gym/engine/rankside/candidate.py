"""The rank program of a candidate's gang: loads the kernel, calls it in blocks, says when it is done.

Messages from the evaluator, and the reply to each:

    {"prepare": true, ...}  -> {"prepared": true}                     optional, before a candidate is known
    {"touch": true}  -> {"armed": true}, then {"go": true}  -> {"done": true}    likewise, after that
    {"load": ...} + fds  -> {"loaded": true}
    {"bind": runs of sets, "partitions": [...]}  -> {"bound": n}
    {"run": indices of sets, "epoch": e, "profile": null or {"link_bytes_per_s": ...}}
                             -> {"armed": true}, then {"go": true}  -> {"done": ...}

An exception is replied as {"error": {"kind": a Failure, "message": text}}.
"""

from __future__ import annotations

import gc
import traceback
from typing import Any, Protocol

from . import abi
from .devices import AnyHeap, Device, make_device
from .failures import CandidateError, kind_of
from .results import Claim
from .runs import unroll
from .wire import Wire


class Dialect(Protocol):
    """How sources of one kind are loaded and called."""

    def bind(self, sets: list[dict[str, Any]], partitions: list[list[list[int]]]) -> None:
        """Makes the arguments of every set; group arguments are indices into `partitions`."""

    def call(self, index: int, epoch: int) -> list[Claim]:
        """Calls the kernel on one set; returns a claim for each tensor that it returned."""

    def profile(self, indices: list[int], epoch: int, link_bytes_per_s: float | None) -> dict[str, Any]:
        """Calls the kernel on several sets and says where the time went.

        On GPUs, by `cuda_profile.profile_calls`.
        """


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    message, _, fds = wire.receive_with_fds()
    threads: Any = message["threads"]
    device = make_device(str(message["device"]), rank, world_size, threads)
    device.prepare(alone=bool(message["alone"]), one_queue=bool(message.get("one_queue")))
    if "prepare" in message:
        if not message["alone"]:
            device.join()
        wire.send({"prepared": True})
        message, _, fds = wire.receive_with_fds()
        while "touch" in message:
            _touch(wire, device)
            message, _, fds = wire.receive_with_fds()
    heap_fds: Any = message["heap_fds"]
    heap = device.heap(fds[:heap_fds], message["segment_bytes"])  # type: ignore[arg-type]
    device.limit_memory(message["memory_bytes"])  # type: ignore[arg-type]
    place = heap.place(rank)
    place.state = abi.State.LOADING
    try:
        dialect = _load(dict(message), fds[heap_fds:], heap, device, rank, world_size)
    except CandidateError as error:
        wire.send(_error(error.kind, str(error)))
        return
    except BaseException as error:  # whatever a candidate's module raises, SystemExit included, is data
        wire.send(_error(kind_of(error), traceback.format_exc()))
        return
    wire.send({"loaded": True})
    while True:
        message, _ = wire.receive()
        if "bind" in message:
            runs: Any = message["bind"]
            partitions: Any = message["partitions"]
            sets = unroll(runs)
            dialect.bind(sets, partitions)
            wire.send({"bound": len(sets)})
        elif not _run_block(wire, dialect, device, place, dict(message)):
            return


def _touch(wire: Wire, device: Device) -> None:
    """A block with nothing in it but the least that the device can do."""
    wire.send({"armed": True})
    wire.receive()
    device.touch()
    device.synchronize()
    wire.send({"done": True})


def _run_block(wire: Wire, dialect: Dialect, device: Device, place: abi.Place, order: dict[str, Any]) -> bool:
    """Runs one block; False after an error, since nothing can be trusted then."""
    indices, epoch = order["run"], order["epoch"]
    gc.collect()
    gc.disable()
    place.state = abi.State.AT_GATE
    place.call = 0
    wire.send({"armed": True})
    wire.receive()
    call = 0
    try:
        place.state = abi.State.IN_CALL
        if order["profile"] is not None:
            done = dialect.profile(indices, epoch, **order["profile"])
        else:
            said = []
            for call, index in enumerate(indices):  # read by the handlers below
                place.call = call
                said.append(dialect.call(index, epoch + call))
            device.synchronize()
            done = {"returned": said}
        place.state = abi.State.DONE
    except CandidateError as error:
        wire.send(_error(error.kind, str(error), call))
        return False
    except BaseException as error:  # SystemExit and KeyboardInterrupt included: a candidate raised it
        wire.send(_error(kind_of(error), traceback.format_exc(limit=-6), call))
        return False
    finally:
        gc.enable()
    wire.send({"done": done})
    return True


def _load(
    message: dict[str, Any], fds: list[int], heap: AnyHeap, device: Device, rank: int, world_size: int
) -> Dialect:
    if message["dialect"] == "native":
        from .native import Native

        return Native(message, fds[0], heap, device, rank, world_size)
    from .python import Python

    libraries = {name: f"/proc/self/fd/{fds[index]}" for name, index in message["extensions"].items()}
    return Python(message, fds[0], libraries, heap, device, rank)


def _error(kind: str, message: str, call: int = 0) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": f"call {call}: {message[-8000:]}" if call else message[-8000:]}}
