"""Sources of the python dialect under Triton's GSan, in a run of their own beside the judged one.

GSan (`triton.experimental.gsan`) instruments kernels and keeps clocks for each word of memory that its own allocator
gave. An access that no release and acquire orders with an earlier one ends its kernel by a device assertion.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.wire.arguments import CallSpec, TensorSlot
from pkb_gym.engine.wire.orders import Claims, Load

from .devices import AnyHeap, Device
from .gsan_symmetric import SymmetricMemory
from .python import Python, make_argument, use_own_triton_cache

if TYPE_CHECKING:
    import torch


class WatchedPython(Python):
    """A module whose kernels are instrumented, on arguments that are copied into memory that GSan watches."""

    def __init__(
        self, order: Load, source_fd: int, libraries: dict[str, str], heap: AnyHeap, device: Device, rank: int
    ) -> None:
        assert order.gsan_seed is not None
        use_own_triton_cache()  # GSan compiles its allocator
        device.join()
        self._pool = instrument(order.gsan_seed, device)
        with self._watching():
            super().__init__(order, source_fd, libraries, heap, device, rank)

    def _watching(self) -> contextlib.AbstractContextManager[None]:
        """Has GSan's allocator give the tensors that are made on the GPU meanwhile."""
        import torch

        return torch.cuda.use_mem_pool(self._pool)

    def _bind_call(self, call: CallSpec, groups: list[Any]) -> list[Any]:
        self._heap.populate(call.offset, call.nbytes)
        return [partial(make_argument, self._copy, argument, groups) for argument in call.arguments]

    def _copy(self, slot: TensorSlot) -> torch.Tensor:
        return self._heap.tensor(slot).clone()

    def call(self, index: int, epoch: int, hold_ns: int = 0) -> Claims:
        """Calls `solution` on copies of one set; returns its claims."""
        with self._watching():
            arguments = [make() for make in self._arguments[index]]
            return tuple(self._deliveries[index].deliver(self._solution(*arguments))[1])


def instrument(seed: int, device: Device) -> torch.cuda.MemPool:
    """Turns GSan on in this process, whose ranks have a process group; symmetric memory is GSan's from now on.

    Args:
        seed: Seed by which GSan samples reads, in [0, 2^32).
        device: Device of this rank.

    Returns:
        The pool of GSan's allocator.
    """
    import torch.distributed as dist
    import triton
    from triton.experimental import gsan
    from triton.experimental.gsan import symmetric_memory

    symmetric_memory.configure(dist.group.WORLD, rng_seed=seed)
    triton.knobs.compilation.instrumentation_mode = "gsan"
    SymmetricMemory(symmetric_memory, device).install()
    return gsan.create_mem_pool()  # type: ignore[no-any-return]  # Triton may be missing
