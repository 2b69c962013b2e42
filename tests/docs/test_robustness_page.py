"""docs/robustness.md names every problem, weakness and counterfeit; tests/problems runs the counterfeits."""

from __future__ import annotations

import json
import re

import pytest

from pkb_gym.problems.catalogue import catalogue, find_problem
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS
from tests.problems.counterfeit_runs import evidence_of, references
from tests.problems.finer_runs import evaluated_in_float32, shares_wrong

generator = load_module(DOCS / "generate_robustness.py", "tests.docs.generate_robustness")
PAGE = generator.PAGE.read_text(encoding="utf-8").replace("\\|", "|")
ROWS = {name: line for line in PAGE.splitlines() for name in re.findall(r"^\| \d+ \| \[(\w+)\]", line)}
STALE = "docs/robustness.md is stale: run `python docs/generate_robustness.py`"


def test_totals_are_those_of_the_catalogue():
    assert generator.totals(catalogue()).sentence() in PAGE, STALE


def test_every_problem_has_its_row():
    assert list(ROWS) == [problem.name for problem in catalogue()], STALE


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_a_row_has_weaknesses_rules_and_counterfeits(problem):
    row = ROWS[problem.name]
    assert all(weakness in row for weakness in problem.weaknesses), STALE
    assert all(out.check.describe() in row for out in problem.outputs), STALE
    found = evidence_of(problem.folder)
    for fake in found.counterfeits if found else ():
        verdict = re.search(rf"{re.escape(fake.name)}: accepts / (refuses, \d of \d trials|falls over)", row)
        assert verdict, f"{fake.name}: {STALE}"


def test_a_float32_answer_is_refused_by_the_published_check_alone():
    problem = find_problem("GemmAllReduce")
    truths = references(problem, "published", "robust")
    shares = shares_wrong(problem, evaluated_in_float32(problem), truths)
    assert shares["published"] > 0.01 and shares["robust"] == 0


def test_the_section_on_mutants_is_that_of_the_results():
    assert generator.mutant_tables.section().replace("\\|", "|") in PAGE, STALE.replace(".py`", ".py --mutants`")


def test_the_section_on_wrong_solutions_is_that_of_the_result():
    section = generator.wrong_solution_tables.section()
    assert section.replace("\\|", "|") in PAGE, STALE.replace(".py`", ".py --mutants`")
    assert "| none |" not in section


def test_mutants_that_pass_are_named(tmp_path):
    row = {"problem": "AllReduce", "mutant": "", "kind": "", "equivalent": None, "size": "tiny"}
    row |= {"evaluations": 200, "refused": 0}
    waits = row | {"mutant": "expert:9: comm.wait(r)", "kind": "wait", "evaluations": 20, "failures": {"race": 19}}
    rows = [
        row | {"failures": {}},
        row | {"failures": {}, "size": "published", "evaluations": 3},
        waits | {"refused": 19},
        waits | {"mutant": "expert:8: comm.barrier()", "refused": 0, "failures": {}, "equivalent": "all meet later"},
        waits | {"mutant": "expert:7: comm.signal(r)", "refused": 0, "evaluations": 0, "failures": {}},
        waits | {"mutant": "expert:6: comm.wait(2)", "refused": 0, "evaluations": 0, "failures": {}, "size": None},
    ]
    about = {"device": "cpu", "world_size": 4, "sizes": ["tiny", "published"], "until": "time", "commit": "abc"}
    (tmp_path / "mutants.json").write_text(json.dumps(about | {"rows": rows}))
    section = generator.mutant_tables.section(tmp_path)
    assert "1 wrong mutants, 20 evaluations of each: 19 of 20 refused. " in section
    assert "Not evaluated: 1 for want of time, 1 because no rank reaches the operation at these sizes. " in section
    assert (
        "Of 1 unchanged expert, 0 of 200 evaluations at tiny and 0 of 3 evaluations at published were refused"
        in section
    )
    assert "| AllReduce | 1 | 19 of 20 | race 19 | 0 of 203 |" in section
    assert "| AllReduce | `expert:9: comm.wait(r)` | 19 of 20 |" in section, "one that passed once"
    assert "| AllReduce | `expert:8: comm.barrier()` | 0 of 20 | all meet later |" in section
    assert "expert:7" not in section, "it has not been judged"
    assert generator.mutant_tables.section(tmp_path / "none") == ""


