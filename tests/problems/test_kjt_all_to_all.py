"""KJTAllToAll against bags taken apart and put together one by one."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference


def bags(run: Run, rank: int, name: str) -> list[list[list[float]]]:
    """A source's bags: [feature][sample] -> contents."""
    ax, args = run.axes[rank], run.args[rank]
    strides = ax["stride_per_key"] or (ax.batch_size,) * sum(ax["key_splits"])
    lengths, contents = iter(args["lengths"].tolist()), iter(args[name].tolist())
    return [[[next(contents) for _ in range(next(lengths))] for _ in range(count)] for count in strides]


def source_order(world_size: int, stagger: int) -> list[int]:
    """Ranks as node blocks interleave: 0, 2, 1, 3 for 4 ranks in 2 blocks."""
    block = world_size // stagger
    return [rank for first in range(block) for rank in range(first, world_size, block)]


def oracle(run: Run, rank: int) -> dict[str, torch.Tensor]:
    """What one rank receives, as lists of numbers."""
    ax = run.axes[rank]
    first = sum(ax["key_splits"][:rank])
    owned = range(first, first + ax["key_splits"][rank])
    order = source_order(ax.W, ax.stagger)
    out = {}
    for name in ("values", "weights") if ax["weighted"] else ("values",):
        sources = [bags(run, q, name) for q in range(ax.W)]
        received = [bag for f in owned for q in order for bag in sources[q][f]]
        out[f"{name}_out"] = torch.tensor([x for bag in received for x in bag], dtype=run.args[rank][name].dtype)
        out["lengths_out"] = torch.tensor([len(bag) for bag in received], dtype=torch.int64)
    if ax["variable"]:
        counts = [[run.axes[q]["stride_per_key"][f] for q in order] for f in owned]
        out["stride_per_key_per_rank"] = torch.tensor(counts, dtype=torch.int64).reshape(len(owned), ax.W)
    else:
        batches = [other.batch_size for other in run.axes]
        out |= {"stride": torch.tensor(sum(batches)), "stride_per_rank": torch.tensor(batches)}
    return out


def assert_exact(run: Run) -> None:
    for rank, outputs in enumerate(run.outputs):
        expected = oracle(run, rank)
        assert outputs.keys() == expected.keys()
        for leaf, value in expected.items():
            assert torch.equal(outputs[leaf], value), (rank, leaf)


@pytest.mark.parametrize(("world_size", "trial"), [*((4, trial) for trial in range(6)), (2, 2), (1, 0), (1, 2)])
def test_every_mode_matches_one_process(world_size: int, trial: int) -> None:
    assert_exact(run_reference("KJTAllToAll", world_size=world_size, trial=trial))


def test_no_samples_anywhere() -> None:
    run = run_reference("KJTAllToAll", world_size=2, size={"B": 0}, protocol="published")
    assert_exact(run)
    assert run.outputs[1]["lengths_out"].numel() == 0


def test_one_swapped_id_and_one_part_in_a_million_are_refused() -> None:
    run = run_reference("KJTAllToAll", world_size=2)
    values = run.outputs[0]["values_out"]
    assert run.wrong(0, "values_out", values + (torch.arange(len(values)) == 3)).sum() == 1
    assert run.wrong(0, "weights_out", run.outputs[0]["weights_out"] * (1 + 2**-20)).any()
    assert not run.wrong(0, "values_out").any()


def test_ids_cut_to_half_of_their_bits_are_refused_in_timed_calls() -> None:
    run = run_reference("KJTAllToAll", world_size=2, timed=True)
    for rank, outputs in enumerate(run.outputs):
        for cut in (outputs["values_out"].int().long(), outputs["values_out"] & 2**32 - 1):
            assert run.wrong(rank, "values_out", cut).float().mean() > 0.4


def test_trials_cover_every_mode() -> None:
    problem = find_problem("KJTAllToAll")
    trials = [make_axes(problem, size="published", trial=trial) for trial in range(6)]
    assert any(len({ax.batch_size for ax in axes}) > 1 for axes in trials)
    assert any(0 in axes[0]["key_splits"] and not axes[0]["variable"] for axes in trials)
    assert {(a[0]["variable"], a[0]["weighted"]) for a in trials} == {(v, w) for v in (0, 1) for w in (0, 1)}
    assert {(a[0]["variable"], a[0].stagger) for a in trials} == {(v, s) for v in (0, 1) for s in (1, 2)}
    assert {axes[0]["pg"] for axes in trials} == {None, ((0, 1, 2, 3),)}
    large = [make_axes(problem, size="large", trial=trial) for trial in range(6)]
    assert all({ax.batch_size for ax in axes} == {16384} for axes in large)
    timed = make_axes(problem, size="published", trial=2, timed=True)[0]
    assert (timed["variable"], timed["weighted"], timed.stagger, timed.low) == (False, False, 1, 5)


def test_features_per_rank() -> None:
    problem = find_problem("KJTAllToAll")
    splits = {W: problem.axes(size="large", world_size=W, rank=0)["key_splits"] for W in (1, 2, 4, 8)}
    assert splits == {1: (26,), 2: (13, 13), 4: (7, 7, 6, 6), 8: (4, 4, 3, 3, 3, 3, 3, 3)}
    assert problem.axes(size="tiny", world_size=8, rank=0)["key_splits"] == (1, 2, 3, 1, 2, 3, 1, 2)
    with pytest.raises(SizeError, match="stagger=3 must divide W=4"):
        problem.axes(size={"stagger": 3}, world_size=4, rank=0)


def test_published_bags_hold_5_to_20_ids() -> None:
    run = run_reference("KJTAllToAll", world_size=2, size="published", protocol="published")
    lengths = run.args[1]["lengths"]
    assert (int(lengths.min()), int(lengths.max())) == (5, 20)
    assert run.args[0]["values"].numel() != run.args[1]["values"].numel()
    assert_exact(run)
