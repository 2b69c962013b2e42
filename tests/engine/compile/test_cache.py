"""The compile cache: concurrent writers, damage, folders that cannot be written."""

from __future__ import annotations

import dataclasses
import errno
import logging
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources
from pkb_gym.engine.support import atomic_write
from pkb_gym.engine.support.atomic_write import write_atomically
from tests.engine.candidates import FOLDER, read
from tests.waiting import PATIENCE_S
from tests.whole_tables import sampled

KEY = CompileCache.key(source="text")
NATIVE = Artifact(ok=True, log="a warning\n\u00e9", duration_s=1.5, binary=b"\x7fELF\n\n" + bytes(range(256)))
BUILT = Artifact(ok=True, log="", duration_s=0.5, extensions={"one": b"1\n", "binary": b"", "two": b"22"})
COUNTS = InstructionCounts(loads=3, bulk_copies=1)
KERNELS = tuple(
    KernelResources(
        name=name, registers=32, shared_bytes=8, stack_bytes=16, spill_store_bytes=4, spill_load_bytes=4, barriers=1,
        instructions=counts,
    )
    for name, counts in (("read", COUNTS), ("not read", None))
)  # fmt: skip
CUDA = Artifact(
    ok=True, log="", duration_s=4.0, binary=b"\x7fELF", object_file=b"\n", kernels=KERNELS, transfers=COUNTS
)
BROKEN = Artifact(ok=False, log="error: no", duration_s=0.1)


def stored(cache: CompileCache) -> list[Path]:
    return [path for path in cache.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("artifact", [NATIVE, CUDA, BUILT, BROKEN], ids=["native", "cuda", "python", "failed"])
def test_what_is_stored_comes_back(tmp_path: Path, artifact: Artifact) -> None:
    cache = CompileCache(tmp_path / "not" / "there")
    assert cache.get(KEY) is None
    cache.put(KEY, artifact)
    found = cache.get(KEY)
    assert found is not None and found.cached
    assert found == dataclasses.replace(artifact, cached=True)


def test_the_key_depends_on_every_part() -> None:
    keys = {CompileCache.key(**parts) for parts in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}, {"a": ("1",)})}
    assert len(keys) == 5
    assert CompileCache.key(a=1, b=2) == CompileCache.key(b=2, a=1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[: data.index(b"\n")],
        lambda data: b"junk" + data,
        lambda data: b"[]\n",
        lambda data: b'{"ok": true}\n',
        lambda data: data.replace(b'"kernels": []', b'"kernels": [{"name": 1}]'),
        lambda data: b'{"ok": true, "log": "", "duration_s": 1, "parts": {"binary": "x"}}\n',
        lambda data: b"[" * 100_000,
        lambda data: b"\xff" * 100,
    ],
)
def test_a_damaged_entry_counts_as_absent(tmp_path: Path, damage) -> None:
    cache = CompileCache(tmp_path)
    cache.put(KEY, NATIVE)
    (path,) = stored(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, NATIVE)
    assert cache.get(KEY) is not None


@given(data=st.data())
def test_a_flipped_bit_anywhere_counts_as_absent(data: st.DataObject) -> None:
    """A binary whose bytes had changed was loaded as it was."""
    with tempfile.TemporaryDirectory() as folder:
        cache = CompileCache(Path(folder))
        cache.put(KEY, NATIVE)
        (path,) = stored(cache)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert cache.get(KEY) is None


def write_many(folder: Path, writer: int) -> None:
    cache = CompileCache(folder)
    for turn in range(20):
        cache.put(KEY, Artifact(ok=True, log=str(writer), duration_s=1.0, binary=bytes([writer]) * 100_000))
        found = cache.get(KEY)
        assert found is not None, f"turn {turn}"
        assert found.binary == bytes([int(found.log)]) * 100_000  # of one writer, whole


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, number)) for number in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in writers] == [0] * 4
    assert len(stored(CompileCache(tmp_path))) == 1


def places_that_cannot_be_written(tmp_path: Path) -> list[Path]:
    """For root too: below a file, and in /proc."""
    (tmp_path / "file").write_text("")
    return [tmp_path / "file" / "cache", Path("/proc/cache")]


@pytest.mark.parametrize("index", [0, 1])
def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture, index: int) -> None:
    cache = CompileCache(places_that_cannot_be_written(tmp_path)[index])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cache.put(KEY, NATIVE)
            assert cache.get(KEY) is None
    assert len(caplog.records) == 1, "one warning, not one per evaluation"
    assert "cannot" in caplog.text


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cache = CompileCache(tmp_path)
    cache.put(KEY, NATIVE)

    class Full:
        def __init__(self, handle: int, mode: str) -> None:
            self.file = open(handle, mode)  # noqa: SIM115

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_write.os, "fdopen", Full)
    with caplog.at_level(logging.WARNING):
        cache.put(CompileCache.key(source="other"), NATIVE)
    monkeypatch.undo()
    assert "No space left on device" in caplog.text
    assert len(stored(cache)) == 1, "nothing is left of what could not be written"
    assert cache.get(KEY) is not None


def test_a_write_is_whole_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a" / "b", "old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a" / "b", "new")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b").read_text() == "old"


def test_what_was_used_longest_ago_is_removed(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, max_bytes=16_000)
    keys = [CompileCache.key(number=number) for number in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, Artifact(ok=True, log="", duration_s=1.0, binary=bytes(3000)))
        path = cache._path(key)
        if path.exists():
            os.utime(path, (1000 + age, 1000 + age))
    cache.get(keys[-4])  # used just now, and so kept
    cache.put(CompileCache.key(last=True), Artifact(ok=True, log="", duration_s=1.0, binary=bytes(3000)))
    left = sum(path.stat().st_size for path in stored(cache))
    assert left <= 16_000
    assert cache.get(keys[0]) is None
    assert cache.get(keys[-4]) is not None
    assert cache.get(CompileCache.key(last=True)) is not None


@pytest.mark.parametrize("index", sampled([0, 1], 2))
def test_evaluations_go_on_without_a_cache(tmp_path: Path, index: int) -> None:
    from pkb_gym.problems.catalogue import find_problem

    candidate = read(FOLDER / "good" / "reads_peers.cpp")
    config = candidate.config.model_copy(update={"until": "compile"})
    with LocalEvaluator(cache_dir=places_that_cannot_be_written(tmp_path)[index]) as evaluator:
        for _ in range(2):
            feedback = evaluator.evaluate(find_problem("AllReduce"), candidate.source, config)
            assert feedback.passed, feedback.message
            assert feedback.compile is not None and not feedback.compile.cached
