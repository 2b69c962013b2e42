"""Lanes of a learning run: which GPUs, processors and folders each has, and what cannot be shared out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import learning_lanes, learning_run
from benchmarks.learning_lanes import Lane, folders_apart, lanes_of, share_out_gpus, side_by_side
from benchmarks.learning_run import Run
from tests.benchmarks.test_learning_run import command_line

SIDE_BY_SIDE = ["--seed", "1", "2", "--side-by-side"]
TURNS = [*SIDE_BY_SIDE, "--take-turns", "--evaluation-gpus"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, and four processors for each lane."""
    monkeypatch.setattr(
        learning_lanes, "share_out_processors", lambda count: [tuple(range(4 * at, 4 * at + 4)) for at in range(count)]
    )
    monkeypatch.setattr(learning_lanes.gpus, "names", lambda: ["a", "b"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def lanes(tmp_path: Path, *words: str) -> list[Lane]:
    return lanes_of(learning_run.make_options().parse_args(command_line(tmp_path, *words)))


def test_lanes_share_the_gpus_in_turn_and_there_may_be_none(machine: None, monkeypatch: pytest.MonkeyPatch):
    first, second, third = (0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)
    assert side_by_side(3) == [Lane("0", first), Lane("1", second), Lane("0", third)]
    monkeypatch.setattr(learning_lanes.gpus, "names", list)
    assert side_by_side(2) == [Lane(None, first), Lane(None, second)]
    assert Lane("1", (4, 5)).bound(["x"]) == ["taskset", "--cpu-list", "4,5", "x"] and Lane().bound(["x"]) == ["x"]


def test_the_share_of_a_service_is_measured(monkeypatch: pytest.MonkeyPatch):
    measured: list[tuple[int, ...]] = []
    monkeypatch.setattr(learning_lanes, "measure_processors", measured.append)
    learning_lanes.measure_share(Lane("0", tuple(range(10, 25))), services=7)
    assert measured == [(11, 12)]


def test_evaluation_gpus_are_shared_out_in_their_order(machine: None, tmp_path: Path):
    """The GPUs that this process sees do not matter: an evaluation service has its own CUDA_VISIBLE_DEVICES."""
    assert lanes(tmp_path, *TURNS, "4", "5", "2", "3", "--evaluation-compilers", "3") == [
        Lane("4", (0, 1, 2, 3), ("4", "5")),
        Lane("2", (4, 5, 6, 7), ("2", "3")),
    ]
    assert share_out_gpus(["0", "1", "2"], 1) == [("0", "1", "2")]


def test_lanes_without_turns_have_all_evaluation_gpus(machine: None, tmp_path: Path):
    found = lanes(tmp_path, *SIDE_BY_SIDE, "--evaluation-gpus", "2", "3")
    assert [(lane.gpu, lane.evaluation_gpus) for lane in found] == [("0", ("2", "3")), ("1", ("2", "3"))]
    with folders_apart(found) as apart:
        assert apart == found, "the lock on the common folder keeps their timings apart"


@pytest.mark.parametrize("more", [["--services", "1"], ["--take-turns", "--evaluation-gpus", "0", "1"]])
def test_lanes_with_hardware_of_their_own_wait_for_no_timing_of_another(machine: None, tmp_path: Path, more: list[str]):
    with folders_apart(lanes(tmp_path, *SIDE_BY_SIDE, *more)) as apart:
        folders = [Path(lane.environment["TMPDIR"]) for lane in apart]
        assert all(folder.is_dir() for folder in folders)
        assert len({*folders, *(folder.parent for folder in folders)}) == 4, "the folder above is a queue of its own"
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([*TURNS, "0", "1", "2"], "--evaluation-gpus: 2 lanes need equal shares of different GPUs, got 0 1 2"),
        ([*TURNS, "0"], "2 lanes need equal shares"),
        ([*TURNS, "0", "1", "0", "1"], "equal shares of different GPUs, got 0 1 0 1"),
        ([*TURNS, "0", "1", "2", "3", "--arm", "a", "group=4"], "3 lanes need equal shares"),
        (
            [*TURNS, "0", "1", "--controls-apart"],
            "--controls-apart: evaluation GPUs are shared out to seeds and arms alone",
        ),
        (
            [*TURNS, "0", "1", "--evaluation-compilers", "4"],
            "--evaluation-compilers 4: a lane has 4 processors for all",
        ),
        ([*SIDE_BY_SIDE, "--evaluation-gpus", "0", "1", "--evaluation-compilers", "2"], "own: give --take-turns"),
    ],
)
def test_what_lanes_cannot_share_out_is_refused(
    machine: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
):
    monkeypatch.setattr(Run, "go_on", lambda *_: pytest.fail("it began"))
    with pytest.raises(SystemExit) as ended:
        learning_run.main(command_line(tmp_path, *more))
    assert ended.value.code == 2 and words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
