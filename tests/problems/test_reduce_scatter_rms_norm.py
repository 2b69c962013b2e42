"""ReduceScatterRMSNorm against whole rows in float64; rows next to eps, orders of summation, cost."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "ReduceScatterRMSNorm"


def oracle(run: Run, *, divisor: float | None = None, eps: float | None = None) -> list[torch.Tensor]:
    """Every rank's rows; all rows of the sum are normalised at once."""
    ax = run.axes[0]
    eps = ax["eps"] if eps is None else eps
    whole = sum(args["rs_input_1d"].double() for args in run.args).view(-1, ax.h) / (divisor or ax.W)
    rows = [row / (row.dot(row) / ax.h + eps) ** 0.5 if row.any() else row for row in whole]
    return list((torch.stack(rows) * run.args[0]["gamma"].double()).split(ax.rows))


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial", "dtype"), [(1, 0, "bfloat16"), (2, 1, "float32"), (4, 0, "float16")])
def test_matches_whole_rows(world_size: int, trial: int, dtype: str, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype=dtype)
    run.assert_passes_own_checks()
    strict = Run(run.problem, run.axes, run.args, run.outputs)
    strict.assert_passes_own_checks()
    for rank, rows in enumerate(oracle(run)):
        assert not strict.wrong(rank, "out", rows.to(run.outputs[rank]["out"].dtype)).any()


def test_a_sum_that_rounds_after_every_rank_passes() -> None:
    run = run_reference(NAME, world_size=8)
    ax = run.axes[0]
    for order in (range(8), reversed(range(8))):
        total = torch.zeros(ax.length, dtype=torch.bfloat16)
        for rank in order:
            total += run.args[rank]["rs_input_1d"]
        args = [{"rs_input_1d": total / 8, "gamma": run.args[0]["gamma"]}] * 8
        rounded = Run(run.problem, run.axes, args, run.outputs)
        for rank, rows in enumerate(oracle(rounded, divisor=8)):
            assert not run.wrong(rank, "out", rows.bfloat16()).any()


@pytest.mark.parametrize("trial", [0, 1])
@pytest.mark.parametrize("world_size", [2, 4])
def test_near_misses_are_refused(world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial)
    eps, good = run.axes[1]["eps"], run.outputs[1]["out"]
    misses = [oracle(run, divisor=1.0)[1], oracle(run, eps=1e-12)[1], oracle(run, eps=11e-6 - eps)[1], oracle(run)[0]]
    one_off = good.clone()
    one_off[2, 7] += 0.2
    misses += [good * 1.02, good.roll(1, 0), torch.zeros_like(good), one_off]
    for index, wrong in enumerate(misses):
        assert run.wrong(1, "out", wrong.bfloat16()).any(), index


def test_zero_rows_are_zero_and_nan_spoils_its_row_alone() -> None:
    run = run_reference(NAME, world_size=2)
    assert not run.outputs[0]["out"][-1].any()
    args = [dict(one) for one in run.args]
    args[1]["rs_input_1d"] = args[1]["rs_input_1d"].clone()
    args[1]["rs_input_1d"][3] = float("nan")
    run = run_reference(NAME, world_size=2, args=args)
    assert run.outputs[0]["out"].isnan().all(1).tolist() == [True, False, False, False, False]
    run.assert_passes_own_checks()


def test_rows_by_world_size_and_cost() -> None:
    problem = find_problem(NAME)
    rows = [problem.axes(size="published", world_size=w, rank=0).rows for w in (1, 2, 4, 8)]
    assert rows == [256, 256, 256, 128]
    assert problem.axes(size="large", world_size=2, rank=0).rows == 4096
    assert [make_axes(problem, trial=trial)[0]["eps"] for trial in range(2)] == [1e-5, 1e-6]
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.vector_flops, least.memory_bytes) == (262_144, 327_936)
    assert (least.link_in_bytes, least.link_out_bytes) == (65_536, 196_608)
