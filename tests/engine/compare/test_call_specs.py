"""The calls of a block in the form that rank programs receive."""

from __future__ import annotations

import json

import pytest

from pkb_gym.engine.compare.call_specs import call_runs, call_spec
from pkb_gym.engine.problem import Group, Linear, Output, Problem, Scalar, Sparse, TensorList
from pkb_gym.engine.problem.tensors import output_leaves
from pkb_gym.engine.wire.arguments import GroupArgument, ScalarArgument, TensorArgument, unroll
from pkb_gym.engine.wire.messages import read
from pkb_gym.engine.wire.orders import Bind, Dialect
from pkb_gym.problems.catalogue import catalogue
from tests.engine.compare.plans import plan
from tests.whole_tables import sampled

DIALECTS: tuple[Dialect, ...] = ("native", "python")


def kinds_of(arg: object) -> set[str]:
    """How an argument may be handed over."""
    if isinstance(arg, Scalar):
        return {"scalar"}
    if isinstance(arg, Group):
        return {"group"}
    if isinstance(arg, TensorList):
        return {"list", "bare"} if arg.bare is not None else {"list"}
    return {"linear"} if isinstance(arg, Linear) else {"sparse"} if isinstance(arg, Sparse) else {"tensor"}


def kind(argument: object) -> str:
    if isinstance(argument, ScalarArgument):
        return "scalar"
    if isinstance(argument, GroupArgument):
        return "group"
    assert isinstance(argument, TensorArgument)
    return argument.kind


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 2), ids=lambda problem: problem.name)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_rank_gets_its_arguments(problem: Problem, dialect: Dialect) -> None:
    block = plan(problem)
    for planned in block.sets:
        for rank in range(4):
            spec = call_spec(problem, block, planned, rank, dialect)
            assert (spec.offset, spec.nbytes) == (planned.offset, planned.nbytes)
            declared = spec.arguments[: len(problem.args)]
            for arg, argument in zip(problem.args, declared, strict=True):
                assert kind(argument) in kinds_of(arg), arg
            if dialect == "python":
                assert len(spec.arguments) == len(problem.args)
                assert [result.name for result in spec.results] == [out.name for out in problem.returned]
                assert spec.returned == ()
            else:
                returned = [out for out in problem.returned if isinstance(out, Output) and out.is_returned]
                assert len(spec.arguments) == len(problem.args) + len(problem.returned) - len(returned)
                leaves = [leaf for out in returned for leaf in output_leaves(out, planned.axes[rank])]
                assert ([slot.capacity for slot in spec.returned], spec.results) == (
                    [leaf.capacity for leaf in leaves],
                    (),
                )


def test_lists_with_none_leave_no_tensor() -> None:
    """Ranks may lack what others have; the place stays free there, and is the same elsewhere."""
    seen_none = False
    for problem in catalogue():
        block = plan(problem)
        for planned in block.sets:
            names = [set(leaves) for leaves in planned.leaves]
            for rank in range(4):
                for argument in call_spec(problem, block, planned, rank, "python").arguments:
                    seen_none |= isinstance(argument, TensorArgument) and None in argument.slots
            for name in set.union(*names):
                offsets = {leaves[name].offset for leaves in planned.leaves if name in leaves}
                assert len(offsets) == 1, (problem.name, name)
    assert seen_none, "no problem of the catalogue has a None tensor: this test tests nothing"


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 3), ids=lambda problem: problem.name)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_runs_unroll_to_the_calls(problem: Problem, dialect: Dialect) -> None:
    """Calls are listed once where trials are alike, each for itself where they differ."""
    for timed in (False, True):
        block = plan(problem, timed=timed, trials=3)
        for rank in range(4):
            sent = Bind(call_runs(problem, block, rank, dialect), block.partitions)
            received = read(json.loads(json.dumps(sent.to_json())), Bind)
            assert received == sent
            specs = [call_spec(problem, block, planned, rank, dialect) for planned in block.sets]
            assert unroll(received.runs) == specs
            assert sum(len(run.distances) for run in received.runs) == len(specs)
