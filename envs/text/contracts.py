"""What a source has to look like, in words: the part of a task text that depends on dialect and device."""

from __future__ import annotations

from pkb_gym.engine.compile.nvcc import default_architecture
from pkb_gym.engine.records.config import Device

EXPORT = """\
Export `solution` with exactly this signature ({language}, one translation unit, with `#include "pkb/symm.h"`):

```cpp
{signature}```

"""

CALLS = """\
- Each call gets arguments and outputs that no call had before. Calls follow each other on every rank without a
  barrier between them; `comm.epoch` grows by one each call and is equal on all ranks, so compare flags with it and
  never reset them. A call is complete when {complete} on every rank.
- Inputs are in place on all ranks before a call begins, so that peers' inputs can be read at once (an argument that is
  overwritten changes as soon as its own rank's call does so).
- Scratch and signals outlive a call: guarding their reuse between consecutive calls is the kernel's business. A peer
  may still read this rank's inputs or scratch when this rank's call {ends}.
"""

COMM = """\
- `comm.rank`, `comm.world_size`, `comm.epoch`; `comm.group(g)` gives size, rank and members of group argument `g`.
- `comm.peer<T>(x, r)`: rank r's counterpart of tensor or pointer `x`. Arguments, preallocated outputs and scratch lie
  in symmetric memory, so peers' inputs can be read and peers' outputs written in place.
- `comm.put(to, from, bytes, r)`, `comm.get(to, from, bytes, r)`: copies to and from rank r's counterpart of an
  address{by}.
- `comm.signal(slot, r)`, `comm.wait(slot)`: set word `slot` of rank r to the epoch; wait until one's own has reached
  it. Both take another value to use instead of the epoch. What was written before a signal is seen after its wait.
- `comm.barrier()`: all ranks meet; `comm.barrier(g)`: those of a group. `comm.scratch<T>(offset)`: symmetric
  scratch."""

CPP = (
    EXPORT
    + """\
- Tensors and preallocated outputs are contiguous, in row-major order; write every element of every output.
"""
    + CALLS.format(complete="it has returned", ends="returns")
    + """
`pkb::Comm` (one interface on every device):
"""
    + COMM.format(by="")
)

CUDA = (
    EXPORT
    + """\
- It is compiled by nvcc with `-std=c++17 -O3` for {architecture}. `solution` is host code: it enqueues kernels and
  copies on `comm.cuda_stream()` and returns without waiting for them. Work on streams of your own has to be joined to
  that one by events. The clock counts the host's work too.
- Tensors and preallocated outputs lie in the memory of this rank's GPU, contiguous, in row-major order, from multiples
  of 256 bytes on; write every element of every output.
"""
    + CALLS.format(complete="the stream has finished", ends="has finished")
    + """\
- Blocks that wait for other ranks must all be resident at once, or the wait may never end.

`pkb::Comm`, on the host; what it does is enqueued on the stream and happens in its order:
"""
    + COMM.format(by=", by a copy engine")
    + """

`pkb::Device`, in kernels: pass `comm.device()` by value, as in
`kernel<<<blocks, threads, 0, comm.cuda_stream()>>>(..., comm.device())`. It has the same members for pointers, and:
- `comm.peer(pointer, r)` is ordinary global memory: loads, stores, atomics, `cp.async.bulk` and tensor maps reach it.
- `comm.signal(slot, r)`, `comm.wait(slot)` are called by one thread; `__syncthreads()` before the one and after the
  other takes the rest of the block along.
- `comm.barrier_blocks(phase)`: block b of all ranks meets, called by all threads of at most 1024 blocks; number the
  barriers of one call 0, 1, 2, ... by `phase` (less than 64). `comm.barrier_blocks(phase, g)`: those of a group.
- `comm.put`, `comm.get` copy with all threads of a one-dimensional block.
- `comm.group_size(g)`, `comm.group_rank(g)`, `comm.group_member(g, place)` for group arguments.

Include what CUDA has (`<cuda_bf16.h>`, `<cuda_fp16.h>`, ...), and `pkb/transfer_cuda.h` for moving tensors, 16 bytes an
access. All threads of blocks of `pkb::kTransferThreads` call it; block `part` of `parts` takes its share:
- `pkb::copy(char* to, const char* from, uint64_t bytes, part, parts)`, on any rank;
- `pkb::add_up<T>(uint64_t count, int terms, term, int results, result, part, parts)`: adds up `count` elements of each
  of `const T* term(0)` .. `term(terms - 1)`, and stores the sums to each of `T* result(0)` .. `result(results - 1)`."""
)

PYTHON = """\
Define `solution` in one Python module, with the signature of the reference:

```python
{signature}
```

"""

PYTHON_ON = {
    "cpu": """\
- Tensors are private to the rank; the default process group is initialised (gloo), and communication is
  torch.distributed's.
- Calls follow each other without a barrier between them; return fresh outputs, complete when the call returns.""",
    "cuda": """\
- Tensors are private to the rank and lie on its GPU, the current device. The default process group is initialised
  (NCCL); communication is torch.distributed's, torch.distributed._symmetric_memory included.
- Kernels may be Triton's, or built by torch.utils.cpp_extension.load_inline.
- Calls follow each other without a barrier between them; return fresh outputs, complete when the current stream is.""",
}


def native_contract(language: str, signature: str) -> str:
    """What a native source has to export, and what it may use.

    Args:
        language: "cpp" or "cuda".
        signature: see `cpp_signature`.
    """
    if language == "cuda":
        return CUDA.format(language="CUDA C++", signature=signature, architecture=default_architecture())
    return CPP.format(language="C++", signature=signature)


def python_contract(signature: str, device: Device) -> str:
    """What a Python source has to define, and what it may use.

    Args:
        signature: the `def` of `solution`, as the reference writes it.
        device: where its tensors lie.
    """
    return PYTHON.format(signature=signature) + PYTHON_ON[device]
