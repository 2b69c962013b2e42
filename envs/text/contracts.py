"""The form of a source, in words: the part of a task text that depends on dialect and device."""

from __future__ import annotations

import re

from pkb_gym.engine.problem import Group, Problem
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.machine import Machine
from pkb_gym.envs.text.api_card import api_card
from pkb_gym.envs.text.turn import Style
from pkb_gym.kernels.examples import pattern_of
from pkb_gym.kernels.text import NativeLanguage

TITLES: dict[NativeLanguage, str] = {"cpp": "C++", "cuda": "CUDA C++"}

EXPORT = """\
Export `solution` with this signature ({language}, one translation unit, `#include "pkb/symm.h"`):

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

SHORT_CALLS = """\
Ranks do not reach a call together, and no barrier lies between calls:
- Touch a peer's arguments or outputs only after it has signalled in this call that it has begun (by a barrier, a
  signal, or data with a flag); {end} only when no peer touches this rank's any more. Else: `race`.
- `comm.epoch` grows by one each call: compare signals with it, never reset them. Scratch keeps its contents: guard its
  reuse.
"""

CARD = """\
API, shortened:

```cpp
{card}```"""

CPP = (
    """\
- Tensors and preallocated outputs are contiguous, in row-major order; write every element of every output.

"""
    + CALLS.format(order="thread", ends="returns", end="return")
    + "\n"
)

CUDA = (
    """\
- It is compiled by nvcc with `-std=c++17 -O3` for {architecture}.
{libraries}\
- `solution` is host code: it enqueues kernels and copies on `comm.cuda_stream()` and returns without waiting for them.
  Work on streams of your own has to be joined to that one by events. The clock counts the host's work too.
- Tensors and preallocated outputs lie in the memory of this rank's GPU, contiguous, in row-major order, from multiples
  of 256 bytes on; write every element of every output.
- Blocks that wait for other ranks must all be resident at once, or the wait may never end.
- Peers' memory is ordinary global memory: loads, stores, atomics, `cp.async.bulk` and tensor maps reach it.
- `__syncthreads()` before a signal and after a wait takes the rest of a block along.

"""
    + CALLS.format(order="stream", ends="has finished", end="finish")
    + "\n"
)

SHORT_CPP = (
    """\
Tensors are contiguous and row-major; write every element of every output.

"""
    + SHORT_CALLS.format(end="return")
    + "\n"
)

SHORT_CUDA = (
    """\
`solution` enqueues work on `comm.cuda_stream()` and returns ({architecture}). Tensors are contiguous and row-major;
write every element of every output. Blocks that wait for other ranks must all be resident.

"""
    + SHORT_CALLS.format(end="finish")
    + "\n"
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


SHORT_PYTHON = {
    "cpu": """\
Define `solution` in one Python module, with the signature of the reference. Tensors are private to the rank; the
default process group is initialised (gloo). Return fresh outputs, and wait for asynchronous collectives before.""",
    "cuda": """\
Define `solution` in one Python module, with the signature of the reference. Tensors are private to the rank and lie on
its GPU; the default process group is initialised (NCCL). Kernels may be Triton's or built by load_inline, and
torch.distributed._symmetric_memory may be used, with a barrier before and after accesses. Return fresh outputs.""",
}
"""Device -> contract of a Python source in the standard style."""


def native_contract(problem: Problem, language: NativeLanguage, machine: Machine, style: Style) -> str:
    """The symbol that a native source has to export, and the means that it may use.

    Args:
        problem: Problem to solve.
        language: "cpp" or "cuda".
        machine: Machine that judges.
        style: "full", or "standard" without header libraries, reasons, and functions that the problem hardly needs.
    """
    if style == "full":
        libraries = _includable(machine)
        rules = CUDA.format(architecture=machine.architecture, libraries=libraries) if language == "cuda" else CPP
        card, signature = api_card(language), cpp_signature(problem)
    else:
        rules = SHORT_CUDA.format(architecture=machine.architecture) if language == "cuda" else SHORT_CPP
        groups = any(isinstance(arg, Group) for arg in problem.args)
        card = api_card(language, pattern_of(problem), groups=groups)
        signature = re.sub(" +// ", "  // ", cpp_signature(problem))
    export = EXPORT.format(language=TITLES[language], signature=signature)
    return export + rules + CARD.format(card=card)


def python_contract(signature: str, device: Device, machine: Machine, style: Style) -> str:
    """The function that a Python source has to define, and the means that it may use.

    Args:
        signature: Line `def solution(...)`, as the reference writes it.
        device: Device of its tensors.
        machine: Machine that judges.
        style: "full", or "standard" without header libraries and lines of code.
    """
    if style != "full":
        return SHORT_PYTHON[device]
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
