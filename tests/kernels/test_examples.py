"""Examples of prompts: short, right, of the train split, and never a kernel for the problem that is asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs.suite import split_names
from pkb_gym.kernels import CORPUS_FAMILIES
from pkb_gym.kernels.examples import Example, Pattern, example_for, examples, pattern_of
from pkb_gym.problems.catalogue import catalogue, find_problem
from pkb_gym.problems.splits import near_duplicates
from tests.engine.compiling import cpp_errors
from tests.engine.emulated.compiled_together import compile_of_many
from tests.engine.joined_libraries import compile_together
from tests.token_count import tokens
from tests.whole_tables import sampled

LANGUAGES = ("cpp", "cuda", "python")
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
ALL = [example for language in LANGUAGES for pattern in PATTERNS for example in examples(language, pattern)]
ON_CPU = sampled((each for each in ALL if each.language != "cuda"), 4)
MAX_TOKENS = 500


def _ids(example: Example) -> str:
    return f"{example.language}-{example.problem}"


@pytest.mark.parametrize("example", ALL, ids=_ids)
def test_examples_are_short_and_of_the_train_split(example):
    assert tokens(example.source) <= MAX_TOKENS
    assert example.problem in split_names("train")


@pytest.mark.parametrize("example", [each for each in ALL if each.language != "python"], ids=_ids)
def test_native_examples_are_variants_of_the_corpus(example):
    family = CORPUS_FAMILIES[example.problem, example.language]
    assert " ".join(example.source.split()) in {" ".join(variant.source.split()) for variant in family.variants}


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_example_is_of_another_problem_and_mostly_of_the_same_pattern(language):
    for problem in catalogue():
        example, wanted = example_for(problem, language), pattern_of(problem)
        assert example.problem not in near_duplicates(problem.name)
        fitting = [each for each in examples(language, wanted) if each.problem not in near_duplicates(problem.name)]
        assert example == fitting[0] if fitting else wanted != "gemm"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("GemmAllGather", "gemm"),
        ("MoEAllToAll", "exchange"),
        ("Broadcast", "push"),
        ("HyenaConv1d", "push"),
        ("ReduceScatter", "reduce"),
        ("KalmanFilterOptimizer", "reduce"),
        ("Conv2dBoundaryExchange", "pull"),
    ],
)
def test_patterns_follow_from_tags(name, pattern):
    assert pattern_of(find_problem(name)) == pattern


def test_triton_is_shown_python():
    problem = find_problem("TPRMSNorm")
    assert example_for(problem, "triton") == example_for(problem, "python")


@pytest.fixture(scope="module")
def compiled(compiled_before: Path) -> None:
    """Those in C++, compiled together."""
    sources = [example.source for example in ON_CPU if example.language == "cpp"]
    compile_together(sources, CompileCache.in_folder(compiled_before))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("example", ON_CPU, ids=_ids)
def test_an_example_is_right_on_two_ranks(example, local_evaluator):
    assert example.language != "cpp" or cpp_errors(example.source) == ""
    config = EvalConfig(device="cpu", language=example.language, world_size=2, size="tiny", until="check", trials=2)
    feedback = local_evaluator.evaluate(find_problem(example.problem), example.source, config)
    assert feedback.passed, f"{feedback.message}\n{example.source}"


@pytest.mark.slow
@pytest.mark.usefixtures("emulator_is_built")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("example", sampled((each for each in ALL if each.language == "cuda"), 12), ids=_ids)
def test_an_example_for_gpus_is_right_and_without_races_on_the_emulator(example, local_evaluator, compiled_before):
    compile_of_many(example.source, CompileCache.in_folder(compiled_before))
    config = EvalConfig(
        device="emulated", language="cuda", world_size=2, size="tiny", until="check", trials=2, race_check="on"
    )
    feedback = local_evaluator.evaluate(find_problem(example.problem), example.source, config)
    assert feedback.passed, f"{feedback.message}\n{example.source}"
