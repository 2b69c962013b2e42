"""MoECombine: sums added token by token, mechanical splits, modes, edge cases."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference


def expected(run, rank):
    """float64: each source's rows found by walking through its buffer with the counts it was given."""
    ax, args = run.axes[rank], run.args[rank]
    group = list(range(ax.W)) if ax["group"] is None else next(list(part) for part in ax["group"] if rank in part)
    place = group.index(rank)
    arrived = []
    for host in group:
        counts = run.args[host]["num_global_tokens_per_local_expert"].tolist()
        chunks, at = {}, 0
        for e in range(run.axes[host].L):
            for s in range(len(group)):
                chunks[s, e] = list(range(at, at + counts[s][e]))
                at += counts[s][e]
        queue = [row for s in range(len(group)) for e in range(run.axes[host].L) for row in chunks[s, e]]
        skip = sum(run.axes[host]["output_splits"][:place]) if ax.W > 1 else 0
        count = run.axes[host]["output_splits"][place] if ax.W > 1 else len(queue)
        arrived += [run.args[host]["expert_outputs"][row].double() for row in queue[skip : skip + count]]
    out = torch.zeros(ax.T, ax.H, dtype=torch.float64)
    pairs = [(e, t) for e in range(ax.E) for t in range(ax.T) if args["routing_map"][e, t]]
    mapping = args["local_input_permutation_mapping"].tolist()
    for row, (e, t), token in zip(arrived, pairs, mapping, strict=True):
        out[token] += row * sum(
            float(args["routing_weights"][t, k]) for k in range(ax.K) if args["selected_experts"][t, k] == e
        )
    return out


def assert_sums_are_right(run):
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = expected(run, rank)
        assert outputs["out"].shape == exact.shape
        assert torch.allclose(outputs["out"].double(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (1, 3), (2, 2), *((4, trial) for trial in range(4)), (8, 3)])
def test_sums(world_size, trial):
    assert_sums_are_right(run_reference("MoECombine", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_splits_are_followed_mechanically(world_size):
    assert_sums_are_right(run_reference("MoECombine", world_size=world_size, protocol="published"))


@pytest.mark.parametrize("size", [{"T": 0, "H": 8}, {"T": 16, "H": 8, "K": 4}, {"T": 16, "H": 8, "K": 8}])
def test_edge_sizes(size):
    assert_sums_are_right(run_reference("MoECombine", size=size, world_size=2))


def test_dropped_tokens_yield_zeros_and_experts_named_twice_one_row():
    run = run_reference("MoECombine", trial=2)
    dropped = ~run.args[0]["routing_map"].any(0)
    assert dropped.any() and not run.outputs[0]["out"][dropped].any()
    run = run_reference("MoECombine", trial=3)
    rank = next(rank for rank, ax in enumerate(run.axes) if 0 < ax.P < 2 * ax.T)
    ids = run.args[rank]["selected_experts"]
    assert (ids[:, 0] == ids[:, 1]).any()


def test_slots_come_in_any_order():
    run = run_reference("MoECombine")
    ids = run.args[0]["selected_experts"]
    assert (ids[:, 0] < ids[:, 1]).any() and (ids[:, 0] > ids[:, 1]).any()


def test_partial_sums_pass_and_near_misses_do_not():
    run = run_reference("MoECombine", size={"T": 64, "H": 64, "K": 4, "E": 8}, world_size=2)
    exact = expected(run, 0)
    half = (exact * 0.3).bfloat16() + (exact * 0.7).bfloat16()  # one rounding more
    assert not run.wrong(0, "out", half).any()
    assert not run.wrong(0, "out", exact.bfloat16()).any()
    assert run.wrong(0, "out", (exact * 1.04).bfloat16()).any()
    swapped = exact.bfloat16()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert run.wrong(0, "out", swapped)[3:5].float().mean() > 0.9


def test_modes():
    problem = find_problem("MoECombine")
    trials = [make_axes(problem, trial=trial) for trial in range(4)]
    assert {axes[0]["group"] for axes in trials} == {None, ((0, 2), (1, 3))}
    assert 0 in {ax.T for ax in trials[1]} and len({ax.R for ax in trials[0]}) > 1
    large = make_axes(problem, size="large", trial=0)
    assert {(ax.K, ax.P) for ax in large} == {(4, 16384)} and len({ax.R for ax in large}) == 4
