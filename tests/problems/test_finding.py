"""Finding one problem."""

import subprocess
import sys

from pkb_gym.problems.catalogue import catalogue, find_problem


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
