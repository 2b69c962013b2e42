"""Readers of results, over any bytes: rows, or an error that names the file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.cli.results_file import ResultsFile
from pkb_gym.corpus.journal import FeedbackJournal
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.metrics.sources import ResultsSource
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.results.archive import Archive, Kernel

KERNEL = Kernel("AllReduce", "cpp", 2, 0.5, None, "0" * 64, 3, "a kernel")
ROW = KERNEL.__dict__
ATTEMPT = json.loads(Attempt(problem="AllReduce", requested=EvalConfig(), reply="I do not know.").model_dump_json())


def results(path: Path) -> None:
    ResultsFile(path, EvalConfig()).close()


def journal(path: Path) -> None:
    FeedbackJournal(path).close()


def attempts(path: Path) -> None:
    """Of `pkb compare`, `pkb report` and the leaderboard."""
    ResultsSource(path).read()


READERS: list[Callable[[Path], object]] = [read_jsonl, Archive.read, results, journal, attempts]
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([1]))
LINES = st.one_of(
    st.binary(max_size=30),
    st.builds(lambda name, value: json.dumps({**ROW, name: value}).encode(), st.sampled_from([*ROW, "x"]), VALUES),
    st.builds(
        lambda name, value: json.dumps({**ATTEMPT, name: value}).encode(), st.sampled_from([*ATTEMPT, "x"]), VALUES
    ),
    st.dictionaries(st.sampled_from(["file", "requested", "feedback", "key", "step"]), VALUES).map(
        lambda row: json.dumps(row).encode()
    ),
)


@pytest.mark.parametrize("read", READERS)
@given(lines=st.lists(LINES, max_size=4), end=st.booleans())
def test_any_lines_are_read_or_refused_by_name(read: Callable[[Path], object], lines: list[bytes], end: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n" * end)
        try:
            read(path)
        except ConfigError as error:
            assert path.name in str(error)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"null", b"9" * 10_000])
def test_hostile_lines_are_refused_by_name(read: Callable[[Path], object], line: bytes, tmp_path: Path) -> None:
    """A deeply nested one ended the reader with a RecursionError."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl"):
        read(path)


def test_an_archive_reads_what_it_wrote(tmp_path: Path) -> None:
    archive = Archive()
    archive.add(KERNEL)
    archive.write(tmp_path / "archive.jsonl")
    assert Archive.read(tmp_path / "archive.jsonl").kernels() == [KERNEL]
