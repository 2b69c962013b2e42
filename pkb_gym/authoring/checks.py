"""The checks of a problem: what the tests of this package's problems prove, for one from anywhere.

Candidates made of its reference are judged by an evaluator, at size tiny: the reference itself and other right ones
must pass, wrong ones must be refused. The rest is computed here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from typing import Literal

from pkb_gym.authoring.freedoms import freedom_of
from pkb_gym.engine.errors import DeclarationError, InfrastructureError, SizeError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Cost, Problem
from pkb_gym.engine.problem.axes import AxisValue
from pkb_gym.engine.problem.inputs import Draw, TrialKey
from pkb_gym.engine.problem.rules import same_bits
from pkb_gym.engine.problem.values import Value
from pkb_gym.engine.records.config import EvalConfig, Protocol
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import choose_problem, expert_source, problem_folder, reference_source

SIZES = ("tiny", "published", "large")
WORLD_SIZES = (1, 2, 4)
KEY = b"pkb check-problem"
ORACLE = "oracle.py"
TRIALS = range(4)

REFUSALS = (Failure.OUTPUT_MISMATCH, Failure.WRONG_SHAPE_OR_DTYPE)
"""Failures that the problem's check reports. Other failures of a wrong solution are no evidence about the check."""

State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        state: "skipped" where it does not apply.
        detail: Finding in words.
        remedy: Way to mend it; empty unless the check failed.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


def check_problem(path: str | os.PathLike[str], evaluator: Evaluator) -> Iterator[CheckResult]:
    """Every check, one after another; those that need a declaration are left out where it is broken.

    Args:
        path: Path of the problem's folder, or a name.
        evaluator: Evaluator of the candidates, on the CPU.

    Raises:
        ConfigError: there is no problem.
        InfrastructureError: this machine could not judge a candidate.
    """
    try:
        problem = choose_problem(path)
    except DeclarationError as error:
        yield CheckResult("declaration loads", "failed", str(error), "correct problem.py; docs/problems.md explains it")
        return
    yield CheckResult("declaration loads", "passed", f"{problem.name}, {len(problem.args)} arguments")
    for name, check, remedy in DECLARED:
        result = _checked(name, check, problem, remedy)
        yield result
        if result.state == "failed" and check in (check_sizes, check_inputs):
            return  # no candidate could be given its arguments
    yield from check_candidates(problem, evaluator)


def _checked(name: str, check: Callable[[Problem], str], problem: Problem, remedy: str) -> CheckResult:
    try:
        return CheckResult(name, "passed", check(problem))
    except Exception as error:  # noqa: BLE001  # what a declaration computes may fail in any way
        is_clear = isinstance(error, DeclarationError | SizeError)
        return CheckResult(name, "failed", str(error) if is_clear else f"{type(error).__name__}: {error}", remedy)


def world_sizes(problem: Problem) -> tuple[int, ...]:
    """The world sizes among 1, 2 and 4 that it is declared for; its smallest where there is none."""
    return tuple(size for size in WORLD_SIZES if size in problem.world_sizes) or (min(problem.world_sizes),)


def check_sizes(problem: Problem) -> str:
    """Every named size gives shapes on every world size and dtype.

    Raises:
        SizeError: one does not.
    """
    for size in SIZES:
        for world_size in problem.world_sizes:
            for dtype in problem.dtypes:
                problem.check_axes(size, world_size, dtype, "robust")
    return f"{', '.join(SIZES)} on {', '.join(map(str, problem.world_sizes))} ranks in {', '.join(problem.dtypes)}"


def check_inputs(problem: Problem) -> str:
    """Trials of each declared protocol have the declared shapes and dtypes, at size tiny.

    Raises:
        DeclarationError: they have not.
    """
    for protocol in problem.protocols:
        for world_size in world_sizes(problem):
            for trial in TRIALS:
                draw_inputs(problem, world_size, trial, protocol)
    protocols = " and ".join(problem.protocols)
    return f"{len(TRIALS)} trials of {protocols} on {', '.join(map(str, world_sizes(problem)))} ranks"


