"""Sources of candidates that are made of a reference: wrong ones, right ones of another arithmetic, and the oracle's.

Each is a module of the python dialect that holds the text of the reference and of what changes it, so that the
evaluator judges it as it judges any candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from pkb_gym.authoring.finer_arithmetic import Results
from pkb_gym.authoring.freedoms import Freedom, has_float32_answer
from pkb_gym.authoring.wrong_inputs import CHANGES, Change, changed_tensor, zeros
from pkb_gym.engine.problem import InPlace, Problem
from pkb_gym.engine.problem.rules import unequal
from pkb_gym.engine.problem.values import Value

MODULES = ("other_arithmetic", "other_sums_over_ranks", "wrong_collectives", "wrong_inputs")
"""Modules beside this one whose text a candidate holds where it uses them."""

RANKS = 1024
"""Seeds between two calls, more than ranks."""

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


def other_source(problem: Problem, reference: str, seed: int, freedom: Freedom) -> str:
    """The reference with other orders of sums, roundings and ties in each call: right, as far as the freedom goes.

    Args:
        problem: Problem to solve.
        reference: Text of its `reference.py`.
        seed: Seed of the first call; each call has the next.
        freedom: Freedoms that the problem leaves.
    """
    wide = freedom.wide and has_float32_answer(problem)
    facts = f"SEED, RANKS, WIDE, MODES = {seed}, {RANKS}, {wide}, {freedom.modes()}"
    return _source(problem, reference, facts + OTHER)


def oracle_source(problem: Problem, oracle: str) -> str:
    """A candidate that gathers the arguments of all ranks and returns the oracle's results for its own."""
    return _source(problem, oracle, ORACLE)


def results_of(problem: Problem) -> Results:
    """The results of a problem's `solution`, in the order of its arguments and of what it returns."""
    in_place = {out.name for out in problem.outputs if isinstance(out, InPlace)}
    return Results(
        written=tuple(place for place, arg in enumerate(problem.args) if arg.name in in_place),
        floating=tuple(getattr(out, "dtype", None) is None for out in problem.returned),
        returns=problem.returns,
        keys=tuple(out.key for out in problem.returned),
    )


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
    used = ("finer_arithmetic", *(name for name in MODULES if f"{name}." in solution))
    texts = {name: (HERE / f"{name}.py").read_text(encoding="utf-8") for name in used} | {"original": original}
    results = results_of(problem)
    facts = {
        "TEXTS": texts,
        "DATA": data_places(problem),
        "WRITTEN": results.written,
        "FLOATING": results.floating,
        "RETURNS": results.returns,
        "KEYS": results.keys,
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


globals().update({name: _module(name) for name in TEXTS})

each, write = finer_arithmetic.each, finer_arithmetic.write
RESULTS = finer_arithmetic.Results(WRITTEN, FLOATING, RETURNS, KEYS)

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
finer = finer_arithmetic.evaluated_in(torch.float64, original.solution, RESULTS)


def solution(*args):
    try:
        return finer(*args)
    except Exception as error:
        raise RuntimeError(NOT_APPLICABLE + f": the reference does not take float64 ({error})") from None
"""

OTHER = """
calls = 0


def solution(*args):
    global calls
    seed = SEED + calls
    calls += 1
    inner = original.solution
    if WIDE and seed % 3 == 2:
        inner = finer_arithmetic.evaluated_in(torch.float32, inner, RESULTS)
    original.dist = other_sums_over_ranks.OtherSums(seed)
    with other_arithmetic.OtherArithmetic(RANKS * seed + dist.get_rank(), **MODES):
        return inner(*args)
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
