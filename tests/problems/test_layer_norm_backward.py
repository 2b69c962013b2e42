"""LayerNormBackward: oracle, legitimate and illegitimate sums."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference

NAME = "LayerNormBackward"


def exact(run):
    """d_gamma and d_beta over the tokens of all ranks at once, in float64."""
    X_hat, dY = (torch.cat([args[name] for args in run.args]).double() for name in ("X_hat", "dY"))
    return {"d_gamma": torch.einsum("ih,ih->h", X_hat, dY), "d_beta": torch.einsum("ih->h", dY)}


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial", "dtype"),
    [
        (1, "robust", 1, None),
        (2, "robust", 0, "float32"),
        (4, "robust", 0, None),
        (4, "robust", 3, "float16"),
        (8, "robust", 2, "float64"),
        (2, "published", 0, None),
        (4, "published", 1, None),
    ],
)
def test_sums_over_the_tokens_of_all_ranks(world_size, protocol, trial, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for leaf, expected in exact(run).items():
        for rank, outputs in enumerate(run.outputs):
            if run.axes[rank]["whole"]:
                assert torch.equal(outputs[leaf].double(), expected)
            else:
                tolerance = {"float32": 1e-5, "float64": 1e-13, "float16": 1e-2, None: 5e-2}[dtype]
                torch.testing.assert_close(
                    outputs[leaf].double(), expected, rtol=tolerance, atol=tolerance * expected.std().item()
                )
            if protocol == "robust":
                assert not run.wrong(rank, leaf, expected.to(outputs[leaf].dtype)).any()


@pytest.mark.parametrize("trial", [0, 1])
def test_near_misses_are_refused(trial):
    run = run_reference(NAME, trial=trial)
    right = exact(run)
    for leaf, other in (("d_gamma", "d_beta"), ("d_beta", "d_gamma")):
        for wrong in (right[other], right[leaf] / 4, right[leaf] * 1.02):
            assert run.wrong(0, leaf, wrong.bfloat16()).any()
    own = run.args[0]["dY"].double().sum(0)
    assert run.wrong(0, "d_beta", own.bfloat16()).float().mean() > 0.5


def test_rows_of_zeros_and_whole_numbers_that_stay_exact():
    for trial, world_size in ((0, 2), (1, 8)):
        run = run_reference(NAME, world_size=world_size, trial=trial)
        X_hat, dY = (torch.cat([args[name] for args in run.args]).double() for name in ("X_hat", "dY"))
        assert (X_hat == 0).all(1).any() or trial
        if trial:
            assert (X_hat * dY).abs().sum(0).max() <= 256 and dY.abs().sum(0).max() <= 256
            assert dY.abs().sum(0).min() > 0
    assert [make_axes(find_problem(NAME), trial=t, timed=t > 1)[0]["whole"] for t in range(4)] == [0, 1, 0, 0]


def test_no_tokens_give_zeros():
    run = run_reference(NAME, size={"B": 0, "H": 8}, world_size=2)
    assert not any(value.any() for outputs in run.outputs for value in outputs.values())


def test_published_rows_have_norm_1():
    run = run_reference(NAME, world_size=1, protocol="published")
    norms = run.args[0]["X_hat"].float().norm(dim=1)
    assert (norms - 1).abs().max() < 0.02
