"""EmbeddingLookup: oracle, empty and skewed lists, the order of the rows."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference, same

NAME = "EmbeddingLookup"


def grouped_rows(run, rank):
    """The rows that `rank` asks for, from a table in one piece, by a stable sort of the ids' owners."""
    table = torch.cat([args["local_shard"] for args in run.args])
    ids = run.args[rank]["indices"].tolist()
    owners = [next(s for s in range(len(run.args)) if i < (s + 1) * run.axes[rank].Vs) for i in ids]
    order = [position for owner in range(len(run.args)) for position, mine in enumerate(owners) if mine == owner]
    rows = [table[ids[position]] for position in order]
    return torch.stack(rows) if rows else table[:0]


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial", "dtype"),
    [
        (1, "robust", 1, None),
        (2, "robust", 3, None),
        (4, "robust", 0, "float32"),
        (4, "robust", 1, None),
        (4, "robust", 2, "float16"),
        (8, "robust", 3, None),
        (2, "published", 0, None),
        (4, "published", 1, None),
    ],
)
def test_rows_come_grouped_by_owner(world_size, protocol, trial, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        assert outputs["out"].is_contiguous()
        assert same(outputs["out"], grouped_rows(run, rank))


def test_only_one_asks_and_only_one_other_serves():
    table = torch.arange(32, dtype=torch.bfloat16).reshape(4, 4, 2)
    ids = [[], [14, 12, 14], [], []]
    args = [{"indices": torch.tensor(i, dtype=torch.int64), "local_shard": table[r]} for r, i in enumerate(ids)]
    run = run_reference(NAME, size={"Vs": 4, "E": 2, "L": 3, "lengths": (0, 3, 0, 0)}, args=args)
    assert run.outputs[1]["out"].tolist() == [[28, 29], [24, 25], [28, 29]]
    assert [len(outputs["out"]) for outputs in run.outputs] == [0, 3, 0, 0]


def test_the_order_of_the_ids_and_other_orders_are_refused():
    run = run_reference(NAME)
    table = torch.cat([args["local_shard"] for args in run.args])
    ids = run.args[0]["indices"]
    for order in (ids, ids.sort().values, ids.sort(descending=True).values):
        assert run.wrong(0, "out", table[order]).any()


def test_laws_and_lengths():
    problem = find_problem(NAME)
    trials = [make_axes(problem, trial=trial) for trial in range(4)]
    assert [axes[0]["law"] for axes in trials] == ["uniform", "zipf", "one owner", "uniform"]
    for axes in trials[2:]:
        lengths = [ax.L for ax in axes]
        assert 0 in lengths and len(set(lengths)) > 1 and max(lengths) <= 40
    assert make_axes(problem, trial=2, timed=True)[0]["law"] == "uniform"
    ids = torch.cat([args["indices"] for args in run_reference(NAME, trial=2).args])
    assert len((ids // 32).unique()) == 1 and len(ids.unique()) > 1
    hot = torch.cat([args["indices"] for args in run_reference(NAME, trial=1).args]).bincount()
    assert hot.max() > 4 * hot.float().mean()
