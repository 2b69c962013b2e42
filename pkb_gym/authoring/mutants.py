"""Sources of candidates that are made of a reference: wrong ones, a finer one, and the oracle's.

Each is a module of the python dialect that holds the text of the reference and of what changes it, so that the
evaluator judges it as it judges any candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from pkb_gym.authoring.wrong_inputs import CHANGES, Change, changed_tensor, zeros
from pkb_gym.engine.problem import InPlace, Problem
from pkb_gym.engine.problem.rules import unequal
from pkb_gym.engine.problem.values import Value

HERE = Path(__file__).resolve().parent
NOT_APPLICABLE = "pkb check-problem: does not apply"
"""Error with which a candidate raises where it would not differ from the reference."""


@dataclass(frozen=True)
class Mutant:
    """A wrong solution.

    Attributes:
        name: Mistake in a few words.
        source: Text of the candidate.
    """

    name: str
    source: str


def mutants(problem: Problem, reference: str, inputs: Iterable[Iterable[Value]]) -> list[Mutant]:
    """Wrong solutions of a problem on several ranks; changes of inputs that change nothing are left out.

    Args:
        problem: Problem to solve.
        reference: Text of its `reference.py`.
        inputs: Data arguments of a trial, of each rank.
    """
    drawn = [list(values) for values in inputs]
    made = [
        Mutant("zeros for every output", _source(problem, reference, ZEROS)),
        Mutant("the first call's answer again", _source(problem, reference, STALE)),
        Mutant("no communication", _source(problem, reference, ALONE)),
        Mutant("means for sums", _source(problem, reference, MEANS)),
    ]
    if any(changes_any(values, zeros) for values in drawn[1:]):
        made.append(Mutant("first rank's data alone", _source(problem, reference, FIRST_RANK)))
    for name, change in CHANGES.items():
        if any(changes_any(values, change) for values in drawn):
            text = INPUTS.replace("NAME", repr(name))
            made.append(Mutant(f"inputs: {name}", _source(problem, reference, text)))
    return made


def finer_source(problem: Problem, reference: str) -> str:
    """The reference in float64, rounded once at the end: right, if the problem prescribes no roundings on the way."""
    return _source(problem, reference, FINER)


def oracle_source(problem: Problem, oracle: str) -> str:
    """A candidate that gathers the arguments of all ranks and returns the oracle's results for its own."""
    return _source(problem, oracle, ORACLE)


def data_places(problem: Problem) -> dict[int, bool]:
    """Place of each data argument in a call of `solution` -> whether `solution` may write to it."""
    data = {arg.name for arg in problem.data_args}
    return {place: bool(getattr(arg, "mutable", False)) for place, arg in enumerate(problem.args) if arg.name in data}


def changes_any(values: Iterable[object], change: Change) -> bool:
    """Whether a change makes any difference to the drawn values of data arguments."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, torch.Tensor) and unequal(changed_tensor(value, change), value).any():
            return True
    return False


def _source(problem: Problem, original: str, solution: str) -> str:
    texts = {
        "wrong_collectives": (HERE / "wrong_collectives.py").read_text(encoding="utf-8"),
        "wrong_inputs": (HERE / "wrong_inputs.py").read_text(encoding="utf-8"),
        "original": original,
    }
    written = [
        arg.name for arg in problem.args if arg.name in {o.name for o in problem.outputs if isinstance(o, InPlace)}
    ]
    facts = {
        "TEXTS": texts,
        "DATA": data_places(problem),
        "WRITTEN": [place for place, arg in enumerate(problem.args) if arg.name in written],
        "FLOATING": [getattr(out, "dtype", None) is None for out in problem.returned],
        "RETURNS": problem.returns,
        "KEYS": [out.key for out in problem.returned],
        "NOT_APPLICABLE": NOT_APPLICABLE,
    }
    return "\n".join([HEAD, *(f"{name} = {value!r}" for name, value in facts.items()), COMMON, solution])


HEAD = """import sys
import types

import torch
import torch.distributed as dist
"""

COMMON = """

def _module(name):
    module = types.ModuleType("pkb_check_" + name)
    sys.modules[module.__name__] = module
    exec(compile(TEXTS[name], name + ".py", "exec"), module.__dict__)
    return module


