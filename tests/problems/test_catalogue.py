"""Finding problems: by which names, and from many threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pkb_gym.engine.errors import ProblemNotFound
from pkb_gym.problems.catalogue import catalogue, find_problem

MANY_THREADS = """
import sys, threading
from pkb_gym.problems.catalogue import catalogue, find_problem

sys.setswitchinterval(1e-6)
together = threading.Barrier(16)
found, errors = [], []

def ask(number):
    together.wait()
    try:
        found.append(len(catalogue()) if number % 2 else find_problem("AllReduce").name)
    except BaseException as error:
        errors.append(f"{type(error).__name__}: {error}")

threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
print(sorted(map(str, set(found))), len(found))
"""


def test_threads_that_ask_at_the_same_time_see_whole_modules() -> None:
    """In a fresh interpreter, where no problem has been imported yet."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["['87',", "'AllReduce']", "16"]


@pytest.mark.parametrize("name", ["AllGatherGemm", "PKB/AllGatherGemm-v0", "all_gather_gemm", "12_allgather_gemm"])
def test_a_problem_has_several_names(name: str) -> None:
    assert find_problem(name).name == "AllGatherGemm"


def test_the_near_name_is_suggested() -> None:
    with pytest.raises(ProblemNotFound, match=r"no problem 'AllGatherGem' among 87\. Did you mean 'AllGatherGemm'\?"):
        find_problem("AllGatherGem")
    with pytest.raises(ProblemNotFound, match=r"among 87\. `pkb list` shows all"):
        find_problem("qqqqqqqq")


def test_names_are_unique() -> None:
    assert len({problem.name for problem in catalogue()}) == len(catalogue()) == 87
