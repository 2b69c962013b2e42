"""What the baseline returned, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.problem.tensors import output_leaves
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.problems.catalogue import find_problem


def test_results_in_host_memory_are_compared_where_the_heap_is() -> None:
    """A baseline may return counts in host memory, where no kernel of a native candidate writes."""
    problem = find_problem("MoETokenPreprocess")
    plan = Workload(problem, "tiny", 1, problem.dtypes[0], "robust", b"key", 0, 0).plan([0], True, 8192)
    heap: Any = SimpleNamespace(bytes=lambda: torch.empty(0, dtype=torch.uint8, device="meta"))
    block = BoundBlock(problem, plan, 0, heap, [], [[None] * len(problem.args)], lambda: None, 0)
    ax = plan.sets[0].axes[0]
    returned = [
        [torch.zeros(leaf.shape or (), dtype=getattr(torch, leaf.dtype)) for leaf in output_leaves(out, ax)]
        for out in problem.returned
    ]
    assert {result.device.type for result in block.results_by_name(0, returned).values()} == {"meta"}