wrong_collectives, wrong_inputs, original = map(_module, TEXTS)


def each(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each(part, change) for key, part in value.items()}
    return type(value)(each(part, change) for part in value) if isinstance(value, (list, tuple)) else value


def write(to, values):
    if isinstance(to, torch.Tensor):
        to.copy_(values)
    elif isinstance(to, (list, tuple)):
        for one, other in zip(to, values):
            write(one, other)

"""

ZEROS = """
def solution(*args):
    result = original.solution(*args)
    for place in WRITTEN:
        each(args[place], torch.Tensor.zero_)
    return each(result, torch.zeros_like)
"""

STALE = """
first = None


def solution(*args):
    global first
    result = original.solution(*args)
    if first is None:
        first = each(result, torch.clone), [each(args[place], torch.clone) for place in WRITTEN]
    for place, values in zip(WRITTEN, first[1]):
        write(args[place], values)
    return each(first[0], torch.clone)
"""

ALONE = """
def solution(*args):
    called = []
    with wrong_collectives.replaced(lambda number, name: called.append(name) is None, others=True):
        result = original.solution(*args)
    if not called:
        raise RuntimeError(NOT_APPLICABLE + ": the reference calls no collective as dist.NAME(...)")
    return result
"""

MEANS = """
def solution(*args):
    with wrong_collectives.means() as summed:
        result = original.solution(*args)
    if not summed:
        raise RuntimeError(NOT_APPLICABLE + ": the reference sums nothing over ranks")
    return result
"""

FIRST_RANK = """
def solution(*args):
    if dist.get_rank() == 0:
        return original.solution(*args)
    return original.solution(*wrong_inputs.changed_call(DATA, args, wrong_inputs.zeros))
"""

INPUTS = """
def solution(*args):
    return original.solution(*wrong_inputs.changed_call(DATA, args, wrong_inputs.CHANGES[NAME]))
"""

FINER = """
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def widened(value):
    if isinstance(value, torch.nn.Module):
        raise RuntimeError(NOT_APPLICABLE + ": it takes a module")
    if isinstance(value, torch.Tensor) and value.is_sparse:
        raise RuntimeError(NOT_APPLICABLE + ": it takes a sparse tensor")
    return each(value, lambda tensor: tensor.double() if tensor.dtype in DTYPES else tensor.clone())


def floating_dtypes(value, found):
    each(value, lambda tensor: found.append(tensor.dtype))
    return found


def solution(*args):
    given = [dtype for dtype in floating_dtypes(list(args), []) if dtype in DTYPES]
    wide = [widened(arg) for arg in args]
    try:
        result = original.solution(*wide)
    except Exception as error:
        raise RuntimeError(NOT_APPLICABLE + f": the reference does not take float64 ({error})") from None
    for place in WRITTEN:
        write(args[place], wide[place])

    def narrow(value, floating):
        return each(value, lambda t: t.to(given[0]) if t.dtype == torch.float64 else t) if floating and given else value

    if RETURNS == "value":
        return narrow(result, FLOATING[0]) if FLOATING else result
    if RETURNS == "dict":
        return {key: narrow(value, dict(zip(KEYS, FLOATING)).get(key)) for key, value in result.items()}
    return tuple(narrow(value, floating) for value, floating in zip(result, FLOATING))
"""

ORACLE = """
import io


def sent(value):
    if isinstance(value, dist.ProcessGroup):
        return dist.get_process_group_ranks(value)
    return each(value, lambda tensor: tensor.detach().cpu().clone())


def solution(*args):
    sending, received = io.BytesIO(), [None] * dist.get_world_size()
    torch.save(tuple(map(sent, args)), sending)  # pickle alone does not restore float8
    dist.all_gather_object(received, sending.getvalue())
    ranks = [torch.load(io.BytesIO(saved), weights_only=False) for saved in received]
    results = original.oracle(ranks)
    if len(results) != len(ranks):
        raise RuntimeError(f"oracle() gave {len(results)} results for {len(ranks)} ranks")
    for place in WRITTEN:
        write(args[place], ranks[dist.get_rank()][place])
    return each(results[dist.get_rank()], torch.Tensor.contiguous)
"""
