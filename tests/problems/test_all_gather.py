"""AllGather: oracle, published inputs."""

import pytest
import torch

from tests.problems.support import run_reference, same


@pytest.mark.parametrize(("world_size", "dtype"), [(1, "bfloat16"), (2, "float32"), (4, "bfloat16"), (8, "float64")])
def test_every_rank_gets_every_block_bit_for_bit(world_size, dtype):
    run = run_reference("AllGather", world_size=world_size, dtype=dtype)
    run.assert_passes_own_checks()
    blocks = [args["tensor"] for args in run.args]
    for outputs in run.outputs:
        assert all(same(outputs["out"][s], block) for s, block in enumerate(blocks))


def test_a_flipped_sign_of_zero_and_a_changed_nan_are_seen():
    run = run_reference("AllGather", world_size=2)
    for before, after in ((0, -0x8000), (0x7FC0, 0x7FC1)):
        bits = run.outputs[0]["out"].view(torch.int16)
        bits[1, 2, 3] = before
        got = bits.clone()
        got[1, 2, 3] = after
        assert run.wrong(0, "out", got.view(torch.bfloat16)).nonzero().tolist() == [[1, 2, 3]]


def test_published_slices_are_constant():
    run = run_reference("AllGather", protocol="published")
    run.assert_passes_own_checks()
    assert run.outputs[3]["out"].float().mean(dim=(1, 2)).tolist() == [1, 2, 3, 4]
