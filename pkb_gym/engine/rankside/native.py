"""Kernels of the native dialect: a shared object that exports `solution` through the TVM FFI."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import Argument, CallSpec, GroupArgument, ScalarArgument, TensorSlot
from pkb_gym.engine.wire.orders import Claims, Load, Partition, ProfileDone, Transfers

from . import cuda_profile
from .devices import AnyHeap, Device
from .dlpack import HeapTensor
from .failures import CandidateError, kind_of, text_of
from .results import Destination, bad_result, value_in_words
from .usage import usage_since


def library_path(rank: int) -> str:
    """The path by which a rank loads its candidate's library."""
    return os.path.join(os.getcwd(), f"kernel-{rank}.so")


class Native:
    """A loaded kernel and the argument sets it is called on.

    Attributes:
        trace_thrown: Function called after an exception of the kernel, see `crash.trace_native_code`.
    """

    def __init__(self, order: Load, library_fd: int, heap: AnyHeap, device: Device, rank: int, world_size: int) -> None:
        import tvm_ffi

        path = library_path(rank)
        os.symlink(f"/proc/self/fd/{library_fd}", path)
        try:
            self._module = tvm_ffi.load_module(path)
            self._function = self._module.get_function("solution")
        except Exception as error:
            raise CandidateError("load_error", text_of(error)) from None
        if self._function is None:
            raise CandidateError("load_error", "the library exports no `solution`")
        self._signature = order.signature
        self._heap, self._device = heap, device
        self._rank, self._world_size = rank, world_size
        self._comm = self._make_comm(order)
        self._comm_pointer = ctypes.c_void_p(ctypes.addressof(self._comm))
        self._arguments: list[list[Any]] = []
        self._tensors: list[HeapTensor] = []
        self._destinations: list[tuple[Destination, ...]] = []
        self._called = False
        self.trace_thrown: Callable[[], object] = lambda: None

    def _make_comm(self, order: Load) -> abi.CommData:
        comm = abi.CommData()
        comm.magic, comm.version = abi.MAGIC, abi.VERSION
        comm.rank, comm.world_size = self._rank, self._world_size
        comm.oversubscribed = int(self._world_size > order.processors)
        comm.segment_bytes = self._heap.segment_bytes
        comm.scratch_offset, comm.scratch_bytes = abi.SCRATCH_OFFSET, order.scratch_bytes
        comm.signal_offset = abi.SIGNAL_OFFSET
        comm.stream = self._device.stream
        comm.barrier_counts = self._heap.control + abi.BARRIER_COUNTS_OFFSET
        comm.place = self._heap.control + abi.PLACE_OFFSET
        for rank in range(self._world_size):
            comm.segments[rank] = self._heap.segment(rank)
        return comm

    def bind(self, calls: list[CallSpec], partitions: tuple[Partition, ...]) -> None:
        """Makes the arguments of every call."""
        for index, partition in enumerate(partitions):
            self._comm.groups[index] = self._group(partition)
        self._comm.num_groups = len(partitions)
        self._heap.populate(abi.SIGNAL_OFFSET, abi.SIGNAL_BYTES)
        self._arguments.clear()
        self._tensors.clear()
        self._arguments = [self._bind_call(call) for call in calls]
        # Before the clock runs, as those of the baseline.
        self._destinations = [tuple(Destination(self._heap, slot) for slot in call.returned) for call in calls]

    def _bind_call(self, call: CallSpec) -> list[Any]:
        self._heap.populate(call.offset, call.nbytes)
        return [*(part for argument in call.arguments for part in self._parts(argument)), self._comm_pointer]

    def _parts(self, argument: Argument) -> list[Any]:
        """The parameters that one argument becomes."""
        import tvm_ffi

        if isinstance(argument, ScalarArgument):
            return [tvm_ffi.convert(argument.value) if isinstance(argument.value, tuple) else argument.value]
        if isinstance(argument, GroupArgument):
            return [-1 if argument.partition is None else argument.partition]
        tensors = [None if slot is None else self._tensor(slot) for slot in argument.slots]
        return [tvm_ffi.convert(tensors)] if argument.kind in ("list", "bare") else tensors

    def _tensor(self, slot: TensorSlot) -> Any:
        """The tensor of a slot; an empty one has its address too, for `comm.peer`."""
        import tvm_ffi

        assert slot.shape is not None
        address = self._heap.segment(self._rank) + slot.offset
        tensor = HeapTensor(address, slot.shape, slot.dtype, self._heap.cuda_device)
        self._tensors.append(tensor)
        return tvm_ffi.from_dlpack(tensor)

    def _group(self, partition: Partition) -> abi.GroupData:
        for ranks in partition:
            if self._rank in ranks:
                padded = (ctypes.c_int32 * abi.MAX_RANKS)(*ranks)
                return abi.GroupData(len(ranks), ranks.index(self._rank), padded)
        return abi.GroupData(0, -1, (ctypes.c_int32 * abi.MAX_RANKS)())

    def call(self, index: int, epoch: int, hold_ns: int = 0) -> Claims:
        """Calls the kernel on one set; returns its claims."""
        self._comm.epoch = epoch
        self._comm.hold_ns = hold_ns
        result = self._invoke(index)
        destinations = self._destinations[index]
        return self._deliver(destinations, result) if destinations else ()

    def _invoke(self, index: int) -> Any:
        try:
            result = self._function(*self._arguments[index])
        except TypeError as error:
            if self._called or "Mismatched" not in str(error):
                self.trace_thrown()
                raise
            wrong = f"the kernel has another signature: {error}\nexpected:\n{self._signature}"
            raise CandidateError("load_error", wrong) from None
        except UnicodeDecodeError as error:  # by tvm_ffi, in place of the kernel's own
            text = f"the kernel raised an error whose text is not UTF-8: {text_of(error)}"
            self.trace_thrown()
            raise CandidateError(kind_of(error), text) from None
        except Exception:
            self.trace_thrown()
            raise
        self._called = True
        return result

    def _deliver(self, destinations: tuple[Destination, ...], result: Any) -> Claims:
        """Copies returned tensors to where they belong; returns their claims.

        Raises:
            CandidateError: there are others than declared.
        """
        import torch

        parts = [result] if len(destinations) == 1 and hasattr(result, "__dlpack__") else result
        try:
            # Not `from_dlpack(part)`: it asks each for its device and orders streams, and calls have one stream alone.
            tensors = [torch.utils.dlpack.from_dlpack(part.__dlpack__()) for part in parts]
        except (AttributeError, TypeError):
            got = value_in_words(result)
            raise bad_result(f"expected {len(destinations)} returned tensors, got {got}") from None
        if len(tensors) != len(destinations):
            raise bad_result(f"expected {len(destinations)} returned tensors, got {len(tensors)}")
        return tuple(place.take(tensor)[1] for place, tensor in zip(destinations, tensors, strict=True))

    def profile(self, indices: tuple[int, ...], epoch: int, link_bytes_per_s: float | None) -> ProfileDone:
        """Calls the kernel on each set; reports where the time goes."""
        if self._device.name == "cuda":
            report = cuda_profile.profile_calls(
                self.call,
                indices,
                epoch,
                synchronize=self._device.synchronize,
                meet=lambda: cuda_profile.meet(self._heap, self._rank, self._world_size, epoch),
                begin=self._count,
                link_bytes_per_s=link_bytes_per_s,
            )
            return replace(report, transfers=self._counted())
        self._count()
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter_ns()
        slices = []
        for call, index in enumerate(indices):
            call_began = time.perf_counter_ns()
            self.call(index, epoch + call)
            slices.append((call_began, time.perf_counter_ns()))
        wall = time.perf_counter_ns() - began
        inside = sum(end - begin for begin, end in slices)
        counted = self._counted()
        return ProfileDone(wall, inside, tuple(slices), usage_since(before), transfers=counted)

    def _count(self) -> None:
        """Makes `pkb/symm.h` count its operations from now on."""
        self._heap.clear_stats()
        self._comm.stats = self._heap.stats_address

    def _counted(self) -> Transfers:
        """The counts so far; ends counting."""
        self._comm.stats = None
        stats = self._heap.stats()
        return Transfers(**{name: int(getattr(stats, name)) for name in abi.STATS_FIELDS})
