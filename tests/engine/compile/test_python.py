"""Importing a module in a build gang, which is a stand-in: its report may be of the module's making."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pkb_gym.engine.compile import python
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.python import build_python
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Replies
from pkb_gym.engine.hardware.division import Division
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.build_orders import MAX_EXTENSIONS, Build, Built

ONE, TWO = "one:0123456789abcdef0123456789abcdef", "two:0123456789abcdef0123456789abcdef"
SOURCE = "def solution(tensor):\n    return tensor\n"


class FakeGang:
    """One rank that reports this, or fails like that."""

    def __init__(self, built: Built | None, body: bytes, output: str, failed: GangFailed | None) -> None:
        self.built, self.body, self.written, self.failed = built, body, output, failed
        self.sources: list[bytes] = []
        self.moves: list[list[list[int]]] = []
        self.processes = SimpleNamespace(move=self.moves.append)
        self.begun = self.ended = 0

    def __enter__(self) -> FakeGang:
        self.begun += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.ended += 1

    def output_of(self, rank: int) -> str:
        assert rank == 0
        return self.written

    def send(self, orders: list[Build], raw: bytes) -> None:
        assert [type(order) for order in orders] == [Build]
        self.sources.append(raw)

    def collect(self, expect: type[Built], *, timeout_s: float) -> Replies[Any]:
        assert expect is Built and timeout_s == 7.0
        if self.failed is not None:
            raise self.failed
        return Replies([self.built], [self.body], 0)


Import = Callable[..., tuple[FakeGang, list[Artifact]]]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a module twice."""

    def import_twice(
        built: Built | None = None, body: bytes = b"", output: str = "", failed: GangFailed | None = None
    ) -> tuple[FakeGang, list[Artifact]]:
        gang = FakeGang(built, body, output, failed)
        monkeypatch.setattr(python, "Gang", lambda *_: gang)
        zygote = SimpleNamespace(sandboxed=True)
        cache = CompileCache(tmp_path)
        return gang, [build_python(SOURCE, cache, zygote, 7.0) for _ in range(2)]  # type: ignore[arg-type]

    return import_twice


def test_extensions_are_cut_out_of_what_follows(imported: Import) -> None:
    gang, (found, again) = imported(Built(True, "a note", {ONE: 3, TWO: 2}, 1.5), b"abcde", "printed\n")
    assert (found.ok, found.log, found.duration_s) == (True, "a note\nprinted", 1.5)
    assert found.extensions == again.extensions == {ONE: b"abc", TWO: b"de"}
    assert again.cached and gang.sources == [SOURCE.encode()] and gang.begun == gang.ended == 1


def test_a_module_that_cannot_be_used_has_its_log(imported: Import) -> None:
    _, (found, again) = imported(Built(False, "NameError: x", {}, -5.0))
    assert (found.ok, found.log, found.duration_s, found.extensions) == (False, "NameError: x", 0.0, {})
    assert again.cached


@pytest.mark.parametrize(
    ("sizes", "body"),
    [
        ({ONE: 3}, b"ab"),
        ({ONE: 3}, b"abcd"),
        ({ONE: -1, TWO: 3}, b"ab"),
        ({"../../etc/passwd:0123456789abcdef0123456789abcdef": 2}, b"ab"),
        ({"a" * 101 + ":0123456789abcdef0123456789abcdef": 2}, b"ab"),
        ({"no digest": 2}, b"ab"),
        ({f"{ONE}\n": 2}, b"ab"),
        ({}, b"ab"),
        ({f"x{number}:0123456789abcdef0123456789abcdef": 0 for number in range(MAX_EXTENSIONS + 1)}, b""),
    ],
)
def test_a_report_that_does_not_fit_is_no_module(imported: Import, sizes: dict[str, int], body: bytes) -> None:
    _, (found, _) = imported(Built(True, "fine", sizes, 1.0), body)
    assert not found.ok and found.extensions == {} and "the import broke the protocol of its build" in found.log


@pytest.mark.parametrize(
    ("failure", "kept"),
    [(Failure.RUNTIME_ERROR, True), (Failure.OUT_OF_MEMORY, True), (Failure.TIMEOUT, False), (Failure.DEADLOCK, False)],
)
def test_a_deadline_that_passes_is_not_kept(imported: Import, failure: Failure, kept: bool) -> None:
    gang, (found, again) = imported(output="the last words", failed=GangFailed(failure, 0, "rank 0 fell"))
    assert not found.ok and found.log == again.log == "rank 0 fell\nthe last words"
    assert again.cached is kept and gang.begun == gang.ended == (1 if kept else 2)


@pytest.mark.parametrize(("killed", "by_sigkill"), [(True, False), (False, True)])
def test_an_import_that_was_killed_is_run_once_more_and_not_kept(
    imported: Import, killed: bool, by_sigkill: bool
) -> None:
    """Whoever did it: a build has no verdict to draw twice, and a cache would hold somebody's kill for good."""
    failed = GangFailed(Failure.RUNTIME_ERROR, 0, "rank 0 was killed", killed=killed, by_sigkill=by_sigkill)
    gang, (found, again) = imported(failed=failed)
    assert not found.ok and not again.cached and gang.begun == gang.ended == 4


@pytest.mark.parametrize(("working", "moves"), [((), []), ((5, 3), [[[3, 5]]])])
def test_compilers_that_it_calls_run_on_processors_for_work(
    imported: Import, monkeypatch: pytest.MonkeyPatch, working: tuple[int, ...], moves: list[list[list[int]]]
) -> None:
    monkeypatch.setattr(python, "division", lambda: Division(frozenset({0}), frozenset(working)))
    gang, _ = imported(Built(ok=True, log="", seconds=0.5, sizes={}))
    assert gang.moves == moves
