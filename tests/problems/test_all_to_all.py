"""AllToAll: oracle, published inputs."""

import pytest

from tests.problems.support import run_reference, same


@pytest.mark.parametrize(("world_size", "dtype"), [(1, "bfloat16"), (2, "float32"), (4, "bfloat16"), (8, "float16")])
def test_block_d_of_rank_s_becomes_block_s_of_rank_d(world_size, dtype):
    run = run_reference("AllToAll", world_size=world_size, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        assert all(same(outputs["out"][s], args["tensor"][rank]) for s, args in enumerate(run.args))


def test_published_blocks_are_constant():
    run = run_reference("AllToAll", protocol="published")
    run.assert_passes_own_checks()
    assert run.outputs[2]["out"].float().mean(dim=(1, 2)).tolist() == [2, 12, 22, 32]
