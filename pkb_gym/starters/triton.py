"""Naive Triton kernels for sums over ranks: NCCL brings the terms together, one kernel adds them up."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pkb_gym.engine.problem import Problem
from pkb_gym.envs.text.python_sources import python_signature
from pkb_gym.kernels.text import fill
from pkb_gym.problems.catalogue import reference_source


@dataclass(frozen=True)
class TritonKernel:
    """A module that has a Triton kernel.

    Attributes:
        source: Text of the module.
        idea: Sentence without a full stop about the way to the result.
    """

    source: str
    idea: str


ADD_UP = '''
import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def add_up_kernel(terms, out, n, W: tl.constexpr, SUM: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.zeros((BLOCK,), SUM)
    for r in range(W):
        total += tl.load(terms + r * n + at, mask=inside, other=0).to(SUM)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def add_up(terms: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the sum of terms (W, ...) over its first dimension to out (...)."""
    n, block = out.numel(), 1024
    sums = tl.float64 if out.dtype == torch.float64 else tl.float32
    if n:
        add_up_kernel[(triton.cdiv(n, block),)](terms, out, n, terms.shape[0], sums, block)


@torch.no_grad()
$signature
    $body
'''

BODIES = MappingProxyType(
    {
        "AllReduce": """
            terms = tensor.new_empty(dist.get_world_size(), *tensor.shape)
            dist.all_gather_into_tensor(terms, tensor)
            out = torch.empty_like(tensor)
            add_up(terms, out)
            return out
            """,
        "Reduce": """
            out = tensor.clone()
            at_root = dist.get_rank() == dst
            terms = tensor.new_empty(dist.get_world_size() if at_root else 0, *tensor.shape)
            dist.gather(tensor, list(terms.unbind(0)) if at_root else None, dst=dst)
            if at_root:
                add_up(terms, out)
            return out
            """,
        "ReduceScatter": """
            W = dist.get_world_size()
            terms = torch.empty_like(tensor)
            dist.all_to_all_single(terms, tensor)
            out = tensor.new_empty(tensor.shape[0] // W, *tensor.shape[1:])
            add_up(terms.view(W, *out.shape), out)
            return out
            """,
    }
)
"""Name of the problem -> the steps of its `solution`."""


def triton_kernel(problem: Problem) -> TritonKernel | None:
    """A naive kernel with the reference's signature; None where none is known."""
    if problem.name not in BODIES:
        return None
    signature = python_signature(reference_source(problem))
    source = fill(ADD_UP, signature=signature, body=BODIES[problem.name])
    return TritonKernel(f"{source}\n", "a collective brings the terms of all ranks together, one kernel adds them up")
