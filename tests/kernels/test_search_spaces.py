"""Search spaces: every problem with an expert in C++ has one, and what no corpus may hold is in none."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs.suite import split_names
from pkb_gym.kernels import CORPUS_FAMILIES, FAMILIES, SEARCHED_ONLY
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from tests.engine.compiling import cpp_errors
from tests.engine.joined_libraries import compile_together
from tests.kernels.test_families import _parameters
from tests.whole_tables import sampled

SPACES = sorted(key for key in FAMILIES if key[0] in SEARCHED_ONLY)
LONG_FILTERS = {"B": 1, "num_groups": 4, "group_dim": 1, "l": 48, "Lf": 96, "with_zigzag_splitting": True}
"""On one rank more taps than T + 1 = 49, so that some act on the future, as at `published`."""
NAMES = sampled(sorted(name for name, language in SPACES if language == "cpp"), 12)


def test_every_problem_with_an_expert_in_cpp_is_searched_and_the_test_part_stays_out_of_the_corpus():
    experts = {problem.name for problem in catalogue() if expert_source(problem) is not None}
    assert experts <= {name for name, of in FAMILIES if of == "cpp"}
    assert not set(split_names("test")) & {name for name, _ in CORPUS_FAMILIES}


@pytest.mark.parametrize(("name", "language"), SPACES)
def test_variants_differ_and_have_the_signature_of_the_problem(name, language):
    variants = FAMILIES[name, language].variants
    assert 50 <= len(variants) <= 300
    assert len({" ".join(variant.source.split()) for variant in variants}) == len(variants)
    declared = _parameters(cpp_signature(find_problem(name)))
    for variant in variants[::20]:
        assert _parameters(variant.source) == declared and "$" not in variant.source, variant.name


LOOPS = sampled(("by output", "by tap", "by tap, blocks of 64"), 2)


def long_filters(loop: str) -> str:
    """A source that takes them, on the CPU."""
    knobs = {"share": "positions", "loop": loop, "taps": "widened", "memory": "fresh", "signalling": "barrier"}
    return FAMILIES["HyenaCP", "cpp"].render(knobs)


@pytest.fixture(scope="module")
def variants(compiled_before):
    """A variant of each problem that runs; what is compiled for the CPU here is compiled together."""
    found = {name: random.Random(name).choice(FAMILIES[name, "cpp"].variants) for name in NAMES}
    sources = [*(variant.source for variant in found.values()), *map(long_filters, LOOPS)]
    compile_together(sources, CompileCache.in_folder(compiled_before))
    return found


@pytest.fixture(scope="module")
def judged(variants, local_evaluator):
    """They, judged side by side."""

    def judge(name):
        variant = variants[name]
        config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", timeout_s=20)
        return variant, local_evaluator.evaluate(find_problem(name), variant.source, config)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(NAMES, pool.map(judge, NAMES), strict=True))


@pytest.mark.usefixtures("variants")
@pytest.mark.parametrize("loop", LOOPS)
def test_long_filters_act_on_the_future(loop: str, local_evaluator):
    config = EvalConfig(device="cpu", world_size=1, size=LONG_FILTERS, until="check")
    assert cpp_errors(long_filters(loop)) == ""
    feedback = local_evaluator.evaluate(find_problem("HyenaCP"), long_filters(loop), config)
    assert feedback.is_correct, feedback.message


@pytest.mark.usefixtures("emulator_is_built")
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.skipif(not os.environ.get("PKB_TEST_EMULATED"), reason="runs by `make emulated`")
def test_long_filters_act_on_the_future_on_gpus(local_evaluator):
    knobs = {"share": "channels", "threads": 32, "outputs": 1, "order": "nearest first"}
    source = FAMILIES["HyenaCP", "cuda"].render(knobs | {"unroll": "", "signalling": "host barrier"})
    config = EvalConfig(device="emulated", world_size=1, size=LONG_FILTERS, until="check")
    feedback = local_evaluator.evaluate(find_problem("HyenaCP"), source, config)
    assert feedback.is_correct, feedback.message


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_is_right_on_two_ranks(name, judged):
    variant, feedback = judged[name]
    assert cpp_errors(variant.source) == ""
    assert feedback.is_correct, f"{variant.name}: {feedback.message}\n{variant.source}"
