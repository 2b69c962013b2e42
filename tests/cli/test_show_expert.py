"""`pkb show --expert`: the known-good kernel and its times, which no task text has."""

import json

import pytest

from pkb_gym.cli import show_expert
from pkb_gym.cli.show_expert import measured_lines
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.problems.expert_times import ExpertTime, expert_times

TIME = ExpertTime(
    problem="AllReduce",
    size="large",
    world_size=2,
    gpu="NVIDIA H200",
    dtype="bfloat16",
    expert_us=250.0,
    baseline_us=1500.0,
    captured_us=500.0,
    speedup=6.0,
    speedup_low=5.5,
    utilisation=0.61,
    commit="0123456789ab",
    date="2026-11-28",
)


def test_the_expert_of_the_device_is_printed_and_nothing_else(pkb):
    ran = pkb("show", "AllReduce", "--expert", "--device", "cpu")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == expert_source(find_problem("AllReduce"), "cpp")


def test_times_are_comments_behind_the_source(pkb):
    ran = pkb("show", "AllReduce", "--expert", "--device", "emulated")
    source = expert_source(find_problem("AllReduce"), "cu") or ""
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"{source}\n// Measured:\n// tiny on 1 rank of NVIDIA H200: ")
    assert all(line.startswith("//") for line in ran.out[len(source) :].splitlines() if line)
    assert all(f"(commit {time.commit}, {time.date})" in ran.out for time in expert_times("AllReduce"))


def test_a_time_names_its_conditions():
    assert measured_lines([TIME])[2:] == [
        "// large on 2 ranks of NVIDIA H200: 250 us beside 1.5 ms eager and 500 us captured; 6.00 (at least 5.50) "
        "times as fast as the eager baseline, 61 % of the roofline (commit 0123456789ab, 2026-11-28)"
    ]
    assert measured_lines([]) == []


def test_one_record_has_source_and_times(pkb):
    record = json.loads(pkb("show", "AllReduce", "--expert", "--device", "emulated", "--json").out)
    assert record["file"] == "expert.cu" and record["source"] == expert_source(find_problem("AllReduce"), "cu")
    assert {row["world_size"] for row in record["times"]} == {1, 2}


def test_the_other_expert_stands_in_for_one_that_is_missing(pkb):
    ran = pkb("show", "ZeRO1", "--expert", "--device", "cpu")
    assert ran.out.startswith(expert_source(find_problem("ZeRO1"), "cu") or "no")
    assert ran.err == "ZeRO1 has no expert.cpp; this is expert.cu\n"


def test_a_problem_without_an_expert_says_so(pkb, monkeypatch):
    monkeypatch.setattr(show_expert, "experts", lambda problem: ())
    ran = pkb("show", "ZeRO1", "--expert", "--device", "cpu")
    assert (ran.status, ran.out) == (2, "")
    assert "ZeRO1 has no expert kernel; `pkb list` shows the problems that have one" in ran.err


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_the_task_has_neither_expert_nor_times(pkb, device):
    for name in ("AllReduce", "ClipGradNorm", "VocabParallelLogProb"):
        shown = pkb("show", name, "--device", device, "--json", "--style", "full").out
        lines = {
            line for kind in ("cpp", "cu") for line in (expert_source(find_problem(name), kind) or "").splitlines()
        }
        assert not [line for line in lines if len(line) > 60 and json.dumps(line)[1:-1] in shown]
        assert not [time.commit for time in expert_times(name) if time.commit in shown]
