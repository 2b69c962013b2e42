"""Compiling at most once: what is kept, and what is tried again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.artifact import Artifact

KEY = CompileCache.key(source="text")
GOOD = Artifact(ok=True, log="", duration_s=1.0, binary=b"\x7fELF")
BAD = Artifact(ok=False, log="error: no", duration_s=1.0)


class Compiler:
    """Makes this of a source, and counts how often it was asked."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.runs = compiled, 0

    def __call__(self) -> Compiled:
        self.runs += 1
        return self.compiled


@pytest.mark.parametrize("artifact", [GOOD, BAD], ids=["good", "bad"])
def test_what_lasts_is_kept(tmp_path: Path, artifact: Artifact) -> None:
    cache, compiler = CompileCache(tmp_path), Compiler(Compiled(artifact, lasting=True))
    assert cached_compile(cache, KEY, compiler) is artifact
    assert cached_compile(cache, KEY, compiler) == dataclasses.replace(artifact, cached=True)
    assert compiler.runs == 1
    assert cached_compile(cache, CompileCache.key(source="other"), compiler) is artifact and compiler.runs == 2


def test_a_deadline_that_has_passed_is_tried_again(tmp_path: Path) -> None:
    cache, compiler = CompileCache(tmp_path), Compiler(Compiled(BAD, lasting=False))
    for runs in (1, 2):
        assert cached_compile(cache, KEY, compiler) is BAD and compiler.runs == runs
    assert list(tmp_path.rglob("*")) == []


def test_a_compiler_that_was_killed_is_run_once_more(tmp_path: Path) -> None:
    """g++ ends with status 1 when its child is killed from outside, which was kept as an error of the source."""
    cache, answers = CompileCache(tmp_path), [Compiled(GOOD, lasting=True), Compiled(BAD, lasting=True, killed=True)]
    assert cached_compile(cache, KEY, answers.pop) is GOOD and not answers
    assert cache.get(KEY) == dataclasses.replace(GOOD, cached=True)


def test_a_compiler_that_is_killed_again_fails_and_is_not_kept(tmp_path: Path) -> None:
    cache, compiler = CompileCache(tmp_path), Compiler(Compiled(BAD, lasting=True, killed=True))
    assert cached_compile(cache, KEY, compiler) is BAD and compiler.runs == 2
    assert cache.get(KEY) is None


def test_a_fault_of_this_machine_is_not_kept(tmp_path: Path) -> None:
    def fails() -> Compiled:
        raise InfrastructureError("there is no compiler")

    cache = CompileCache(tmp_path)
    with pytest.raises(InfrastructureError):
        cached_compile(cache, KEY, fails)
    assert cached_compile(cache, KEY, Compiler(Compiled(GOOD, lasting=True))) is GOOD
