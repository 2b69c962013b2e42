"""Figures of a batch, from the records that ranks gather."""

from __future__ import annotations

import pytest

from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.processes.phases import PHASES, Lap
from pkb_gym.training.results.run_log import EpisodeRecord, RunLog, episode_metrics


def line(source: str = "a", *, duplicate: bool = False, **changes) -> dict:
    requested = dict.fromkeys(("problem", "language", "device", "size", "dtype", "world_size", "seed"), "same")
    found = {"is_right": True, "reward": 1.0, "speedup": 2.0, "fault": None, "durations_s": {"compile": 1.0}}
    own = {**requested, **found, "step": 3, "source": source, "source_hash": source, "is_duplicate": duplicate}
    return own | changes


def episode(*lines: dict, problem: str = "AllReduce", value: float | None = 1.0) -> EpisodeRecord:
    return EpisodeRecord(problem, [value], [bool(lines)], value, tuple({**one, "problem": problem} for one in lines))


def test_figures_are_of_episodes_that_could_be_judged():
    found = episode_metrics(
        [
            episode(line("a", speedup=2.0), line("b", speedup=4.0), value=1.5),
            episode(line("c", is_right=False, speedup=9.0), value=0.5),
            episode(line("d", fault="late", is_right=False, speedup=None, reward=None), value=None),
            episode(problem="Gather", value=0.0),
        ]
    )
    assert found["reward/AllReduce"] == 1.0 and found["reward/Gather"] == 0.0
    assert found["correct/AllReduce"] == 0.5 and found["correct"] == pytest.approx(1 / 3)
    assert found["speedup/AllReduce"] == found["speedup"] == 4.0 and "speedup/Gather" not in found
    assert (found["faults/late"], found["faults/crashed"], found["episodes_without_submission"]) == (1, 0, 1)


def test_what_was_asked_before_is_no_evaluation():
    """By this process (it says so), or by two ranks at once (their records agree)."""
    found = episode_metrics(
        [episode(line("a"), line("b", duplicate=True)), episode(line("a")), episode(line("a", seed=1))]
    )
    assert (found["submissions"], found["evaluations"], found["duplicates"]) == (4, 2, 2)


def test_a_step_is_logged_with_what_was_evaluated_in_it(tmp_path):
    log = RunLog(tmp_path)
    log.add_episodes([episode(line("a"), line("b")), episode(line("b", duplicate=True))])
    laps = [Lap(30.0, dict.fromkeys(PHASES, 5.0)), Lap(30.0, {**dict.fromkeys(PHASES, 0.0), "learning": 30.0})]
    found = log.add_step(3, laps)
    log.close()
    assert found["phase/learning"] == pytest.approx(17.5 / 30) and found["phase/generation"] == pytest.approx(2.5 / 30)
    assert (found["evaluations_per_minute"], found["stage/compile_s"]) == (4.0, 2.0)
    assert log.add_step(4, laps)["evaluations_per_minute"] == 0
    assert [one.source for one in log.archive.kernels()] == ["a", "b"]


def test_only_the_first_rank_writes(tmp_path):
    log = RunLog(tmp_path / "run", writes=False)
    log.begin(0, None)
    log.add_episodes([episode(line("a"))])
    log.save(tmp_path)
    log.close()
    assert not list(tmp_path.iterdir())


def test_replies_without_a_submission_are_logged_and_count_as_no_submission(tmp_path):
    """What a policy wrote instead of a submission was lost, and with it the reason why it failed."""
    log = RunLog(tmp_path)
    unread = (line(None, is_right=False, reward=0.0, speedup=None, failure="no_submission", reply="I give up."),)
    record = EpisodeRecord("AllReduce", [0.0], [True], 0.0, (line("a"),), unread)
    log.add_episodes([record])
    log.close()
    written = read_jsonl(tmp_path / "rollouts.jsonl")
    assert [(one["sample"], one["source"], one.get("reply")) for one in written] == [
        (0, "a", None),
        (0, None, "I give up."),
    ]
    found = episode_metrics([record])
    assert (found["submissions"], found["unread_replies"]) == (1, 1)
