"""Triton kernels on symmetric memory, in the manner of `torch.distributed._symmetric_memory`, each with its mistake.

`python triton_symmetric.py` checks them; it needs Triton and no GPU. A table is the array of all ranks' pointers that
torch calls `buffer_ptrs_dev` or `signal_pad_ptrs_dev`.
"""

import sys

import triton
import triton.language as tl

from rank_emulator.checking import Report, TritonLaunch, TritonProgram, as_text, check, parse_buffers


@triton.jit
def peer_pointer(table, peer, dtype: tl.constexpr):
    """The pointer of a rank's buffer."""
    return tl.load(table.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(dtype))


@triton.jit
def meet(pads, slot, rank, world_size: tl.constexpr, sem: tl.constexpr):
    """All ranks meet: each raises a flag at every rank, and takes down those that were raised at its own."""
    tl.debug_barrier()
    for peer in range(world_size):
        raised = peer_pointer(pads, peer, tl.uint32) + slot * world_size + rank
        while tl.atomic_cas(raised, 0, 1, sem=sem, scope="sys") != 0:
            pass
    for peer in range(world_size):
        own = peer_pointer(pads, rank, tl.uint32) + slot * world_size + peer
        while tl.atomic_cas(own, 1, 0, sem="acquire", scope="sys") != 1:
            pass
    tl.debug_barrier()


@triton.jit
def one_shot(xs, out, pads, rank, world_size: tl.constexpr, mistake: tl.constexpr):
    """All-reduce: each rank adds up all inputs. The mistake: no barrier at the end, so inputs go away too early."""
    at = tl.arange(0, 256)
    meet(pads, 0, rank, world_size, "acq_rel")
    total = tl.zeros((256,), tl.float32)
    for peer in range(world_size):
        total += tl.load(peer_pointer(xs, peer, tl.float32) + at)
    tl.store(out + at, total)
    if not mistake:
        meet(pads, 1, rank, world_size, "acq_rel")


@triton.jit
def push(x, outs, pads, rank, world_size: tl.constexpr, mistake: tl.constexpr):
    """All-gather: each rank stores its input at all ranks. The mistake: flags behind the stores are relaxed."""
    at = tl.arange(0, 256)
    meet(pads, 0, rank, world_size, "acq_rel")
    value = tl.load(x + at)
    for peer in range(world_size):
        tl.store(peer_pointer(outs, peer, tl.float32) + rank * 256 + at, value)
    meet(pads, 1, rank, world_size, "relaxed" if mistake else "acq_rel")


@triton.jit
def shift(x, slots, flags, out, rank, call, world_size: tl.constexpr, mistake: tl.constexpr):
    """Each rank passes its input on. The mistake: it does not wait until the neighbour has emptied the slot."""
    at = tl.arange(0, 256)
    after, before = (rank + 1) % world_size, (rank + world_size - 1) % world_size
    own = peer_pointer(flags, rank, tl.uint32)
    if not mistake:
        while tl.atomic_add(own + 1, 0, sem="acquire", scope="sys") < call:
            pass
    tl.debug_barrier()
    tl.store(peer_pointer(slots, after, tl.float32) + at, tl.load(x + at))
    tl.debug_barrier()
    tl.atomic_add(peer_pointer(flags, after, tl.uint32), 1, sem="release", scope="sys")
    while tl.atomic_add(own, 0, sem="acquire", scope="sys") < call + 1:
        pass
    tl.debug_barrier()
    tl.store(out + at, tl.load(peer_pointer(slots, rank, tl.float32) + at))
    tl.debug_barrier()
    tl.atomic_add(peer_pointer(flags, before, tl.uint32) + 1, 1, sem="release", scope="sys")


RANK, CALL = (lambda place: place.rank), (lambda place: place.call)
PADS = "pads:u32[64]=0"
PROGRAMS = {
    "one_shot": (f"x:f32[256],out:f32[256],{PADS}", one_shot, {"xs": "x_table", "out": "out", "pads": "pads_table"}),
    "push": (f"x:f32[256],out:f32[world_size,256],{PADS}", push, {"x": "x", "outs": "out_table", "pads": "pads_table"}),
    "shift": (
        "x:f32[256],out:f32[256],slots:f32[256]=0,flags:u32[2]=0",
        shift,
        {"x": "x", "slots": "slots_table", "flags": "flags_table", "out": "out", "call": CALL},
    ),
}
"""Name -> buffers, kernel and arguments beside `rank`."""
REFERENCES = {
    "one_shot": lambda x: {"out": [sum(x)] * len(x)},
    "push": lambda x: {"out": [x] * len(x)},
    "shift": lambda x: {"out": [x[-1], *x[:-1]]},
}


def program(name: str, *, mistake: bool) -> TritonProgram:
    """The program of a name, right or with its mistake."""
    buffers, kernel, arguments = PROGRAMS[name]
    launch = TritonLaunch(kernel, {**arguments, "rank": RANK}, {"mistake": mistake})
    return TritonProgram((launch,), parse_buffers(buffers))


def check_program(name: str, *, mistake: bool) -> Report:
    """Checks a program on two ranks."""
    return check(program(name, mistake=mistake), 2, reference=REFERENCES[name])


if __name__ == "__main__":
    for each in PROGRAMS:
        for wrong in (False, True):
            sys.stdout.write(
                f"{each}{' with its mistake' if wrong else ''}\n{as_text(check_program(each, mistake=wrong))}\n"
            )
