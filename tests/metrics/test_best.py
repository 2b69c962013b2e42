"""The best kernel of each problem."""

from __future__ import annotations

from pkb_gym.metrics.best import best_kernels
from tests.metrics.attempts import attempt


def test_the_lower_end_of_the_interval_decides_and_the_first_of_equals_stays():
    lucky = attempt(sample=0, speedup=3.0, low=1.0)
    solid = attempt(sample=1, speedup=2.0, low=1.9)
    same = attempt(sample=2, speedup=2.5, low=1.9)
    (best,) = best_kernels([lucky, solid, same, attempt(sample=3)])
    assert best.attempt is solid and (best.value, best.among, best.suffix) == (1.9, 3, "cpp")


def test_each_kind_of_file_has_its_best():
    cuda = attempt(sample=1, speedup=9.0)
    config = cuda.feedback.config.model_copy(update={"language": "cuda", "device": "cuda"})
    cuda = cuda.model_copy(update={"feedback": cuda.feedback.model_copy(update={"config": config})})
    found = best_kernels([attempt(speedup=1.0), cuda, attempt("Gather", speedup=1.0)])
    assert [(best.attempt.problem, best.suffix) for best in found] == [
        ("AllReduce", "cpp"),
        ("AllReduce", "cu"),
        ("Gather", "cpp"),
    ]


def test_the_baseline_can_be_chosen():
    launches = attempt(sample=0, speedup=4.0, captured_us=10.0)
    kernel = attempt(sample=1, speedup=3.0, captured_us=90.0)
    assert best_kernels([launches, kernel], "eager")[0].attempt is launches
    assert best_kernels([launches, kernel])[0].attempt is kernel


def test_speedups_of_several_configurations_are_reported():
    other = attempt(sample=1, speedup=2.0)
    config = other.feedback.config.model_copy(update={"size": "large"})
    other = other.model_copy(update={"feedback": other.feedback.model_copy(update={"config": config})})
    (best,) = best_kernels([attempt(speedup=1.0), other])
    assert best.configurations == 2
    assert best_kernels([attempt(), attempt(failure="no_submission")]) == []
