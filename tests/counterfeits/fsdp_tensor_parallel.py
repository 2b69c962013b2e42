"""Counterfeits of FSDPTensorParallel: there are none on four ranks."""

from tests.problems.counterfeit import Counterfeit

COUNTERFEITS: tuple[Counterfeit, ...] = ()
NOT_SHOWN = {
    0: "the published check refuses right results here rather than taking wrong ones",
    1: "only on 2 ranks: a solution without the all_reduce passes there, and on 4 ranks fails under both protocols",
}
