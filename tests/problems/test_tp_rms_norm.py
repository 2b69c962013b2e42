"""TPRMSNorm: oracle, zero and tiny rows, epsilon, skipped exchanges."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference

NAME = "TPRMSNorm"


def normalise(run, rank, *, eps=None, local=False):
    """This rank's columns of the normalised rows in float64; `local` leaves the other ranks out."""
    args = run.args[rank]
    everyone = [args] if local else run.args
    hidden = torch.cat([a["local_hidden_states"] for a in everyone], dim=1).double()
    root = (hidden.pow(2).mean(1, keepdim=True) + (run.axes[rank]["eps"] if eps is None else eps)).sqrt()
    return args["local_hidden_states"].double() / root * args["local_weight"].double()


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial", "dtype"),
    [
        (1, "robust", 0, None),
        (2, "robust", 1, "float32"),
        (4, "robust", 0, None),
        (4, "robust", 1, "float16"),
        (8, "robust", 2, None),
        (2, "published", 0, None),
        (4, "published", 1, None),
    ],
)
def test_rows_normalised_over_all_ranks(world_size, protocol, trial, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = normalise(run, rank)
        torch.testing.assert_close(outputs["out"].double(), exact, rtol=1e-5 if dtype == "float32" else 1e-2, atol=1e-6)
        if protocol == "robust":
            assert not run.wrong(rank, "out", exact.to(outputs["out"].dtype)).any()


@pytest.mark.parametrize("trial", [0, 1])
def test_skipping_anything_is_refused(trial):
    run = run_reference(NAME, trial=trial)
    args = run.args[0]
    unnormalised = args["local_hidden_states"].double() * args["local_weight"].double()
    for wrong in (normalise(run, 0, local=True), unnormalised):
        assert run.wrong(0, "out", wrong.bfloat16()).float().mean() > 0.7
    # The eighth of the rows in which it counts.
    other_eps = normalise(run, 0, eps=1e-5 if trial else 1e-6)
    assert run.wrong(0, "out", other_eps.bfloat16()).float().mean() > 0.1


def test_zero_rows_stay_zero_and_a_nan_takes_its_row_on_all_ranks():
    run = run_reference(NAME, world_size=2)
    zero = [(args["local_hidden_states"] == 0).all(1) for args in run.args]
    assert zero[0].sum() == 2 and torch.equal(zero[0], zero[1])
    assert all((outputs["out"][zero[0]] == 0).all() for outputs in run.outputs)
    run.args[1]["local_hidden_states"][3, 7] = torch.nan
    run = run_reference(NAME, world_size=2, args=run.args)
    for outputs in run.outputs:
        assert outputs["out"].isnan().all(1).nonzero().flatten().tolist() == [3]
        assert outputs["out"].isnan().any(1).sum() == 1


def test_an_infinity_leaves_zeros_beside_it():
    run = run_reference(NAME, world_size=2)
    run.args[0]["local_hidden_states"][3] = 1.0
    run.args[0]["local_hidden_states"][3, 7] = torch.inf
    run = run_reference(NAME, world_size=2, args=run.args)
    mine, other = (outputs["out"][3] for outputs in run.outputs)
    assert mine.isnan().nonzero().flatten().tolist() == [7]
    assert not mine[torch.arange(64) != 7].any() and not other.any()


def test_two_epsilons_by_turns():
    problem = find_problem(NAME)
    assert [make_axes(problem, trial=t)[0]["eps"] for t in range(4)] == [1e-5, 1e-6, 1e-5, 1e-6]
    assert make_axes(problem, trial=1, timed=True)[0]["eps"] == 1e-5
