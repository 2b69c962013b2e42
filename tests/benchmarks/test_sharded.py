"""Evaluations by several processes: results of all tasks, and nothing is left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks import sharded
from pkb_gym.engine.evaluators.local import LocalEvaluator


def double(_: LocalEvaluator, task: int) -> tuple[int, str]:
    """Twice the task, and the process's folder for temporary files."""
    return 2 * task, os.environ["TMPDIR"]


def never(_: LocalEvaluator, task: int) -> None:
    """Takes longer than any test."""
    time.sleep(3600 + task)


def note_and_never(_: LocalEvaluator, task: str) -> None:
    """Writes the process's number to a file, and takes longer than any test."""
    Path(task).write_text(f"{os.getpid()}\n", encoding="utf-8")
    time.sleep(3600)


RUN = """
import sys
from tests.benchmarks.test_sharded import note_and_never
from benchmarks.sharded import sharded
if __name__ == "__main__":
    list(sharded(note_and_never, [sys.argv[1]], jobs=1, until_s=float("inf"), compiled=None, key=b"key"))
"""
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.slow
def test_every_task_is_done_in_a_folder_that_goes(tmp_path: Path):
    compiled, until_s = tmp_path / "compiled", float("inf")
    prepared = []
    found = dict(
        sharded.sharded(
            double,
            iter([1, 2, 3]),
            jobs=1,
            until_s=until_s,
            compiled=compiled,
            key=b"key",
            prepare=lambda cache: prepared.append(cache),
        )
    )
    assert len(prepared) == 1
    assert {task: result for task, (result, _) in found.items()} == {1: 2, 2: 4, 3: 6}
    assert all(Path(folder).is_relative_to(tmp_path) for _, folder in found.values())
    assert not list(tmp_path.glob("shards-*"))


def test_what_is_not_done_by_the_deadline_is_left_out(tmp_path: Path):
    until_s = time.monotonic() + 0.5
    assert not list(sharded.sharded(never, [1], jobs=1, until_s=until_s, compiled=tmp_path, key=b"key"))
    assert not list(tmp_path.glob("shards-*"))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)], ids=["SIGTERM", "SIGKILL"]
)
def test_its_processes_end_with_it(tmp_path: Path, number: signal.Signals):
    """Processes of a run that `timeout` had ended went on for hours, beside the next one."""
    noted = tmp_path / "noted"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", RUN, str(noted)]
    with subprocess.Popen(command, env=environment, cwd=Path(sharded.__file__).parents[1]) as run:
        deadline = time.monotonic() + PATIENCE_S
        while not (noted.is_file() and noted.read_text(encoding="utf-8").endswith("\n")):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process = os.pidfd_open(int(noted.read_text(encoding="utf-8")))
        run.send_signal(number)
        assert run.wait(PATIENCE_S) == (128 + number if number == signal.SIGTERM else -number)
    ended, _, _ = select.select([process], [], [], PATIENCE_S)
    os.close(process)
    assert ended
    if number == signal.SIGTERM:
        assert not list(tmp_path.glob("shards-*"))


def test_nothing_is_prepared_where_there_is_nothing_to_do(tmp_path: Path):
    never_called = {"jobs": 1, "compiled": tmp_path, "key": b"key", "prepare": lambda _: pytest.fail("prepared")}
    assert not list(sharded.sharded(never, [], until_s=float("inf"), **never_called))
    assert not list(sharded.sharded(never, [1], until_s=time.monotonic() - 1, **never_called))
