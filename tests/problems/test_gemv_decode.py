"""GemvDecode: oracle, interleave of the gathered blocks, bias, sizes."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference, same

NAME = "GemvDecode"


def logits(run, *, bias=1.0):
    """From the weight and bias in one piece, in float64."""
    weight, offset = (torch.cat([args[name] for args in run.args]).double() for name in ("weight_shard", "bias_shard"))
    return torch.einsum("th,vh->tv", run.args[0]["hidden_states"].double(), weight) + bias * offset


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial", "dtype"),
    [
        (1, "robust", 0, None),
        (2, "robust", 1, "float32"),
        (4, "robust", 0, None),
        (4, "robust", 2, "float16"),
        (8, "robust", 3, None),
        (2, "published", 0, None),
        (4, "published", 1, None),
    ],
)
def test_logits_over_the_whole_vocabulary(world_size, protocol, trial, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    exact = logits(run)
    for rank, outputs in enumerate(run.outputs):
        assert same(run.args[rank]["hidden_states"], run.args[0]["hidden_states"])
        assert same(outputs["logits"], run.outputs[0]["logits"])
        tolerance = {"float32": 1e-5, "float16": 2e-3, None: 1e-2}[dtype]
        torch.testing.assert_close(
            outputs["logits"].double(), exact, rtol=tolerance, atol=tolerance * exact.std().item()
        )
        if protocol == "robust":  # one rounding, after the bias
            assert not run.wrong(rank, "logits", exact.to(outputs["logits"].dtype)).any()


def test_a_wrong_interleave_or_no_bias_is_refused():
    run = run_reference(NAME)
    right = logits(run)
    flat = torch.cat(right.chunk(4, dim=1)).reshape(right.shape)  # blocks one after another
    for wrong in (flat, logits(run, bias=0.0), logits(run, bias=0.9)):
        assert run.wrong(0, "logits", wrong.bfloat16()).any()


def test_numbers_of_tokens():
    problem = find_problem(NAME)
    for size, own in (("tiny", 3), ("published", 1), ("large", 128)):
        tokens = [make_axes(problem, size=size, trial=trial)[0].T for trial in range(8)]
        assert tokens[0] == own and min(tokens[1:]) > 1 and len(set(tokens)) > 2
        assert make_axes(problem, size=size, trial=3, timed=True)[0].entries["T"] == own
        assert make_axes(problem, size=size, trial=3, protocol="published")[0].T == 1


def test_ranks_draw_different_parts_of_one_published_weight():
    run = run_reference(NAME, world_size=2, protocol="published")
    assert not same(run.args[0]["weight_shard"], run.args[1]["weight_shard"])
    again = run_reference(NAME, world_size=1, protocol="published")
    assert same(again.args[0]["weight_shard"], run.args[0]["weight_shard"])


def test_vocabulary_of_the_sizes():
    problem = find_problem(NAME)
    vocabulary = {
        (size, W): (ax.Vl, ax.V)
        for size in ("tiny", "published", "large")
        for W in (4, 8)
        for ax in [problem.axes(size=size, world_size=W, rank=0)]
    }
    assert vocabulary["tiny", 4] == (40, 160) and vocabulary["published", 8] == (1024, 8192)
    assert vocabulary["large", 4] == (32768, 131072) and vocabulary["large", 8] == (16384, 131072)
    assert problem.axes(size={"Vl": None, "V": 64}, world_size=2, rank=0).Vl == 32
    with pytest.raises(SizeError, match="V=30 must be a multiple of W=4"):
        problem.axes(size={"Vl": None, "V": 30}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="give exactly one of V=64 and Vl=1024"):
        problem.axes(size={"V": 64}, world_size=4, rank=0)
