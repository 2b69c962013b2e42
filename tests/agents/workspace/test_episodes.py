"""Episodes in workspaces: what is recorded, which submission counts, how budgets end them, and how they go on."""

from __future__ import annotations

import json
import threading
import time

import psutil
import pytest

from pkb_gym.agents.run.budget import RunLimits
from pkb_gym.agents.run.results import RunResults
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt, TokenCounts
from pkb_gym.metrics.results import results_by_agent
from tests.agents.run.runs import REQUESTED, identity_of, places, recorded
from tests.envs.fake_evaluator import FakeEvaluator
from tests.waiting import until

WRONG_THEN_RIGHT = """
echo reading; printf race > a.cpp; ./evaluate a.cpp; echo "status $?"
echo speedup 2 > b.cpp; ./evaluate b.cpp --until compile; echo "status $?"
"""


def actions(folder):
    return [attempt.workspace.action for attempt in recorded(folder)]


def test_every_evaluation_is_an_attempt_with_its_place_in_the_trajectory(programs):
    run = programs.run(f"{WRONG_THEN_RIGHT}./submit b.cpp")
    first, second, submission = recorded(programs.folder)
    assert run.outcome.complete == 1 and actions(programs.folder) == ["evaluate", "evaluate", "submit"]
    assert [attempt.verdict for attempt in (first, second, submission)] == ["race", "passed", "passed"]
    assert [attempt.workspace.file for attempt in (first, second, submission)] == ["a.cpp", "b.cpp", "b.cpp"]
    assert (first.reply, submission.workspace.ended) == ("reading\n", "submitted")
    assert "failed after run: race" in second.reply and "status 1" in second.reply and "status 0" in submission.reply
    elapsed = [attempt.workspace.elapsed_s for attempt in (first, second, submission)]
    assert 0 < elapsed[0] < elapsed[1] < elapsed[2]
    assert sum(attempt.reply_s for attempt in (first, second, submission)) == pytest.approx(elapsed[2], abs=0.5)
    assert "`./submit FILE` names your answer" in first.messages[0].content and second.messages == ()


def test_a_program_chooses_stage_and_race_check_and_its_submission_is_judged_as_the_run_is(programs):
    script = "./evaluate a.cpp --until compile; ./evaluate a.cpp --race strict; ./evaluate a.cpp --until profile"
    programs.run(f"echo speedup 2 > a.cpp; {script}; ./submit a.cpp")
    asked = [(config.until, config.race_check) for _, _, config in programs.evaluator.requested]
    assert asked == [("compile", "auto"), ("check", "strict"), ("check", "auto")]
    assert "judged until 'check', not 'profile'" in recorded(programs.folder)[-1].reply
    assert actions(programs.folder) == ["evaluate", "submit"], "a refusal costs nothing, as of the detector on the CPU"


def test_an_equal_source_is_not_judged_again(programs):
    """Timed anew, it would be paid for noise."""
    programs.run("echo speedup 2 > a.cpp; ./evaluate a.cpp; echo '// again' >> a.cpp; ./submit a.cpp")
    assert len(programs.evaluator.requested) == 1
    trial, submission = recorded(programs.folder)
    assert submission.feedback == trial.feedback and submission.duration_s is None and trial.duration_s is not None


def test_without_a_submission_the_best_evaluated_source_is_judged_in_full(programs):
    script = "for s in 'speedup 2' 'speedup 3' deadlock; do printf \"$s\" > a.cpp; ./evaluate a.cpp; done; true"
    run = programs.run(script)
    end = recorded(programs.folder)[-1]
    assert (end.workspace.action, end.workspace.ended, end.source) == ("end", "exited", "speedup 3")
    assert run.outcome.complete == 1 and run.runner.tally.best("AllReduce", 0) == end


def test_the_submission_counts_and_not_a_better_evaluation(programs):
    run = programs.run("echo speedup 3 > a.cpp; ./evaluate a.cpp; printf race > b.cpp; ./submit b.cpp")
    assert (run.runner.tally.problems(), run.runner.tally.best("AllReduce", 0).verdict) == ((1, 0, 0), "race")
    (results,) = results_by_agent(recorded(programs.folder))
    assert not results.episodes.is_right.any() and results.turns.is_right.tolist() == [True, False]