def test_further_sizes_and_operations_that_are_never_reached_are_told(tmp_path):
    row = {"problem": "AllReduce", "mutant": "", "kind": "", "equivalent": None, "size": "tiny/float32"}
    row |= {"evaluations": 20, "refused": 0, "failures": {}}
    wait = row | {"kind": "wait", "size": None, "evaluations": 0, "unreached": "for more than two ranks"}
    rows = [
        row,
        row | {"size": "tiny", "evaluations": 7},
        row | {"mutant": "expert:9: comm.wait(r)", "kind": "wait", "refused": 20, "failures": {"race": 20}},
        *(wait | {"mutant": f"expert:{line}: comm.wait(2)"} for line in (6, 7)),
        wait | {"mutant": "expert:5: comm.wait(3)", "unreached": None},
    ]
    about = {"device": "cuda", "world_size": 2, "sizes": ["published", "tiny", "further"], "until": "check"}
    about |= {"commit": "abc", "gpus": ["NVIDIA H200", "NVIDIA H200"], "rows": rows}
    (tmp_path / "mutants_2_gpus.json").write_text(json.dumps(about))
    section = generator.mutant_tables.section(tmp_path)
    assert "at these sizes, 2 because no rank reaches the operation at any size. Of 1 unchanged expert, " in section
    assert "0 of 7 evaluations at tiny and 0 of 20 evaluations at further sizes were refused." in section
    assert "first size of published, tiny and further ones (`benchmarks/mutant_sizes.py`) at which a rank" in section
    line = "| AllReduce | `expert:6: comm.wait(2)`, `expert:7: comm.wait(2)` | for more than two ranks |"
    assert f"| kernel | never reached | the branch is |\n| --- | --- | --- |\n{line}" in section


def test_nothing_is_written_of_what_there_is_none(tmp_path):
    row = {"problem": "AllReduce", "mutant": "expert:9: comm.wait(r)", "kind": "wait", "equivalent": None}
    row |= {"size": "tiny", "evaluations": 20, "refused": 20, "failures": {"race": 20}}
    about = {"device": "cuda", "world_size": 2, "sizes": ["tiny"], "until": "check", "commit": "abc"}
    about["gpus"] = ["NVIDIA H200", "NVIDIA H200"]
    (tmp_path / "mutants_2_gpus.json").write_text(json.dumps(about | {"rows": [row]}))
    section = generator.mutant_tables.section(tmp_path)
    assert "### 2 ranks on H200\n" in section
    assert "20 of 20 refused. Unchanged experts were not evaluated in this run. " in section
    assert "until `check`; commit abc (`" in section
    rows = [row | {"commit": "old"}, row | {"mutant": "expert:8: comm.wait(r)", "commit": None}]
    (tmp_path / "mutants_2_gpus.json").write_text(json.dumps(about | {"rows": rows}))
    assert "; commit abc, some evaluations of old (`" in generator.mutant_tables.section(tmp_path)
    assert "Not evaluated" not in section


def test_ranks_that_share_a_gpu_are_named(tmp_path):
    row = {"problem": "AllReduce", "mutant": "expert:9: comm.wait(r)", "kind": "wait", "equivalent": None}
    row |= {"size": "tiny", "evaluations": 20, "refused": 20, "failures": {"race": 20}}
    about = {"device": "cuda", "world_size": 2, "sizes": ["tiny"], "until": "check", "commit": "abc"}
    about |= {"gpus": ["NVIDIA H200"], "ranks_per_gpu": 2, "rows": [row]}
    (tmp_path / "mutants_1_gpus_of_2_ranks.json").write_text(json.dumps(about))
    assert "### 2 ranks on 1 H200, which they share\n" in generator.mutant_tables.section(tmp_path)
