"""AllToAll: oracle, published inputs, cost."""

import pytest

from tests.problems.support import find_problem, run_reference, same


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


def test_cost_of_the_published_size():
    cost = find_problem("AllToAll").cost(find_problem("AllToAll").axes(size="published", world_size=4, rank=1))
    assert (cost.memory_bytes, cost.link_in_bytes, cost.link_out_bytes) == (16_777_216, 6_291_456, 6_291_456)