def test_a_program_without_any_evaluation_has_submitted_nothing(programs):
    run = programs.run("echo 'I do not know.'")
    (attempt,) = recorded(programs.folder)
    assert (attempt.verdict, attempt.reply, attempt.reward) == ("no_submission", "I do not know.\n", 0.0)
    assert run.outcome.complete == 1


def test_evaluations_end_with_the_budget_and_the_program_may_still_submit(programs):
    script = "for n in 1 2 3; do echo speedup $n > $n.cpp; ./evaluate $n.cpp; echo status $?; done; ./submit 1.cpp"
    programs.run(script, turns=2)
    assert actions(programs.folder) == ["evaluate", "evaluate", "submit"]
    submission = recorded(programs.folder)[-1]
    assert submission.source == "speedup 1\n"
    assert "no evaluations are left" in submission.reply and "status 2" in submission.reply


@pytest.mark.parametrize("escape", ["", "setsid "])
def test_at_the_end_of_its_minutes_a_program_is_ended_with_all_that_it_started(programs, tmp_path, escape):
    script = (
        f"{escape}sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' & echo speedup 2 > a.cpp; ./evaluate a.cpp; wait"
    )
    programs.run(f"{script}; sleep 600", options={"minutes": 0.02})
    end = recorded(programs.folder)[-1]
    assert (end.workspace.action, end.workspace.ended) == ("end", "minutes")
    if (tmp_path / "pid").exists():  # on a busy machine it may not have come so far
        pid = int((tmp_path / "pid").read_text() or 0)
        until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_evaluations_take_none_of_the_minutes(programs):
    """Whoever waits for a busy evaluator would have less time than others."""

    class Late(FakeEvaluator):
        def evaluate(self, *arguments):
            time.sleep(1.5)
            return super().evaluate(*arguments)

    began = time.monotonic()
    programs.run("echo speedup 2 > a.cpp; ./evaluate a.cpp", evaluator=Late())
    trial, end = recorded(programs.folder)
    assert trial.duration_s >= 1.5 and end.workspace.elapsed_s + trial.duration_s <= time.monotonic() - began


def test_tokens_are_those_that_the_program_reports(programs):
    """Totals since it began, as coding agents print them."""
    lines = [{"usage": {"input_tokens": 50, "cache_read_input_tokens": 40, "output_tokens": 10}, "total_cost_usd": 0.5}]
    lines.append(
        {"type": "turn.completed", "usage": {"input_tokens": 140, "output_tokens": 20}, "total_cost_usd": 0.75}
    )
    first, second = (f"echo '{json.dumps(line)}'" for line in lines)
    run = programs.run(f"printf race > a.cpp; {first}; ./evaluate a.cpp; {second}; ./submit a.cpp")
    trial, submission = recorded(programs.folder)
    assert trial.tokens == TokenCounts(prompt=90, completion=10)
    assert submission.tokens == TokenCounts(prompt=50, completion=10)
    assert (run.runner.budget.tokens, run.runner.budget.cost_usd) == (160, 0.75)


def test_tokens_end_an_episode(programs):
    report = json.dumps({"usage": {"input_tokens": 90, "output_tokens": 10}})
    programs.run(f"echo speedup 2 > a.cpp; ./evaluate a.cpp; echo '{report}'; sleep 600", options={"tokens": 100})
    end = recorded(programs.folder)[-1]
    assert (end.workspace.ended, end.source) == ("tokens", "speedup 2\n")


def test_a_program_that_fails_costs_its_own_episode_and_is_taken_up_again(programs):
    script = "echo speedup 2 > a.cpp; test -d history || {{ ./evaluate a.cpp; echo no key; exit 3; }}; {}"
    run = programs.run(script.format("true"))
    assert actions(programs.folder) == ["evaluate"]
    assert "ended with status 3" in run.outcome.failed[0][2] and "no key" in run.outcome.failed[0][2]
    again = programs.run(script.format("ls history; ./evaluate a.cpp; printf race > b.cpp; ./submit b.cpp"))
    assert again.outcome.complete == 1 and actions(programs.folder) == ["evaluate", "evaluate", "submit"]
    assert [attempt.turn for attempt in recorded(programs.folder)] == [0, 1, 2]
    assert len(programs.evaluator.requested) == 1, "what was judged before is known"
    assert recorded(programs.folder)[1].reply == "000.cpp\n000.txt\n"
    assert "history/" in recorded(programs.folder)[1].messages[0].content
    assert programs.run("exit 9").outcome.complete == 1 and len(recorded(programs.folder)) == 3


