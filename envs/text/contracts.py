"""The form of a source, in words: the part of a task text that depends on dialect and device."""

from __future__ import annotations

from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.machine import Machine

EXPORT = """\
Export `solution` with exactly this signature ({language}, one translation unit, with `#include "pkb/symm.h"`):

```cpp
{signature}```

"""

CALLS = """\
A call happens in the order of its rank's {order}, and ranks do not reach it together:
- Arrival: a rank's arguments are there, and its outputs may be written, only once its own call has begun. Before a peer
  touches them, it waits for a barrier, a signal, or data with a flag, that this rank has sent in this call.
- Departure: as soon as a rank's call {ends}, its outputs are taken and its arguments overwritten. So it must
  not {end} while peers still read its arguments or write its outputs.
- No barrier lies between calls. `comm.epoch` grows by one each call and is equal on all ranks: compare signals with it
  (at least) and never reset them.
- Scratch is always there, and keeps its contents and the signals from call to call. A fast rank may be in the next call
  while a slow one is still in this one: guarding the reuse of scratch is the kernel's business.
- A kernel that breaks this fails with `race`, even if its outputs happen to be right most of the time.
"""

CPP_EXAMPLE = """\
For example, an all-reduce that reads its peers' tensors in place:

```cpp
comm.barrier();  // every rank's call has begun: its x may be read
for (int64_t i = 0; i < n; ++i) {
  float sum = 0;
  for (int r = 0; r < comm.world_size; ++r) sum += comm.peer(x, r)[i];
  out[i] = sum;
}
comm.barrier();  // every rank has read: this call may return
```
"""

CUDA_EXAMPLE = """\
For example, an all-reduce that reads its peers' tensors in place, with as many blocks on every rank:

```cuda
__global__ void add_up(const float* x, float* out, int64_t n, pkb::Device comm) {
  comm.barrier_blocks(0);  // the call has begun on every rank: its x may be read
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer(x, r)[i];
    out[i] = sum;
  }
  comm.barrier_blocks(1);  // this block's counterparts have read: it may end
}
```
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
    """\
- Tensors and preallocated outputs are contiguous, in row-major order; write every element of every output.

"""
    + CALLS.format(order="thread", ends="returns", end="return")
    + "\n"
    + CPP_EXAMPLE
    + """
`pkb::Comm` (one interface on every device):
"""
    + COMM.format(by="")
)

COMPILED = """\
- It is compiled by nvcc with `-std=c++17 -O3` for {architecture}.
"""

CUDA = (
    """\
- `solution` is host code: it enqueues kernels and copies on `comm.cuda_stream()` and returns without waiting for them.
  Work on streams of your own has to be joined to that one by events. The clock counts the host's work too.
- Tensors and preallocated outputs lie in the memory of this rank's GPU, contiguous, in row-major order, from multiples
  of 256 bytes on; write every element of every output.
- Blocks that wait for other ranks must all be resident at once, or the wait may never end.

"""
    + CALLS.format(order="stream", ends="has finished", end="finish")
    + "\n"
    + CUDA_EXAMPLE
    + """
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

PYTHON_CALLS = """\
- A call happens in the order of its rank's {order}, and ranks do not reach it together:
  arguments are there only once the rank's own call has begun; as soon as it {ends}, its outputs are taken
  and its arguments overwritten. No barrier lies between calls. Return fresh outputs. A solution that breaks this fails
  with `race`.
"""

PYTHON_ON = {
    "cpu": """\
- Tensors are private to the rank; the default process group is initialised (gloo), and communication is
  torch.distributed's.
"""
    + PYTHON_CALLS.format(order="thread", ends="returns")
    + """\
- Collectives wait for their peers' data themselves; for an asynchronous one, the call has to wait before it returns:

```python
work = dist.all_reduce(out, async_op=True)
...  # what needs neither `out` nor the peers
work.wait()
```""",
    "cuda": """\
- Tensors are private to the rank and lie on its GPU, the current device. The default process group is initialised
  (NCCL); communication is torch.distributed's, torch.distributed._symmetric_memory included.
- Kernels may be Triton's, or built by torch.utils.cpp_extension.load_inline.
"""
    + PYTHON_CALLS.format(order="current stream", ends="has finished there")
    + """\
- Collectives wait for their peers' data themselves; accesses to symmetric memory need a barrier before and after:

```python
buffer.copy_(x)  # in symmetric memory, whose handle is `handle`
handle.barrier(channel=0)  # every rank has filled its buffer: it may be read
out = sum(handle.get_buffer(r, x.shape, x.dtype) for r in range(handle.world_size))
handle.barrier(channel=1)  # every rank has read: the next call may fill the buffer
```""",
}


def native_contract(language: str, signature: str, machine: Machine) -> str:
    """The symbol that a native source has to export, and the means that it may use.

    Args:
        language: "cpp" or "cuda".
        signature: Signature, as `cpp_signature` writes it.
        machine: Machine that judges.
    """
    if language == "cuda":
        compiled = COMPILED.format(architecture=machine.architecture)
        return EXPORT.format(language="CUDA C++", signature=signature) + compiled + _includable(machine) + CUDA
    return EXPORT.format(language="C++", signature=signature) + CPP


def python_contract(signature: str, device: Device, machine: Machine) -> str:
    """The function that a Python source has to define, and the means that it may use.

    Args:
        signature: Line `def solution(...)`, as the reference writes it.
        device: Device of its tensors.
        machine: Machine that judges.
    """
    folders = _include_paths(machine) if device == "cuda" else ""
    return PYTHON.format(signature=signature) + folders + PYTHON_ON[device]


def _includable(machine: Machine) -> str:
    """The header libraries of a native source's contract; empty where there are none."""
    lines = []
    for library in machine.header_libraries:
        headers = ", ".join(f"`{begin}{'...' if begin.endswith('/') else ''}`" for begin in library.begins)
        note = f" ({library.note})" if library.note else ""
        lines.append(f"  - {library.title}: {headers}{note}\n")
    return f"- It may include these header libraries:\n{''.join(lines)}" if lines else ""


def _include_paths(machine: Machine) -> str:
    """The same for a Python source, which names folders itself; those of the CUDA toolkit are looked in anyway."""
    lines = [
        f"  - {library.title}: {', '.join(f'`{folder}`' for folder in library.folders)}\n"
        for library in machine.header_libraries
        if not library.is_built_in
    ]
    return f"- Header libraries, for `extra_include_paths`:\n{''.join(lines)}" if lines else ""
