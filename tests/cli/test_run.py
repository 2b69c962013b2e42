"""`pkb run`: its agents, its output, its exit statuses."""

from __future__ import annotations

import json
import re

import pytest

from pkb_gym.agents.run.tally import is_faster
from pkb_gym.cli.run_progress import in_brief
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.rewards.examples import timed
from pkb_gym.serve.server import HttpServer
from tests.agents.fake_endpoint import Endpoint, failure, whole
from tests.fake_gpus import gpu_node
from tests.serve.fake_owner import TOKEN, Owners, make_service


@pytest.fixture
def folder(tmp_path):
    """Sources that the fake evaluator understands."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "all_reduce.cpp").write_text("passed")
    (sources / "scatter.cpp").write_text("race")
    return sources


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


HERE = ("--world-size", "2", "--device", "cpu")


def test_a_run_and_its_resumption(pkb, folder, tmp_path):
    argv = ("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", "Scatter", "Gather", *HERE)
    ran = pkb(*argv)
    assert ran.status == 0
    assert ran.out == (
        "replay:sources: 1 of 2 problems passed, 1 faster than the leading baseline; 2 of 3 episodes complete; "
        "2 evaluations\n"
    )
    assert "AllReduce: passed, 50 us, 2.00x eager; 1 of " in ran.err
    assert "skipped: Gather: " in ran.err and "Scatter: race; " in ran.err
    attempts = read_attempts(tmp_path / "runs/replay_sources/results.jsonl")
    assert {(attempt.problem, attempt.verdict) for attempt in attempts} == {
        ("AllReduce", "passed"),
        ("Scatter", "race"),
    }
    again = pkb(*argv)
    assert again.calls == [] and "2 episodes already complete, 1 to play" in again.err
    assert again.out == ran.out


def test_json_prints_a_summary_alone(pkb, folder):
    ran = pkb("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", *HERE, "--json", "--output", "here")
    found = json.loads(ran.out)
    assert (found["complete"], found["passed"], found["results"]) == (1, 1, "here/results.jsonl")


def test_an_evaluator_that_fails_sets_the_exit_status(pkb, folder):
    (folder / "all_reduce.cpp").write_text("broken")
    ran = pkb("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", *HERE)
    assert ran.status == 3 and "not complete: AllReduce sample 0: the evaluator failed" in ran.err
    assert pkb("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", *HERE).status == 3
    assert "0 of 1 problems passed" in ran.out


def test_a_program_that_can_read_the_answers_is_warned_of(pkb, folder):
    ran = pkb("run", "--agent", "workspace:true", "--set", "sandbox=none", "--problems", "AllReduce", *HERE)
    assert "warning: NOTHING IS HIDDEN from the program" in ran.err
    ran = pkb("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", *HERE)
    assert "warning" not in ran.err


def test_a_workspace_has_forty_evaluations_unless_turns_are_given(pkb, tmp_path):
    argv = ("run", "--agent", "workspace:true", "--set", "sandbox=none", "--problems", "AllReduce", *HERE)
    for turns, more in ((40, ()), (50, ("--turns", "50"))):
        assert pkb(*argv, *more, "--output", str(turns)).status == 0
        assert json.loads((tmp_path / str(turns) / "run.json").read_text())["turns"] == turns


def test_a_run_that_only_compiled_sets_the_exit_status(pkb, folder):
    (folder / "all_reduce.cpp").write_text("compiled_only")
    ran = pkb("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", *HERE)
    assert ran.status == 3
    assert "1 submissions were compiled and not run: this machine has no GPU; --device emulated runs CUDA" in ran.err


def test_a_used_up_budget_sets_the_exit_status(pkb, folder):
    argv = ("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", "Scatter", *HERE, "--jobs", "1")
    ran = pkb(*argv, "--max-evaluations", "1")
    assert ran.status == 3 and "stopped: the budget of 1 evaluations is used up; the same command continues" in ran.err
    assert pkb(*argv).status == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--agent", "expret"), "no agent 'expret'; .* Did you mean 'expert'"),
        (("--agent", "expert", "--set", "speed"), "--set speed: write OPTION=VALUE"),
        (("--agent", "expert", "--set", "a=1", "--set", "a=2"), "a is given twice"),
        (("--agent", "expert", "--set", "a=1"), "agent expert: no option 'a'; it has none"),
        (("--agent", "expert", "--problems", "AllReduze"), "Did you mean 'AllReduce'"),
        (("--agent", "expert", "--problems", "AllReduce", "--size", "huge"), "no problem to play: .*no size 'huge'"),
        (("--agent", "expert", "--samples", "0"), "must be a whole number above 0"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(pkb, argv, words):
    ran = pkb("run", *argv, *HERE)
    assert ran.status == 2 and re.search(words, ran.err) and ran.evaluators == []


def test_ctrl_c(pkb, folder, tmp_path):
    (folder / "all_reduce.cpp").write_text("interrupt")
    ran = pkb("run", "--agent", f"replay:{folder}", "--problems", "AllReduce", *HERE, "--output", "o")
    assert ran.status == 130 and read_attempts(tmp_path / "o/results.jsonl") == []
    assert ran.err.endswith("pkb: interrupted; the same command continues\n")


def test_progress_and_summary_count_the_same(pkb, folder):
    """Progress counted episodes and the summary problems, and the summary those of other calls too."""
    (folder / "all_reduce_2.cpp").write_text("passed")
    words = ("run", "--agent", f"replay:{folder}", *HERE, "--jobs", "1")
    ran = pkb(*words, "--problems", "AllReduce", "Scatter", "--samples", "2")
    *_, last = (line for line in ran.err.splitlines() if line.startswith("["))
    counts = "1 of 2 problems passed, 1 faster than the leading baseline; "
    assert counts in last and f": {counts}" in ran.out
    again = pkb(*words, "--problems", "Scatter")
    assert ": 0 of 1 problems passed, 0 faster than the leading baseline; 1 of 1 episodes complete" in again.out


def test_progress_counts_by_the_speedup_that_it_shows():
    """A line showed the speedup over CUDA graphs, 0.80x, and counted the kernel as faster than the eager baseline."""
    brief, faster = [], []
    for found in (timed(speedup=2.0), timed(speedup=2.0, captured_us=40.0)):
        attempt = Attempt(problem="AllReduce", requested=found.config.as_request(), source="x", feedback=found)
        brief.append(in_brief(attempt))
        faster.append(is_faster(attempt))
    assert brief == ["passed, 50 us, 2.00x eager", "passed, 50 us, 0.80x captured"] and faster == [True, False]


def test_what_was_only_compiled_has_not_passed():
    """Progress said "passed; 0 of 1 problems passed"."""
    checked = timed().model_copy(update={"stage": Stage.CHECK, "timing": None, "roofline": None})
    stopped = checked.model_copy(update={"stage": Stage.COMPILE, "check": None})
    attempt = Attempt(problem="AllReduce", requested=stopped.config.as_request(), source="x", feedback=stopped)
    assert in_brief(attempt) == "no failure up to compile"
    assert in_brief(attempt.model_copy(update={"feedback": checked})) == "passed"


@pytest.fixture
def serve(monkeypatch):
    """`serve(*answers)` starts an endpoint for the agent `openai`."""
    opened = []

    def start(*answers):
        opened.append(Endpoint(answers))
        monkeypatch.setenv("OPENAI_BASE_URL", opened[-1].url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        return opened[-1]

    yield start
    for endpoint in opened:
        endpoint.close()


MODEL = ("run", "--agent", "openai:m", "--set", "stream=false", "--set", "retries=0", "--problems")


def test_replies_that_were_cut_off_are_counted(pkb, serve):
    cut, full = whole({"content": "```cpp\nint"}, finish="length"), whole({"content": "```cpp\npassed\n```"})
    serve(cut, full)
    ran = pkb(*MODEL, "AllReduce", *HERE, "--turns", "2")
    assert ran.status == 0 and "truncated: 1 of 2 replies (50%); raise max_tokens\n" in ran.err
    found = json.loads(pkb(*MODEL, "AllReduce", *HERE, "--turns", "2", "--json").out)
    assert (found["replies"], found["truncated"], found["passed"]) == (2, 1, 1)


def test_a_dead_endpoint_is_named_and_no_reply_was_judged(pkb, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    ran = pkb(*MODEL, "AllReduce", *HERE)
    assert (ran.status, ran.out) == (3, "openai:m: no reply was judged; 0 of 1 episodes complete; 0 evaluations\n")
    (line,) = (line for line in ran.err.splitlines() if line.startswith("not complete: "))
    assert line.startswith("not complete: AllReduce sample 0: ") and "http://127.0.0.1:9/v1" in line


def test_a_wrong_key_commits_the_folder_to_no_setting(pkb, serve, tmp_path):
    serve(failure(401, "wrong key"))
    ran = pkb(*MODEL, "AllReduce", *HERE, "--seed", "1", "--output", "o")
    assert ran.status == 2 and "wrong key" in ran.err and not (tmp_path / "o/run.json").exists()
    serve(whole({"content": "```cpp\npassed\n```"}))
    assert pkb(*MODEL, "AllReduce", *HERE, "--seed", "2", "--output", "o").status == 0


def test_a_service_judges(pkb, folder, tmp_path, monkeypatch):
    """Sources alone travel; nothing is started here."""
    (folder / "all_reduce.cpp").write_text("speedup 2.0")
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    with make_service(Owners()) as service, HttpServer(service, TOKEN) as server:
        agent = f"replay:{folder}"
        ran = pkb("run", "--agent", agent, "--problems", "AllReduce", *HERE, "--service", server.url, "--output", "o")
    assert ran.status == 0 and ran.evaluators == [] and "1 of 1 problems passed, 1 faster" in ran.out
    (attempt,) = read_attempts(tmp_path / "o/results.jsonl")
    assert attempt.verdict == "passed" and attempt.feedback.config.world_size == 2


def test_the_device_is_that_of_the_service(pkb, folder, tmp_path, monkeypatch):
    """A service with GPUs judged on its CPU, since the machine of the agent had none."""
    (folder / "all_reduce.cpp").write_text("speedup 2.0")
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    owners = Owners(described=gpu_node(8))
    with make_service(owners) as service, HttpServer(service, TOKEN) as server:
        words = ("--problems", "AllReduce", "--service", server.url, "--output", "o")
        pkb("run", "--agent", f"replay:{folder}", *words)
    (judged,) = [config for owner in owners.opened for _, _, config in owner.requested]
    assert (judged.device, judged.world_size, judged.size) == ("cuda", 8, "published")