def check_inputs_differ(problem: Problem) -> str:
    """Checks that no two timed trials of "robust" have the same inputs on the first rank.

    Raises:
        DeclarationError: two have.
    """
    if not problem.data_args:
        return "there are none"
    world_size = max(world_sizes(problem))
    seen = [_bits(draw_inputs(problem, world_size, trial, timed=True)[0]) for trial in TRIALS]
    for one, other in ((a, b) for a in TRIALS for b in TRIALS if a < b):
        if seen[one] == seen[other]:
            raise DeclarationError(
                f"{problem.name}: trials {one} and {other} have the same inputs: answers can be stored"
            )
    return f"{len(TRIALS)} trials, each with its own"


def check_cost(problem: Problem) -> str:
    """Memory is used on most ranks at size published, and no work is less at a larger named size.

    Raises:
        DeclarationError: it is not.
    """
    if problem.undeclared:
        return f"no {' and no '.join(problem.undeclared)}: no roofline, and rewards go by the speedup alone"
    for world_size in problem.world_sizes:
        costs = {size: most_cost(problem, size, world_size) for size in SIZES}
        # A problem that only moves data between ranks has nothing to do on one.
        if world_size == max(problem.world_sizes) and not costs["published"].memory_bytes:
            raise DeclarationError(f"{problem.name}: no memory traffic at size published on {world_size} ranks")
        for small, large in itertools.pairwise(SIZES):
            for field in fields(Cost):
                less, more = (getattr(costs[size], field.name) for size in (small, large))
                if less > more:
                    what = f"{field.name} falls from {less:.3g} at {small} to {more:.3g} at {large}"
                    raise DeclarationError(f"{problem.name}: {what} on {world_size} ranks")
    return "at least 0, and no less at a larger size"


def most_cost(problem: Problem, size: str, world_size: int) -> Cost:
    """The largest amount of each kind of work over the ranks."""
    ranks = [problem.cost(problem.axes(size=size, world_size=world_size, rank=rank)) for rank in range(world_size)]
    return Cost(*map(max, zip(*map(astuple, ranks), strict=True)))


DECLARED: tuple[tuple[str, Callable[[Problem], str], str], ...] = (
    ("sizes fit", check_sizes, "let `derive` give every shape at each size, dtype and world size"),
    ("inputs are as declared", check_inputs, "have `inputs` return one value for each data argument"),
    ("inputs differ", check_inputs_differ, "draw values that differ from trial to trial (make.normal, ...)"),
    ("cost", check_cost, "have `cost` count the work of one rank, in flop and bytes"),
)
"""Name, check and remedy of what needs no candidate."""


def draw_inputs(
    problem: Problem, world_size: int, trial: int, protocol: str = "robust", *, timed: bool = False
) -> list[tuple[Value, ...]]:
    """The data arguments of every rank in one trial, at size tiny."""
    from pkb_gym.engine.problem.trial_inputs import make_inputs

    key = TrialKey(KEY, 0, problem.name, 0, trial, timed)
    size: str | dict[str, AxisValue] = "tiny"
    axes = [
        problem.axes(size=size, world_size=world_size, rank=rank, protocol=protocol, draw=Draw(key))
        for rank in range(world_size)
    ]
    return [make_inputs(problem, ax, key, protocol) for ax in axes]


def _bits(value: object) -> object:
    """A form of it that can be compared with ==."""
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return [_bits(part) for part in value] if isinstance(value, list | tuple) else value


