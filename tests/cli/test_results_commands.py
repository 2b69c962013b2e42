"""`pkb report`, `compare`, `best`, `verify` and `leaderboard`, with a fake evaluator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pkb_gym.metrics.comparison import AgentComparison
from pkb_gym.report.content import ReportContent
from pkb_gym.report.leaderboard import read_entry
from pkb_gym.report.verification import Verification
from pkb_gym.rewards.examples import CONFIG, MACHINE
from tests.metrics.attempts import attempt, write

A = [
    attempt("AllReduce", "a", speedup=2.0, source="passed a"),
    attempt("Gather", "a", failure="deadlock", source="deadlock a"),
    attempt("Scatter", "a", speedup=0.5, source="passed slowly"),
]
B = [
    attempt("AllReduce", "b", speedup=1.5, low=1.2, source="passed b"),
    attempt("Gather", "b", speedup=3.0, source="passed gather"),
]


@pytest.fixture
def a(tmp_path):
    return write(tmp_path / "a.jsonl", A)


@pytest.fixture
def b(tmp_path):
    return write(tmp_path / "b.jsonl", B)


def test_report_writes_a_page_its_twins_and_pictures(pkb, a, b, tmp_path):
    page = tmp_path / "out" / "r.html"
    ran = pkb("report", a, b, "--output", page, "--figures", tmp_path / "pictures")
    assert ran.status == 0 and ran.err == "5 attempts by 2 agents\n"
    written = ran.out.split()
    assert written[:3] == [str(page), str(page.with_suffix(".md")), str(page.with_suffix(".json"))]
    assert str(tmp_path / "pictures" / "roofline.png") in written
    content = ReportContent.model_validate_json(page.with_suffix(".json").read_text())
    assert [each.agent for each in content.agents] == ["a", "b"] and content.sources == (str(a), str(b))
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "| All (87) | 2 of 3 | 2 of 2 |" in page.with_suffix(".md").read_text()


def test_report_as_json_writes_nothing(pkb, a, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    ran = pkb("report", a, "--json")
    content = ReportContent.model_validate_json(ran.out)
    assert content.agents[0].problems[0].speedup == 2.0 and set(tmp_path.iterdir()) == before


def test_report_names_what_is_wrong(pkb, a, tmp_path):
    ran = pkb("report", a, "--output", tmp_path / "r.md")
    assert ran.status == 2 and "--output names the page, such as" in ran.err
    ran = pkb("report", a, "--output", a / "r.html")
    assert ran.status == 2 and "cannot write" in ran.err
    ran = pkb("report", tmp_path / "none.jsonl")
    assert ran.status == 2 and "cannot read" in ran.err
    a.write_text(a.read_text() + '{"problem": 1}\n')
    ran = pkb("report", a)
    assert ran.status == 2 and "a.jsonl, line 4, is no result of this version: problem: " in ran.err


def test_compare_shows_differences_and_flips(pkb, a, b):
    ran = pkb("compare", a, b)
    assert ran.status == 0
    assert ran.out.startswith("A: a\nB: b\nspeedups over the eager baseline; 2 problems in both\n")
    (line,) = (line for line in ran.out.splitlines() if line.startswith("pass@1"))
    assert line.split() == ["pass@1", "0.500", "1.000", "+0.500", "+0.000", "to", "+1.000", "2"]
    assert "right, only B: Gather (0/1 -> 1/1)\n" in ran.out and "faster, only B: Gather (0/1 -> 1/1)\n" in ran.out
    assert "only in A, not compared: Scatter\n" in ran.out
    found = AgentComparison.model_validate_json(pkb("compare", a, b, "--json").out)
    assert found.only_a == ("Scatter",) and len(found.flips) == 2
    assert "no problem flipped" in pkb("compare", b, b).out
    assert "B as fast as A's best kernel: 0 of 1 problems; turns: AllReduce never\n" in ran.out
    assert found.reach.target == "a" and found.reach.problems[0].target_speedup == 2.0


def test_compare_needs_one_agent_of_each_and_a_shared_problem(pkb, a, b, tmp_path):
    both = write(tmp_path / "both.jsonl", [*A, *B])
    ran = pkb("compare", both, b)
    assert ran.status == 2 and f"{both} holds results of several agents: a, b. Choose one by AGENT={both}" in ran.err
    assert pkb("compare", f"a={both}", f"b={both}").status == 0
    other = write(tmp_path / "other.jsonl", [attempt("HyenaCP", "c")])
    assert "share no problem that was judged in both" in pkb("compare", a, other).err


def other_conditions(path, **changes):
    """The results of B, judged on 8 ranks of an H200."""
    config = {"device": "cuda", "world_size": 8, **changes}
    feedback = {
        "config": CONFIG.model_copy(update=config),
        "environment": MACHINE.model_copy(update={"hardware": "an H200"}),
    }
    return write(path, [attempt("AllReduce", "b", speedup=1.5, feedback=feedback), attempt("Gather", "b")])


def test_compare_refuses_what_was_judged_under_other_conditions(pkb, a, tmp_path):
    other = other_conditions(tmp_path / "b.jsonl")
    ran = pkb("compare", a, other)
    assert (ran.status, ran.out) == (2, "")
    for words in (
        f"{a} and {other} were judged under different conditions: ",
        f"hardware {MACHINE.hardware} against an H200 (AllReduce); ",
        "device cpu against cuda (AllReduce); ",
        f"world_size {CONFIG.world_size} against 8 (AllReduce). --force compares them all the same",
    ):
        assert words in ran.err
    forced = pkb("compare", a, other, "--force")
    assert forced.status == 0 and "2 problems in both" in forced.out and "device cpu against cuda" in forced.err
    found = AgentComparison.model_validate_json(pkb("compare", a, other, "--force", "--json").out)
    assert [each.setting for each in found.differing] == ["hardware", "device", "world_size"]
    assert not AgentComparison.model_validate_json(pkb("compare", a, a, "--json").out).differing


def test_report_keeps_conditions_apart(pkb, a, tmp_path):
    other = other_conditions(tmp_path / "b.jsonl")
    ran = pkb("report", a, other, "--output", tmp_path / "r.html")
    assert ran.err == "5 attempts by 2 agents in 2 groups, which do not compare\n"
    content = ReportContent.model_validate_json((tmp_path / "r.json").read_text())
    assert [each.agent for each in content.agents] == ["a (cpu)", "b (cpu/cuda)"]


def test_a_folder_of_a_run_stands_for_its_results(pkb, tmp_path):
    for name, attempts in (("a", A), ("b", B)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write(tmp_path / "runs" / name / "results.jsonl", attempts)
    one, two = tmp_path / "runs/a", tmp_path / "runs/b"
    assert "B: b\n" in pkb("compare", one, f"b={two}").out
    assert pkb("report", one, two, "--output", tmp_path / "r.html").status == 0
    assert "3 kernels in" in pkb("best", one, two, "--output", tmp_path / "best").out
    assert "3 of 3 hold" in pkb("verify", one).out
    assert pkb(*entry(one, tmp_path / "board", "--commit", "0123456789ab")).status == 0
    assert pkb("export", "results", one, "--out", tmp_path / "data").status == 0
    ran = pkb("report", tmp_path / "runs")
    assert ran.status == 2
    assert f"{tmp_path / 'runs'} is a folder without results.jsonl; there are runs in {one}, {two}" in ran.err
    (tmp_path / "none").mkdir()
    assert pkb("report", tmp_path / "none").err.endswith("none is a folder without results.jsonl\n")


def test_best_writes_files_that_eval_dir_takes(pkb, a, b, tmp_path):
    folder = tmp_path / "best"
    ran = pkb("best", a, b, "--output", folder)
    assert ran.status == 0 and f"3 kernels in {folder}. Next: pkb eval-dir {folder}" in ran.out
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "all_reduce.cpp": "passed a",
        "gather.cpp": "passed gather",
        "scatter.cpp": "passed slowly",
    }
    again = pkb("eval-dir", folder)
    assert again.status == 0 and "3 of 3 passed." in again.out
    records = json.loads(pkb("best", a, b, "--output", folder, "--json").out)
    assert [(record["file"], record["agent"], record["among"]) for record in records] == [
        ("all_reduce.cpp", "a", 2),
        ("gather.cpp", "b", 1),
        ("scatter.cpp", "a", 1),
    ]


def test_best_overwrites_no_other_kernel(pkb, a, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "all_reduce.cpp").write_text("mine")
    ran = pkb("best", a, "--output", tmp_path / "best")
    assert ran.status == 2 and "holds another kernel; give another --output" in ran.err
    assert (tmp_path / "best" / "all_reduce.cpp").read_text() == "mine"


def test_best_of_a_problem_whose_name_is_a_path_is_refused(pkb, tmp_path):
    results = write(tmp_path / "r.jsonl", [attempt("../../evil", speedup=1.0)])
    ran = pkb("best", results, "--output", tmp_path / "best")
    assert ran.status == 2 and "'../../evil' is no name of a problem" in ran.err
    assert not (tmp_path / "best").exists()


def test_best_without_a_right_kernel_fails(pkb, tmp_path):
    results = write(tmp_path / "r.jsonl", [attempt()])
    assert pkb("best", results, "--output", tmp_path / "best").status == 1


def test_sources_that_are_no_utf8_come_back_as_they_were(pkb, tmp_path):
    source = b"passed \xff".decode("utf-8", "surrogateescape")
    pkb("best", write(tmp_path / "r.jsonl", [attempt(speedup=1.0, source=source)]), "--output", tmp_path / "best")
    assert (tmp_path / "best" / "all_reduce.cpp").read_bytes() == b"passed \xff"


def test_verify_evaluates_a_sample_again(pkb, a):
    ran = pkb("verify", a, "--sample", "9")
    assert ran.status == 0 and "3 of 3 hold, 1 faster than recorded." in ran.out
    assert "Scatter, sample 0, turn 0: holds: is right and faster than recorded: at least 2x, recorded at mo" in ran.err
    lines = {line.split()[0]: line for line in ran.out.splitlines() if line}
    assert lines["Scatter"].rstrip().endswith("faster than recorded") and lines["AllReduce"].rstrip().endswith("holds")
    assert sorted(name for name, _, _ in ran.calls) == ["AllReduce", "Gather", "Scatter"]
    assert {config.size for _, _, config in ran.calls} == {"tiny"} and len(ran.evaluators) == 1
    assert "Gather, sample 0, turn 0: holds: fails again" in ran.err
    assert len(pkb("verify", a, "--sample", "1").calls) == 1


def test_verify_says_what_does_not_hold(pkb, tmp_path):
    claims = [attempt("AllReduce", speedup=9.0, source="passed"), attempt("Gather", speedup=1.0, source="race")]
    results = write(tmp_path / "r.jsonl", claims)
    ran = pkb("verify", results)
    assert ran.status == 1 and "0 of 2 hold." in ran.out
    assert "AllReduce, sample 0, turn 0: does not hold: is slower: at most 2x, expected 8.1x or more" in ran.err
    assert "Gather, sample 0, turn 0: does not hold: is not right again" in ran.err
    records = [Verification.model_validate_json(line) for line in pkb("verify", results, "--json").out.splitlines()]
    assert sorted((record.problem, record.holds) for record in records) == [("AllReduce", False), ("Gather", False)]
    assert pkb("verify", results, "--tolerance", "0.9", "--json").status == 1
    assert "expected a share in [0, 1), got '2'" in pkb("verify", results, "--tolerance", "2").err


def test_verify_on_a_machine_that_cannot_judge(pkb, tmp_path):
    results = write(tmp_path / "r.jsonl", [attempt(speedup=1.0, source="infrastructure")])
    assert pkb("verify", results).status == 3
    results = write(tmp_path / "n.jsonl", [attempt(failure="no_submission")])
    assert pkb("verify", results).status == 2
    results = write(tmp_path / "u.jsonl", [attempt("Unknown", speedup=1.0)])
    ran = pkb("verify", results)
    assert ran.status == 2 and "no problem 'Unknown'" in ran.err and not ran.evaluators


def entry(a, folder, *more):
    words = ("--kind", "expert", "--title", "Expert", "--description", "By hand.", "--command", "pkb eval-dir x")
    return ("leaderboard", "add", a, "--name", "expert", *words, "--folder", folder, *more)


def test_leaderboard_makes_entries_and_their_table(pkb, a, tmp_path):
    ran = pkb(*entry(a, tmp_path / "board", "--commit", "0123456789ab", "--date", "2026-01-31"))
    path = tmp_path / "board" / "entries" / "expert.json"
    assert (ran.status, ran.out) == (0, f"{path}\n")
    assert read_entry(path).commit == "0123456789ab" and read_entry(path).date.isoformat() == "2026-01-31"
    table = pkb("leaderboard", "table", tmp_path / "board" / "entries").out
    assert "| Expert | expert | 3 | 3 | 0.67" in table
    page = tmp_path / "board" / "README.md"
    assert pkb("leaderboard", "table", path, "--output", page).out == f"{page}\n" and page.read_text() == table
    assert json.loads(pkb("leaderboard", "schema").out)["title"] == "LeaderboardEntry"


def test_leaderboard_counts_turns_until_a_target(pkb, a, b, tmp_path):
    assert pkb(*entry(b, tmp_path, "--commit", "0123456789ab", "--target", a)).status == 0
    assert read_entry(tmp_path / "entries" / "expert.json").reach.target == "a"


def test_leaderboard_needs_a_commit(pkb, a, tmp_path, monkeypatch):
    from pkb_gym.report.leaderboard import checkout

    assert "got 'main'; give its first 12 digits" in pkb(*entry(a, tmp_path, "--commit", "main")).err
    monkeypatch.setattr(checkout, "checkout_commit", lambda: "0123456789ab-dirty")
    assert "commit the changes, or give --commit" in pkb(*entry(a, tmp_path)).err
    monkeypatch.setattr(checkout, "checkout_commit", lambda: None)
    assert "no commit is known" in pkb(*entry(a, tmp_path)).err
    monkeypatch.setattr(checkout, "checkout_commit", lambda: "0123456789ab")
    assert pkb(*entry(a, tmp_path)).status == 0


def test_help_of_commands_on_results_loads_no_numpy():
    code = """
import sys
from pkb_gym.cli import main
for name in ("report", "compare", "best", "verify", "leaderboard"):
    main([name, "--help"])
print([name for name in ("torch", "transformers", "matplotlib", "numpy") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
