"""CombinedShardedGemms: oracle, every rank's own weights, illegal sizes."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, run_reference

NAME = "CombinedShardedGemms"


def mlp(run, rank, *, first=None, second=None):
    """This rank's rows of the MLP in float64, unrounded between the layers."""
    X = torch.cat([args["x_local"] for args in run.args], dim=1).double()
    W1 = run.args[rank if first is None else first]["W1"].double()
    W2 = run.args[rank if second is None else second]["W2"].double()
    hidden = torch.einsum("ih,hf->if", X.chunk(len(run.args))[rank], W1)
    return torch.einsum("if,fo->io", hidden / (1 + torch.exp(-hidden)), W2)


@pytest.mark.parametrize(
    ("world_size", "protocol", "dtype"),
    [
        (1, "robust", None),
        (2, "robust", "float32"),
        (4, "robust", None),
        (8, "robust", "float16"),
        (2, "published", None),
        (4, "published", None),
    ],
)
def test_own_rows_of_the_mlp(world_size, protocol, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = mlp(run, rank)
        assert outputs["y_local"].shape == (32 // world_size, 32)
        tolerance = {"float32": 1e-5, "float16": 3e-3, None: 1e-2}[dtype]
        torch.testing.assert_close(
            outputs["y_local"].double(), exact, rtol=tolerance, atol=tolerance * exact.std().item()
        )
        if protocol == "robust":
            assert not run.wrong(rank, "y_local", exact.to(outputs["y_local"].dtype)).any()
            assert 0.3 < exact.std() < 1


def test_another_ranks_weights_or_rows_are_refused():
    run = run_reference(NAME)
    for other in ({"first": 1}, {"second": 1}):
        assert run.wrong(0, "y_local", mlp(run, 0, **other).bfloat16()).float().mean() > 0.8
    assert run.wrong(0, "y_local", mlp(run, 1, first=0, second=0).bfloat16()).float().mean() > 0.8


def test_rows_and_features_must_divide():
    for axes, message in (({"M": 30}, "M=30 must be"), ({"H": 30}, "H=30 must be")):
        with pytest.raises(SizeError, match=message):
            find_problem(NAME).axes(size=axes, world_size=4, rank=0)
