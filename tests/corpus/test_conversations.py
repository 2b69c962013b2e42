"""Ways to a right kernel: which mistakes they begin with."""

from __future__ import annotations

from pkb_gym.corpus.breakages import COMPILE_TIME, SYNCHRONISATION
from pkb_gym.corpus.conversations import Trajectory, broken_trajectories, sampled_variants
from pkb_gym.corpus.tasks import Task


def _good(problem: str, language: str) -> list[Trajectory]:
    task = Task(problem, language, 2, "tiny", "bfloat16", 0, "brief")
    return [Trajectory(task, variant, (variant.source,)) for variant in sampled_variants(problem, language, 12, 0)]


def test_mistakes_of_all_three_kinds_are_about_as_frequent():
    for problem, language in (("AllGather", "cpp"), ("Reduce", "cuda"), ("GradAccLoss", "cpp")):
        repairs = list(broken_trajectories(_good(problem, language), 30, 0, only_compiled=False))
        last = [repair.breakages[-1] for repair in repairs]
        assert len(last) == 30 and all(repair.sources[-1] == repair.variant.source for repair in repairs)
        assert sum(name in SYNCHRONISATION for name in last) >= 6, last
        assert sum(name in COMPILE_TIME for name in last) >= 6, last


def test_without_a_machine_to_run_them_mistakes_are_those_of_a_compiler():
    repairs = list(broken_trajectories(_good("AllGather", "cuda"), 12, 0, only_compiled=True))
    assert repairs and {name for repair in repairs for name in repair.breakages} <= set(COMPILE_TIME)
