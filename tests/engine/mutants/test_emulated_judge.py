"""Which evaluations a judge of mutants asks for, with verdicts from a table in place of emulated GPUs."""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.problems.catalogue import find_problem
from tests.engine.mutants.emulated_judge import EmulatedJudge
from tests.engine.mutants.schemata import Schemata

NAMES = tuple(f"mutant {number}" for number in range(1, 9))
SIZES = ("tiny", "large")


@dataclass(frozen=True)
class ScriptedJudge(EmulatedJudge):
    """A judge whose kernel reaches known operations.

    Attributes:
        reached: Size -> numbers of the operations that the kernel reaches.
        refused: Size and seed -> numbers of the mutants that are refused with it.
        asked: Evaluations so far: number of the mutant, size, seed and traps.
    """

    reached: dict[str, Set[int]]
    refused: dict[tuple[str, int], Set[int]]
    asked: list[tuple[int, str, int, tuple[int, ...]]] = field(default_factory=list)

    def is_clean(self, number: int = 0, size: str = "tiny", seed: int = 0, *, traps: Collection[int] = ()) -> bool:
        self.asked.append((number, size, seed, tuple(traps)))
        return number not in self.refused.get((size, seed), ()) and self.reached[size].isdisjoint(traps)


@pytest.fixture
def judge(tmp_path: Path) -> ScriptedJudge:
    """Mutants 1 to 5 are in the library, of which size tiny reaches 1 and 2, and large 3 and 4 as well."""
    ptx = "".join(f"mov.u32 %r1, {1000000000 + 10 * number};\n" for number in range(1, 6))
    return ScriptedJudge(
        create_autospec(LocalEvaluator),
        find_problem("AllGather"),
        Schemata(NAMES, "", ()),
        Artifact(ok=True, binary=ptx.encode(), log="", duration_s=0.0),
        CompileCache.in_folder(tmp_path),
        reached={"tiny": {1, 2}, "large": {1, 2, 3, 4}},
        refused={("tiny", 0): {1}, ("large", 2): {3}},
    )


def test_mutants_are_found_survive_or_are_not_reached(judge: ScriptedJudge) -> None:
    outcomes = judge.outcomes(NAMES, SIZES, 3)
    assert list(outcomes.values()) == [True, False, True, False, None, None, None, None]


def test_what_no_function_of_the_library_has_is_not_evaluated(judge: ScriptedJudge) -> None:
    assert judge.outcomes(NAMES[5:], SIZES, 3) == dict.fromkeys(NAMES[5:])
    assert judge.asked == []


def test_one_evaluation_tells_that_none_of_many_operations_is_reached(judge: ScriptedJudge) -> None:
    assert judge.outcomes(NAMES[2:5], ["tiny"], 3) == dict.fromkeys(NAMES[2:5])
    assert judge.asked == [(3, "tiny", 0, ()), (4, "tiny", 0, ()), (5, "tiny", 0, ()), (0, "tiny", 0, (3, 4, 5))]
