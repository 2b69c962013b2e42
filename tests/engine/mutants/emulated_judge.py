"""Judges the mutants of a CUDA kernel on emulated GPUs, all of one compile."""

from __future__ import annotations

from collections.abc import Sequence
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
from tests.engine.mutants.schemata import NotInstantiated, Schemata

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
        library = compile_of_many(schemata.source_of(0), cache, OPTIMISED)
        return cls(evaluator, problem, schemata, library, cache)

    def is_clean(self, number: int, size: str = "tiny", seed: int = 0, *, traps: bool = False) -> bool:
        """Whether a mutant passes without a finding of the race detector; number 0 is the kernel itself.

        Raises:
            NotInstantiated: No function of the library has the operation.
        """
        source = self.schemata.source_of(number, traps=traps)
        if number:
            library = self.schemata.library_of(self.library, number, traps=traps)
            compile_emulated(source, Answering(self.cache.folder, library), TIMEOUT_S)
        settings = {"device": "emulated", "world_size": 2, "until": "check", "race_check": "on", "seed": seed}
        config = EvalConfig.model_validate(settings | {"timeout_s": 60.0} | config_of(size))
        feedback = self.evaluator.evaluate(self.problem, source, config)
        assert feedback.failure not in NO_VERDICT, feedback.message
        return feedback.passed and not (feedback.emulation and feedback.emulation.findings)

    def is_found(self, name: str, sizes: Sequence[str], seeds: int) -> bool | None:
        """Whether a mutant is found at one of the sizes, with one of the seeds; None where no size reaches it.

        Args:
            name: Name of the mutant.
            sizes: Sizes, the quickest first.
            seeds: Number of evaluations at each size that reaches the operation.
        """
        number, reached = 1 + self.schemata.names.index(name), False
        try:
            for size in sizes:
                if not self.is_clean(number, size):
                    return True
                if not self.is_clean(number, size, traps=True):
                    reached = True
                    if not all(self.is_clean(number, size, seed) for seed in range(1, seeds)):
                        return True
        except NotInstantiated:
            return None
        return False if reached else None
