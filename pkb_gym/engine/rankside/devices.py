"""The differences between ranks on the CPU and on GPUs: preparation of a rank, its heap, the end of its work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.engine.wire.orders import DeviceName, Dialect

from . import confine
from .heap import Heap
from .processors import bind_rank

if TYPE_CHECKING:
    import torch


class AnyHeap(Protocol):
    """The common interface of `Heap` and `CudaHeap`; its methods are described there."""

    segment_bytes: int
    rank: int
    cuda_device: int | None

    def segment(self, rank: int) -> int: ...  # noqa: D102
    def place(self, rank: int) -> abi.Place: ...  # noqa: D102
    def hold(self, rank: int) -> abi.Hold: ...  # noqa: D102
    def stats(self) -> abi.Stats: ...  # noqa: D102
    def zero(self) -> None: ...  # noqa: D102
    def replace_control(self, fd: int) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102
    def clear_stats(self) -> None: ...  # noqa: D102
    def populate(self, offset: int, nbytes: int) -> None: ...  # noqa: D102
    def tensor(self, slot: TensorSlot, rank: int | None = None) -> torch.Tensor: ...  # noqa: D102
    def bytes(self, rank: int | None = None) -> torch.Tensor: ...  # noqa: D102
    def progress(self, rank: int) -> abi.Progress: ...  # noqa: D102

    @property
    def control(self) -> int: ...  # noqa: D102
    @property
    def mailbox(self) -> int: ...  # noqa: D102
    @property
    def stats_address(self) -> int: ...  # noqa: D102


class Device(Protocol):
    """One rank's device.

    Attributes:
        name: Kind of device.
        stream: Address of the stream that kernels are enqueued on; None on the CPU.
    """

    name: DeviceName
    stream: int | None

    @property
    def torch_device(self) -> str:
        """Its name in torch."""

    def prepare(self, dialect: Dialect = "python", *, one_queue: bool = False, all_gpus: bool = False) -> None:
        """Gets ready for a candidate that is not known yet; calling it again changes nothing.

        Args:
            dialect: A rank of the native one never makes a process group; it reaches others through its heap alone.
            one_queue: Whether kernels will be enqueued on a single stream.
            all_gpus: Whether a rank of the native dialect sees its peers' GPUs too.
        """

    def join(self, meet: str | None = None) -> None:
        """Makes the default process group; calling it again changes nothing.

        Args:
            meet: Url where the ranks find each other; by default a file in the working folder.
        """

    def heap(self, fds: Sequence[int], segment_bytes: int) -> AnyHeap:
        """Maps the heap that these descriptors name."""

    def limit_memory(self, nbytes: int) -> None:
        """Limits this process to so much more main memory, in bytes."""

    def synchronize(self) -> None:
        """Waits until all that was enqueued is done; raises what went wrong with it."""

    def synchronize_stream(self) -> None:
        """Waits until all that was enqueued on the current stream is done; work on other streams may go on."""

    def release(self) -> None:
        """Gives memory that is kept for later back."""

    def trim(self) -> None:
        """Gives memory back between evaluations; as much may be kept as the next one needs anyway."""


class CpuDevice:
    """A rank on the CPU; see `Device`."""

    name: DeviceName = "cpu"
    torch_device = "cpu"
    stream: int | None = None

    def __init__(self, rank: int, world_size: int, threads: int) -> None:
        self._rank, self._world_size, self._threads = rank, world_size, threads
        self._joined = False

    def prepare(self, dialect: Dialect = "python", *, one_queue: bool = False, all_gpus: bool = False) -> None:
        """Binds the rank to its processors."""
        import torch

        bind_rank(self._rank, self._world_size)
        os.environ["OMP_NUM_THREADS"] = str(self._threads)  # read by an OpenMP runtime that the candidate brings
        torch.set_num_threads(self._threads)

    def join(self, meet: str | None = None) -> None:
        """Makes the default process group, on gloo."""
        from .gloo_compat import install

        if not self._joined:
            _init_process_group("gloo", meet, self._rank, self._world_size)
            install()
            self._joined = True

    def heap(self, fds: Sequence[int], segment_bytes: int) -> Heap:
        """Maps the heap that these descriptors name."""
        (fd,) = fds
        return Heap(fd, segment_bytes, self._world_size, self._rank)

    def limit_memory(self, nbytes: int) -> None:
        """Limits the address space of this process."""
        confine.limit_resources({"RLIMIT_AS": nbytes})

    def synchronize(self) -> None:
        """Nothing: calls have done their work when they return."""

    def synchronize_stream(self) -> None:
        """Nothing: calls have done their work when they return."""

    def release(self) -> None:
        """Gives freed memory back, which malloc keeps, see `_keep_freed_memory` of the zygote."""
        ctypes.CDLL(None).malloc_trim(0)

    def trim(self) -> None:
        """Gives all freed memory back, as candidates have the same memory."""
        self.release()


KEPT_BYTES = 3 << 30
"""Memory of a GPU that its reference ranks may keep between evaluations, which then need not ask the driver for it:
within what every evaluation may take beside its heaps (`GPU_RESERVE_BYTES`)."""

NO_FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "0"}
"""torch's record of past collectives is off: keeping it makes launches slower and their times scatter."""


