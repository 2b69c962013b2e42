"""Breakages: each changes some kernel, and real ones fail as they should."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from pkb_gym.corpus.breakages import BREAKAGES, COMPILE_TIME, SYNCHRONISATION
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.kernels import CORPUS_FAMILIES, find_family
from pkb_gym.problems.catalogue import expert_source, find_problem
from tests.engine.joined_libraries import compile_together

BY_NAME = {breakage.name: breakage for breakage in BREAKAGES}


def test_names_are_unique_and_those_of_the_compiler_exist():
    names = [breakage.name for breakage in BREAKAGES]
    assert len(set(names)) == len(names)
    assert set(COMPILE_TIME) | set(SYNCHRONISATION) <= set(names)


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_each_applies_to_some_kernel_and_changes_it(breakage):
    applied = 0
    for family in CORPUS_FAMILIES.values():
        for variant in family.variants[::7]:
            broken = breakage.apply(variant.source)
            assert broken is None or broken != variant.source
            applied += broken is not None
    assert applied >= 2  # "unacknowledged" fits Scatter and Gather alone: their messages go one way


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_none_applies_to_nothing(breakage):
    assert breakage.apply("") is None


def test_experts_can_be_broken_too():
    source = expert_source(find_problem("AllGather"))
    assert source is not None
    assert sum(breakage.apply(source) is not None for breakage in BREAKAGES) >= 8


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_every_variant_can_lack_a_synchronisation(language):
    """A call that touches other ranks' memory has something to wait for, and its comments say where."""
    removals = [BY_NAME[name] for name in ("missing_entry", "missing_exit", "missing_wait")]
    for (_problem, of), family in CORPUS_FAMILIES.items():
        for variant in family.variants[::7]:
            if of == language:
                assert any(removal.apply(variant.source) for removal in removals), variant.source


RACES = [
    ("AllGather", "missing_entry", {"direction": "pull", "staging": "none"}, "wait for it first"),
    ("AllGather", "missing_exit", {"direction": "push", "staging": "none"}, "was still written after"),
    ("GradAccLoss", "one_half", {"exchange": "push", "guard": "halves", "signalling": "signals"}, "scratch"),
    ("AllGather", "unguarded_scratch", {"staging": "inbox", "guard": "barrier"}, "scratch"),
]
UNAWAITED = ("missing_wait", "unawaited_rank")
WITH_SIGNALS = {"exchange": "push", "signalling": "signals"}


@pytest.fixture(scope="module")
def compiled(compiled_before):
    """Those that have to be compiled and run to fail."""
    sources = [_broken("AllGather", "forgotten_rank"), *(_broken(*race[:3]) for race in RACES)]
    sources += [_broken("GradAccLoss", name, WITH_SIGNALS) for name in UNAWAITED]
    compile_together(sources, CompileCache.in_folder(compiled_before))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("missing_semicolon", Failure.COMPILE_ERROR),
        ("missing_export", Failure.LOAD_ERROR),
        ("forgotten_rank", Failure.OUTPUT_MISMATCH),
    ],
)
def test_broken_kernels_fail(name, failure, local_evaluator):
    assert _judged("AllGather", name, local_evaluator).failure is failure


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("problem", "name", "knobs", "expected"), RACES)
def test_a_missing_synchronisation_is_a_race(problem, name, knobs, expected, local_evaluator):
    feedback = _judged(problem, name, local_evaluator, knobs)
    assert feedback.failure is Failure.RACE, feedback.message
    assert expected in feedback.message


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", UNAWAITED)
def test_data_that_is_not_waited_for_is_refused(name, local_evaluator):
    """It may be late in every call, or in those alone in which a rank is delayed."""
    feedback = _judged("GradAccLoss", name, local_evaluator, WITH_SIGNALS)
    assert feedback.failure in (Failure.RACE, Failure.OUTPUT_MISMATCH), feedback.message


def _judged(problem, name, evaluator, knobs=MappingProxyType({})) -> Feedback:
    """What is found of it."""
    config = EvalConfig(language="cpp", world_size=2, size="tiny", until="check")
    return evaluator.evaluate(find_problem(problem), _broken(problem, name, knobs), config)


def _broken(problem, name, knobs=MappingProxyType({})) -> str:
    """The first variant with these knobs, broken."""
    variants = find_family(problem, "cpp").variants
    variant = next(variant for variant in variants if knobs.items() <= variant.knobs.items())
    broken = BY_NAME[name].apply(variant.source)
    assert broken is not None, variant.source
    return broken
