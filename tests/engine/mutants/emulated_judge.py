"""Judges the mutants of a CUDA kernel on emulated GPUs, all of one compile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import compile_emulated
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from tests.engine.emulated.compiled_together import OPTIMISED, compile_of_many
from tests.engine.joined_libraries import TIMEOUT_S, Answering
from tests.engine.mutants.further_sizes import config_of
from tests.engine.mutants.schemata import Schemata

NO_VERDICT = (Failure.INFRASTRUCTURE, Failure.COMPILE_ERROR, Failure.LOAD_ERROR, Failure.REJECTED)


@dataclass(frozen=True)
class EmulatedJudge:
    """A kernel with its mutants, compiled.

    Attributes:
        evaluator: Evaluator that judges.
        problem: Problem that the kernel solves.
        schemata: The kernel and its mutants.
        library: The compiled kernel.
        cache: Cache of the evaluator.
    """

    evaluator: LocalEvaluator
    problem: Problem
    schemata: Schemata
    library: Artifact
    cache: CompileCache

    @classmethod
    def of(cls, evaluator: LocalEvaluator, problem: Problem, kernel: str, cache: CompileCache) -> EmulatedJudge:
        """Compiles a kernel with its mutants."""
        schemata = Schemata.of(kernel)
        library = compile_of_many(schemata.source_of(), cache, OPTIMISED)
        return cls(evaluator, problem, schemata, library, cache)

    def is_clean(self, number: int = 0, size: str = "tiny", seed: int = 0, *, traps: Collection[int] = ()) -> bool:
        """Whether a mutant passes without a finding of the race detector; number 0 is the kernel itself.

        Args:
            number: Number of the mutant.
            size: Size, see `config_of`.
            seed: Seed of the evaluation.
            traps: Numbers of mutants whose operations end the kernel with an error where it reaches them.

        Raises:
            NotInstantiated: No function of the library has the operation.
        """
        source = self.schemata.source_of(number, traps=traps)
        if number or traps:
            library = self.schemata.library_of(self.library, number, traps=traps)
            compile_emulated(source, Answering(self.cache.folder, library), TIMEOUT_S)
        settings = {"device": "emulated", "world_size": 2, "until": "check", "race_check": "on", "seed": seed}
        config = EvalConfig.model_validate(settings | {"timeout_s": 60.0} | config_of(size))
        feedback = self.evaluator.evaluate(self.problem, source, config)
        assert feedback.failure not in NO_VERDICT, feedback.message
        return feedback.passed and not (feedback.emulation and feedback.emulation.findings)

    def outcomes(self, names: Sequence[str], sizes: Sequence[str], seeds: int) -> dict[str, bool | None]:
        """Whether each mutant is found at one of the sizes, with one of the seeds; None where no size reaches it.

        What no function of the library has is evaluated nowhere, and of what passes, many are asked at once whether
        the kernel reaches any of them: most mutants in headers stand in code of other kernels.

        Args:
            names: Names of the mutants.
            sizes: Sizes, the quickest first.
            seeds: Number of evaluations at each size that reaches the operation.
        """
        number_of = {name: self.schemata.names.index(name) + 1 for name in names}
        found: dict[int, bool | None] = dict.fromkeys(number_of.values())
        remaining = sorted(self.schemata.instantiated(self.library).intersection(found))
        for size in sizes:
            passing = [number for number in remaining if self.is_clean(number, size)]
            for number in self._reached(passing, size):
                if all(self.is_clean(number, size, seed) for seed in range(1, seeds)):
                    found[number] = False
                else:
                    passing.remove(number)
            found |= dict.fromkeys(set(remaining).difference(passing), True)
            remaining = passing
        return {name: found[number] for name, number in number_of.items()}

    def _reached(self, numbers: Sequence[int], size: str) -> Sequence[int]:
        """The mutants among them whose operations the kernel reaches."""
        if not numbers or self.is_clean(size=size, traps=numbers):
            return []
        if len(numbers) == 1:
            return numbers
        half = len(numbers) // 2
        return [*self._reached(numbers[:half], size), *self._reached(numbers[half:], size)]
