"""The calls of a block in the form that each rank's program receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pkb_gym.engine.compare.layout import BlockPlan, PlacedLeaf, SetPlan
from pkb_gym.engine.problem import Argument as DeclaredArgument
from pkb_gym.engine.problem import Axes, Group, Linear, Output, OutputList, Problem, Scalar, Sparse, TensorList
from pkb_gym.engine.problem.axes import resolve_shape
from pkb_gym.engine.problem.tensors import argument_leaves, output_leaves
from pkb_gym.engine.wire.arguments import (
    Argument,
    CallRun,
    CallSpec,
    GroupArgument,
    Result,
    ScalarArgument,
    TensorArgument,
    TensorSlot,
)
from pkb_gym.engine.wire.orders import Dialect


def call_spec(problem: Problem, block: BlockPlan, plan: SetPlan, rank: int, dialect: Dialect) -> CallSpec:
    """One call as one rank's program makes it; see `CallSpec` for what differs between the dialects."""
    ax, leaves = plan.axes[rank], plan.leaves[rank]
    arguments = [_argument(arg, ax, leaves, block) for arg in problem.args]
    results = [_result(out, ax, leaves) for out in problem.returned]
    if dialect == "python":
        return CallSpec(plan.offset, plan.nbytes, tuple(arguments), tuple(results))
    returned: list[TensorSlot] = []
    for out, result in zip(problem.returned, results, strict=True):
        if isinstance(out, OutputList):
            arguments.append(TensorArgument("list", result.slots))
        elif out.is_returned:
            returned += result.slots
        else:
            arguments.append(TensorArgument("tensor", result.slots or (None,)))
    return CallSpec(plan.offset, plan.nbytes, tuple(arguments), returned=tuple(returned))


def call_runs(problem: Problem, block: BlockPlan, rank: int, dialect: Dialect) -> tuple[CallRun, ...]:
    """A block's calls as one rank's program makes them, equal ones listed once."""
    return tuple(
        CallRun(
            call_spec(problem, block, run[0], rank, dialect),
            tuple(planned.offset - run[0].offset for planned in run),
        )
        for run in block.runs
    )


def _argument(arg: DeclaredArgument, ax: Axes, leaves: Mapping[str, PlacedLeaf], block: BlockPlan) -> Argument:
    if isinstance(arg, Scalar):
        return ScalarArgument(ax[arg.axis or arg.name])
    if isinstance(arg, Group):
        partition: Any = ax[arg.axis or arg.name]
        return GroupArgument(None if partition is None else block.partitions.index(partition))
    if isinstance(arg, TensorList):
        shapes = enumerate(ax.shapes(arg.shapes))
        elements = (None if shape is None else leaves[f"{arg.name}[{i}]"].slot for i, shape in shapes)
        return TensorArgument("bare" if arg.bare is not None and ax[arg.bare] else "list", tuple(elements))
    slots = tuple(leaves[leaf.name].slot for leaf in argument_leaves(arg, ax))
    if isinstance(arg, Linear):
        return TensorArgument("linear", slots if arg.bias else (*slots, None))
    if isinstance(arg, Sparse):
        return TensorArgument("sparse", slots, resolve_shape(arg.shape, ax))
    return TensorArgument("tensor", slots or (None,))


def _result(out: Output | OutputList, ax: Axes, leaves: Mapping[str, PlacedLeaf]) -> Result:
    slots = tuple(leaves[leaf.name].slot for leaf in output_leaves(out, ax))
    return Result(out.name, out.key, isinstance(out, OutputList), slots)