def test_a_run_that_may_not_go_on_ends_the_program_and_resumes(programs):
    script = "for n in 1 2 3; do echo speedup $n > $n.cpp; ./evaluate $n.cpp; done; ./submit 3.cpp"
    run = programs.run(script, limits=RunLimits(evaluations=2))
    assert run.outcome.open == 1 and actions(programs.folder) == ["evaluate", "evaluate"]
    run = programs.run(script)
    assert run.outcome.complete == 1
    assert actions(programs.folder) == ["evaluate"] * 5 + ["submit"], "the budget of 5 counts earlier calls"


def test_what_the_evaluator_could_not_judge_is_judged_when_the_run_resumes(programs):
    script = "echo speedup 2 > a.cpp; ./submit a.cpp"
    programs.run(script)
    (attempt,) = recorded(programs.folder)
    lost = attempt.model_copy(update={"feedback": None, "reward": None})
    (programs.folder / "results.jsonl").write_text(lost.to_line() + "\n")
    run = programs.run("exit 9")
    assert run.outcome.complete == 1 and len(programs.evaluator.requested) == 1
    assert recorded(programs.folder)[-1].verdict == "passed"


def test_an_evaluator_that_fails_ends_the_episode_after_another_try(programs):
    run = programs.run("printf infrastructure > a.cpp; ./evaluate a.cpp; sleep 600")
    assert len(programs.evaluator.requested) == 2
    assert run.outcome.failed and recorded(programs.folder)[-1].verdict == "infrastructure"
    with RunResults(programs.folder, run.runner._results.identity) as results:
        assert not results.is_complete("AllReduce", 0)


def test_episodes_run_side_by_side_in_folders_of_their_own(programs):
    meet = threading.Barrier(3)
    script = "test -e a.cpp && exit 9; echo speedup 2$PKB_SAMPLE > a.cpp; ./evaluate a.cpp --until compile"
    programs.run(script, samples=3, jobs=3, evaluator=FakeEvaluator(meet=meet))
    trials = [attempt for attempt in recorded(programs.folder) if attempt.is_trial]
    assert {(attempt.sample, attempt.source) for attempt in trials} == {(n, f"speedup 2{n}\n") for n in range(3)}
    assert sorted(places(programs.folder)) == [("AllReduce", sample, turn) for sample in range(3) for turn in (0, 1)]


def test_a_client_that_hangs_floods_or_is_malformed_costs_its_own_episode_alone(programs):
    flood = """python3 - <<'END'
import socket
held = []
for _ in range(20):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(".evaluator")
    held[-1].sendall(b"{" * 100)
    held[-1].shutdown(socket.SHUT_WR)
END
echo speedup 2 > a.cpp; ./evaluate a.cpp"""
    script = f"if [ $PKB_SAMPLE = 0 ]; then {flood}\nelse echo speedup 3 > a.cpp; ./submit a.cpp; fi"
    run = programs.run(script, samples=2, jobs=2)
    assert run.outcome.complete == 2
    submissions = {attempt.sample: attempt.source for attempt in recorded(programs.folder) if attempt.is_submission}
    assert submissions == {0: "speedup 2\n", 1: "speedup 3\n"}


def test_a_run_goes_on_under_the_same_settings_alone(programs):
    programs.run("true")
    with pytest.raises(ConfigError, match=r"settings\.minutes was 60\.0, is 5\.0"):
        programs.run("true", options={"minutes": 5})
    with pytest.raises(ConfigError, match=r"settings\.network|settings\.prefix"):
        programs.run("true", options={"sandbox": "auto", "prefix": "env"})


def test_a_record_survives_its_file(programs):
    programs.run("echo speedup 2 > a.cpp; ./submit a.cpp")
    (attempt,) = recorded(programs.folder)
    assert Attempt.from_line(attempt.to_line()) == attempt and attempt.is_submission and not attempt.is_trial
    assert identity_of(["AllReduce"]).requested == REQUESTED
