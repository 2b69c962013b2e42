"""Families: every text is another kernel, short, and right where it is run."""

from __future__ import annotations

import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.suite import split_names
from pkb_gym.kernels import CORPUS_FAMILIES, find_family
from pkb_gym.kernels.family import Variant
from pkb_gym.kernels.text import fill
from pkb_gym.problems.catalogue import find_problem
from tests.engine.compiling import cpp_errors
from tests.engine.joined_libraries import compile_together
from tests.whole_tables import by_make_all, sampled

MAX_CHARS, MAX_LINES = 3000, 75
HEADERS = re.compile(r'#include (?:<(algorithm|cmath|cstring|thread|vector|cuda_bf16\.h|cuda_fp16\.h)>|"pkb/(\w+)\.h")')
CPP = sorted(name for name, language in CORPUS_FAMILIES if language == "cpp")
ELSEWHERE = ("AllGather", "Scatter", "UlyssesAllGather", "GemmReduceScatter")
"""Two are run by the test of `pkb export`; the others have texts like those of AllGather and AllGatherGemm."""
RUN = sampled((name for name in CPP if name not in ELSEWHERE), 12)


def test_there_are_families_of_train_problems_in_both_languages():
    train = set(split_names("train"))
    assert {name for name, _ in CORPUS_FAMILIES} <= train
    assert len(CPP) >= 10 and {name for name, language in CORPUS_FAMILIES if language == "cuda"} == set(CPP)


@pytest.mark.parametrize(("problem", "language"), sorted(CORPUS_FAMILIES))
def test_variants_are_different_short_and_self_contained(problem, language):
    variants = find_family(problem, language).variants
    assert 35 <= len(variants) <= 450
    assert len({" ".join(variant.source.split()) for variant in variants}) == len(variants)
    assert len({variant.name for variant in variants}) == len(variants)
    for variant in variants:
        assert len(variant.source) <= MAX_CHARS and variant.source.count("\n") <= MAX_LINES, variant.name
        assert all(HEADERS.fullmatch(line) for line in variant.source.splitlines() if line.startswith("#include"))
        assert "$" not in variant.source and '#include "pkb/symm.h"' in variant.source


@pytest.mark.parametrize(("problem", "language"), sorted(CORPUS_FAMILIES))
def test_variants_have_the_signature_of_the_problem(problem, language):
    declared = _parameters(cpp_signature(find_problem(problem)))
    for variant in find_family(problem, language).variants[::50]:
        assert _parameters(variant.source) == declared, variant.name


def _parameters(source: str) -> list[str]:
    """Types of the parameters of `solution`."""
    text = re.sub(r"//[^\n]*", "", source).replace("tvm::ffi::", "")
    inside = text.split("void solution(")[1].split("pkb::Comm comm)")[0]
    inside = inside.replace("Sizes", "Optional<Array<int64_t>>")
    return [part.split()[0] for part in inside.split(",") if part.strip()]


def test_variants_are_the_same_every_time():
    family = find_family("AllReduce", "cuda")
    again = replace(family)
    assert [variant.source for variant in again.variants] == [variant.source for variant in family.variants]


@pytest.fixture(scope="module")
def judged(local_evaluator, compiled_before) -> dict[str, tuple[Variant, Feedback]]:
    """A variant of each problem that runs, compiled together and judged side by side."""
    variants = {problem: random.Random(problem).choice(find_family(problem, "cpp").variants) for problem in RUN}
    sources = [variant.source for variant in variants.values()]
    compile_together(sources, CompileCache.in_folder(compiled_before))

    def judge(problem: str) -> tuple[Variant, Feedback]:
        variant = variants[problem]
        config = EvalConfig(language="cpp", world_size=2, size="tiny", until="check", trials=4, timeout_s=20)
        return variant, local_evaluator.evaluate(find_problem(problem), variant.source, config)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(RUN, pool.map(judge, RUN), strict=True))


@pytest.mark.parametrize("problem", RUN)
def test_a_variant_is_right_on_two_ranks(problem, judged):
    variant, feedback = judged[problem]
    assert cpp_errors(variant.source) == ""
    assert feedback.is_correct, f"{variant.name}: {feedback.message}\n{variant.source}"


@by_make_all
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_cuda_variant_compiles(local_evaluator):
    variant = find_family("AllToAll", "cuda").variants[0]
    config = EvalConfig(language="cuda", world_size=2, size="tiny", until="compile")
    feedback = local_evaluator.evaluate(find_problem("AllToAll"), variant.source, config)
    assert feedback.failure is None, feedback.message
    assert feedback.compile is not None and not feedback.compile.log.strip()


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_blocks_that_wait_for_each_other_are_few(language):
    """More than surely fit onto a GPU at a time could wait for ever."""
    for (_problem, of), family in CORPUS_FAMILIES.items():
        if of != language:
            continue
        for variant in family.variants:
            text, blocks = variant.source, variant.knobs.get("blocks", 1)
            if "send_starts<<<1, 32, " in text:
                continue  # one block meets the others, before the kernel of many begins
            if any(call in text for call in ("barrier_blocks", "wait_blocks", "comm.wait(blockIdx.x")):
                assert isinstance(blocks, int) and blocks <= 64, (family.problem, variant.name)


def test_no_family_names_those_that_there_are():
    with pytest.raises(ConfigError, match=r"no family of cpp kernels for 'HyenaCP'; there are: AllGather, "):
        find_family("HyenaCP", "cpp")


def test_a_place_takes_lines_or_goes():
    assert fill("a {\n  $one\n  $two\n}", one="x;\ny;", two="") == "a {\n  x;\n  y;\n}"
    assert fill("f($one);", one=3) == "f(3);"
