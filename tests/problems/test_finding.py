"""Finding one problem."""

import subprocess
import sys

import pytest

from pkb_gym.engine.errors import ProblemNotFound
from pkb_gym.problems.catalogue import catalogue, choose_problem, find_problem


def test_finding_one_problem_imports_no_other():
    """All 87 were imported for one name."""
    code = """
import sys
from pkb_gym.problems.catalogue import find_problem
find_problem("AllReduce")
print(*(name for name in sys.modules if name.startswith("pkb_gym.problems.") and name.endswith(".problem")))
"""
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert loaded == ["pkb_gym.problems.collective_primitive.all_reduce.problem"]


def test_what_is_found_is_the_object_of_the_catalogue():
    for problem in catalogue():
        assert all(find_problem(alias) is problem for alias in (problem.name, problem.folder, problem.upstream))


@pytest.mark.parametrize(("number", "name"), [("72", "HyenaCP"), ("001", "AllReduce")])
def test_a_number_of_the_list_is_answered_by_the_name(number, name):
    """`pkb list` shows numbers, and each was no problem at all."""
    with pytest.raises(ProblemNotFound, match=f"no problem '{number}' among .* Did you mean '{name}'"):
        find_problem(number)
    with pytest.raises(ProblemNotFound, match=r"no problem '99' among \d+\. `pkb list`"):
        find_problem("99")


@pytest.mark.parametrize("find", [find_problem, choose_problem])
@pytest.mark.parametrize("name", ["A" * 5000, "a\0b", "\ud800", ""])
def test_what_is_no_name_of_a_file_is_no_problem(find, name):
    """The file system's own error came instead."""
    with pytest.raises(ProblemNotFound, match="no problem") as raised:
        find(name)
    assert len(str(raised.value)) < 500