def check_candidates(problem: Problem, evaluator: Evaluator) -> Iterator[CheckResult]:
    """The reference on several ranks, in each dtype and protocol, other right candidates, then wrong ones."""
    from pkb_gym.authoring.mutants import finer_source, mutants, oracle_source, other_source

    judge = TinyEvaluator(problem, evaluator)
    reference = reference_source(problem)
    correct = "correct reference.py, or what is declared of its arguments and outputs"
    for world_size in world_sizes(problem):
        result = judge.right(f"reference, {world_size} ranks", reference, correct, world_size=world_size)
        yield result
        if result.state == "failed":
            return
    several = judge.world_size
    for dtype in problem.dtypes[1:]:
        yield judge.right(f"reference, {dtype}", reference, correct, dtype=dtype)
    if "published" in problem.protocols:
        yield judge.right("reference, protocol published", reference, correct, protocol="published")
    oracle = problem_folder(problem) / ORACLE
    if oracle.is_file():
        for world_size in world_sizes(problem):
            source = oracle_source(problem, oracle.read_text(encoding="utf-8"))
            name, remedy = (
                f"oracle, {world_size} ranks",
                "one of reference.py and oracle.py is wrong, or the check too narrow",
            )
            yield judge.right(name, source, remedy, world_size=world_size)
    else:
        yield CheckResult("oracle", "skipped", f"there is no {ORACLE}: nothing shows that the reference is right")
    finer = "tolerance: float64 inside passes"
    if any(isinstance(out.check, same_bits) for out in problem.outputs):
        yield CheckResult(finer, "skipped", "outputs are compared bit for bit: data that is only moved")
    else:
        remedy = "widen the check: it refuses a more exact answer, rounded once"
        yield judge.right(finer, finer_source(problem, reference), remedy)
    orders = replace(freedom_of(problem), fast_functions=False)
    remedy = "widen the check: it refuses sums in another order, or equal elements in another"
    yield judge.right("tolerance: any order passes", other_source(problem, reference, 0, orders), remedy)
    if (expert := expert_source(problem)) is not None:
        yield judge.right("expert.cpp", expert, "correct expert.cpp", language="cpp")
    if several < 2:
        yield CheckResult("wrong solutions", "skipped", "the problem is declared for one rank alone")
        return
    for mutant in mutants(problem, reference, draw_inputs(problem, several, 0)):
        yield judge.wrong(f"refused: {mutant.name}", mutant.source)


@dataclass(frozen=True)
class TinyEvaluator:
    """Has candidates judged at size tiny on the CPU."""

    problem: Problem
    evaluator: Evaluator

    @property
    def world_size(self) -> int:
        """Two ranks, or as near as the problem is declared for."""
        several = [size for size in self.problem.world_sizes if size > 1]
        return min(several or self.problem.world_sizes)

    def right(
        self,
        name: str,
        source: str,
        remedy: str,
        *,
        world_size: int | None = None,
        dtype: str | None = None,
        protocol: Protocol = "robust",
        language: Literal["python", "cpp"] = "python",
    ) -> CheckResult:
        """The result for a candidate that must pass."""
        feedback = self._feedback(source, world_size or self.world_size, dtype, protocol, language)
        if reason := not_applicable(feedback):
            return CheckResult(name, "skipped", reason)
        if feedback.passed:
            return CheckResult(name, "passed", "passes the problem's own checks")
        return CheckResult(name, "failed", f"{feedback.failure}: {feedback.message}", remedy)

    def wrong(self, name: str, source: str) -> CheckResult:
        """The result for a candidate that must be refused."""
        feedback = self._feedback(source, self.world_size, None, "robust", "python")
        if reason := not_applicable(feedback):
            return CheckResult(name, "skipped", reason)
        if feedback.failure in REFUSALS:
            return CheckResult(name, "passed", str(feedback.failure))
        if not feedback.passed:
            return CheckResult(name, "skipped", f"it falls over, which proves nothing: {feedback.message}")
        remedy = "narrow the check, or draw inputs on which this mistake shows at every size"
        return CheckResult(name, "failed", "it passes", remedy)

    def _feedback(
        self, source: str, world_size: int, dtype: str | None, protocol: Protocol, language: Literal["python", "cpp"]
    ) -> Feedback:
        config = EvalConfig(
            device="cpu",
            world_size=world_size,
            size="tiny",
            dtype=dtype,
            protocol=protocol,
            language=language,
            until="check",
        )
        feedback = self.evaluator.evaluate(self.problem, source, config)
        if feedback.failure is Failure.INFRASTRUCTURE:
            raise InfrastructureError(feedback.message)
        return feedback


def not_applicable(feedback: Feedback) -> str:
    """The reason why a candidate does not differ from the reference, in its own words; empty where it does."""
    from pkb_gym.authoring.mutants import NOT_APPLICABLE

    _, found, reason = feedback.message.partition(f"{NOT_APPLICABLE}: ")
    return reason.splitlines()[0] if found else ""