class CudaDevice:
    """A rank on a GPU; see `Device`.

    Args:
        rank: Number of this rank, which is its GPU's where ranks do not share GPUs.
        world_size: Number of ranks.
        threads: Processor threads that it computes with.
        ranks_per_gpu: Neighbouring ranks that share a GPU.

    Ranks that share a GPU have a context each, which take turns, and their collectives go through main memory.

    A rank of the native dialect sees no other GPU, so that the driver has less to set up and the candidate less to
    reach; the memory of the others' heaps is mapped all the same. NVSHMEM and NCCL look for their peers' GPUs among
    those that are visible, and get to see all. With one queue instead of eight, the driver makes its context in half
    the time; work on several streams would then wait for one another.
    """

    name: DeviceName = "cuda"
    stream: int | None = None

    def __init__(self, rank: int, world_size: int, threads: int, ranks_per_gpu: int = 1) -> None:
        self._index = self._gpu = rank // ranks_per_gpu
        self._shares_gpu = ranks_per_gpu > 1
        self._kept_bytes = KEPT_BYTES // ranks_per_gpu
        self._rank, self._world_size, self._threads = rank, world_size, threads
        self._prepared = self._joined = False

    @property
    def torch_device(self) -> str:
        """The name of the device in torch."""
        return f"cuda:{self._index}"

    def prepare(self, dialect: Dialect = "python", *, one_queue: bool = False, all_gpus: bool = False) -> None:
        """Makes the context."""
        import torch

        if self._prepared:
            return
        bind_rank(self._rank, self._world_size)
        torch.set_num_threads(self._threads)
        if dialect == "native" and not all_gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[self._gpu] if visible else str(self._gpu)
            self._index = 0
        if one_queue:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        # Convolutions of float32 would be of TF32, beside which a kernel of float32 is wrong; products are not anyway.
        torch.backends.cudnn.allow_tf32 = False
        torch.cuda.set_device(self._index)
        torch.empty(1, device="cuda")  # makes the context
        torch.cuda.synchronize()
        self.stream = torch.cuda.current_stream().cuda_stream
        self._prepared = True

    def join(self, meet: str | None = None) -> None:
        """Makes the default process group and connects its ranks, which NCCL would otherwise do at the first call."""
        import torch
        import torch.distributed as dist

        if not self._joined and self._shares_gpu:
            from . import gloo_compat, host_collectives

            host_collectives.register()
            _init_process_group(host_collectives.BACKEND, meet, self._rank, self._world_size)
            gloo_compat.install()
            self._joined = True
        if not self._joined:
            os.environ |= NO_FLIGHT_RECORDER
            device = torch.device("cuda", self._index)
            _init_process_group("nccl", meet, self._rank, self._world_size, device_id=device)
            dist.all_reduce(torch.zeros(1, device=device))
            torch.cuda.synchronize()
            self._joined = True

    def heap(self, fds: Sequence[int], segment_bytes: int) -> Any:
        """Maps the heap that these descriptors name."""
        from .cuda_heap import CudaHeap

        control, *segments = fds
        return CudaHeap(control, segments, segment_bytes, self._rank)

    def limit_memory(self, nbytes: int) -> None:
        """Limits private data alone, as CUDA reserves address space by the terabyte."""
        confine.limit_resources({"RLIMIT_DATA": nbytes})

    def synchronize(self) -> None:
        """Waits for all work of the GPU; raises its errors."""
        import torch

        torch.cuda.synchronize()

    def synchronize_stream(self) -> None:
        """Waits for the work of the current stream."""
        import torch

        torch.cuda.current_stream().synchronize()

    def release(self) -> None:
        """Gives cached memory back to the driver."""
        import torch

        torch.cuda.empty_cache()

    def trim(self) -> None:
        """Gives cached memory back where it is more than may be kept."""
        import torch

        if torch.cuda.memory_reserved() > self._kept_bytes:
            self.release()


def make_device(name: DeviceName, rank: int, world_size: int, threads: int, ranks_per_gpu: int = 1) -> Device:
    """The rank's device of that name; see `CudaDevice` for the arguments."""
    if name == "cuda":
        return CudaDevice(rank, world_size, threads, ranks_per_gpu)
    return CpuDevice(rank, world_size, threads)


def _init_process_group(backend: str, meet: str | None, rank: int, world_size: int, **kwargs: Any) -> None:
    import torch.distributed as dist

    meet = meet or f"file://{os.getcwd()}/rendezvous"
    dist.init_process_group(backend, init_method=meet, rank=rank, world_size=world_size, **kwargs)
