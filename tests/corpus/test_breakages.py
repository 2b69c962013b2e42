"""Breakages: each changes some kernel, and real ones fail as they should."""

from __future__ import annotations

import pytest

from pkb_gym.corpus.breakages import BREAKAGES, COMPILE_TIME, find_breakage
from pkb_gym.corpus.families import FAMILIES, find_family
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import expert_source, find_problem


def test_names_are_unique_and_those_of_the_compiler_exist():
    names = [breakage.name for breakage in BREAKAGES]
    assert len(set(names)) == len(names)
    assert set(COMPILE_TIME) <= set(names)
    with pytest.raises(KeyError):
        find_breakage("nothing")


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_each_applies_to_some_kernel_and_changes_it(breakage):
    applied = 0
    for family in FAMILIES.values():
        for variant in family.variants[::25]:
            broken = breakage.apply(variant.source)
            assert broken is None or broken != variant.source
            applied += broken is not None
    assert applied >= 3


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_none_applies_to_nothing(breakage):
    assert breakage.apply("") is None


def test_experts_can_be_broken_too():
    source = expert_source(find_problem("AllGather"))
    assert source is not None
    assert sum(breakage.apply(source) is not None for breakage in BREAKAGES) >= 8


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("missing_semicolon", Failure.COMPILE_ERROR),
        ("missing_export", Failure.LOAD_ERROR),
        ("forgotten_rank", Failure.OUTPUT_MISMATCH),
    ],
)
def test_broken_kernels_fail(name, failure, local_evaluator):
    broken = find_breakage(name).apply(find_family("AllGather", "cpp").variants[0].source)
    assert broken is not None
    config = EvalConfig(language="cpp", world_size=2, size="tiny", until="check", trials=2)
    feedback = local_evaluator.evaluate(find_problem("AllGather"), broken, config)
    assert feedback.failure is failure
