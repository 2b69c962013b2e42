"""The best kernels of a run, and its logs: distinct, in order, whole after a crash."""

from __future__ import annotations

import pytest

from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.results.archive import Archive, Kernel, StepLog


def kernel(source: str, reward: float, step: int = 0, **changes) -> Kernel:
    own = {"problem": "AllReduce", "language": "cpp", "world_size": 2, "speedup": reward, "source_hash": source}
    return Kernel(**{**own, **changes}, reward=reward, step=step, source=source)


def test_it_keeps_the_best_distinct_kernels_of_each_kind():
    archive = Archive(keep=2)
    for one in (kernel("a", 1.0), kernel("b", 3.0), kernel("b", 9.0), kernel("c", 2.0), kernel("d", 2.0)):
        archive.add(one)
    archive.add(kernel("e", 0.5, problem="Gather"))
    archive.add(kernel("a", 0.1, world_size=4))
    assert [one.source for one in archive.kernels("AllReduce")] == ["b", "c", "a"]
    assert [one.source for one in archive.kernels()] == ["b", "c", "a", "e"]
    assert archive.kernels("AllReduce")[0].reward == 3.0


def test_it_is_read_as_it_was_written(tmp_path):
    archive = Archive(keep=3)
    for one in (kernel("a\ud800", 1.0, speedup=None), kernel("b", 3.0, step=4)):
        archive.add(one)
    archive.write(tmp_path / "archive.jsonl")
    again = Archive.read(tmp_path / "archive.jsonl", keep=3)
    assert again.kernels() == archive.kernels()
    with pytest.raises(ValueError, match="at least 1"):
        Archive(keep=0)


def test_a_log_forgets_what_will_be_done_again(tmp_path):
    log = StepLog(tmp_path / "run" / "log.jsonl")
    log.forget_from(0)
    for step in range(4):
        log.append([{"step": step, "number": number} for number in range(2)])
    with (tmp_path / "run" / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "num')  # its writer was killed
    log.forget_from(2)
    log.append([{"step": 2, "number": 7}])
    steps = [record["step"] for record in read_jsonl(tmp_path / "run" / "log.jsonl")]
    assert steps == [0, 0, 1, 1, 2]
