"""Half of the bits on the link are too few, in timed calls too, where results are moved, averaged or added up.

`make test` tries every third case, `make mutants` each of them.
"""

from __future__ import annotations

import os

import pytest

from tests.problems import narrow_links as links
from tests.problems.counterfeit_runs import refused
from tests.problems.support import Job, run_jobs
from tests.whole_tables import sampled

EIGHT, SIXTEEN = links.EIGHT_BITS, links.SIXTEEN_BITS

WHOLE = bool(os.environ.get("PKB_TEST_MUTANTS"))
"""Whether every case has all of its numbers of ranks, as by `make mutants`."""

ALL: list[tuple[str, links.Code, tuple[int, ...]]] = [
    ("GemmAllGather", EIGHT, (2, 8)),
    ("GemmAllGather", links.companded, (2, 8)),
    ("FusedAdamAllGather", EIGHT, (2, 8)),
    ("RingAttention", EIGHT, (2, 8)),
    ("RingAttentionBackwardDP", EIGHT, (8,)),
    ("DistributedRFFT", SIXTEEN, (2, 8)),
    ("DistributedIRFFT", SIXTEEN, (2, 8)),
    ("SphericalConvolution", SIXTEEN, (2, 8)),
    ("KalmanFilterOptimizer", links.THIRTY_TWO_BITS, (2, 8)),
    ("AllReduce", EIGHT, (2, 8)),
    ("AllReduce", links.small_floats, (2, 8)),
    ("Reduce", links.small_floats, (8,)),
    ("ReduceScatter", EIGHT, (8,)),
    ("ReduceScatter", links.small_floats, (2,)),
    ("GemmAllReduce", links.small_floats, (2, 8)),
    ("GemmReduceScatter", links.small_floats, (2, 8)),
    ("MoELoRAGroupGemmBackward", EIGHT, (8,)),
    ("MoELoRAGroupGemmBackward", links.small_floats, (2,)),
]
CASES = ALL if WHOLE else sampled(ALL, 8)


@pytest.mark.parametrize(
    ("name", "code", "world_size"),
    [
        pytest.param(name, code, size, id=f"{name}-{getattr(code, '__name__', code)}-{size}")
        for name, code, sizes in CASES
        for size in (sizes if WHOLE else sizes[:1])
    ],
)
def test_half_of_the_bits_on_the_link_are_too_few(name: str, code: links.Code, world_size: int) -> None:
    trials = range(2)
    whole = [Job(name, world_size=world_size, trial=trial, timed=True) for trial in trials]
    solution = links.with_narrow_links(name, code)
    truths = run_jobs(whole)
    runs = run_jobs([Job(name, world_size=world_size, trial=t, timed=True, solution=solution) for t in trials])
    for truth, got in zip(truths, runs, strict=True):
        truth.assert_passes_own_checks()
        assert refused(truth, got)
