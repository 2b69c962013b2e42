"""CSOAttention against ordinary attention over the global keys, slot by slot, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "CSOAttention"


def oracle(run: Run, clip: int | None = None) -> list[torch.Tensor]:
    """Every rank's output, without rounding; `clip` replaces the number of keys per range."""
    ax = run.axes[0]
    W, R, m, c, D = ax.W, ax.R, ax.m, clip or ax.c, ax.D
    keys, values = [], []
    for i in range(R):
        for slot in range(c):
            row = run.args[slot // m]["key_value"][i * m + slot % m].double()
            keys.append(row[:, :D])
            values.append(row[:, D:])
    ranges = run.args[0]["k_ranges"].tolist()
    outs = [torch.empty(R * m, ax.Hq, D, dtype=torch.float64) for _ in range(W)]
    for i, (first, end) in enumerate(ranges):
        for h in range(ax.Hq):
            kv_head = h * ax.Hk // ax.Hq
            k, v = (torch.stack(rows[first:end])[:, kv_head] for rows in (keys, values))
            for s in range(W):
                q = run.args[s]["query"][i * m : (i + 1) * m, h].double()
                outs[s][i * m : (i + 1) * m, h] = (q @ k.T / D**0.5).softmax(-1) @ v
    return outs


@pytest.mark.parametrize(("world_size", "trial"), [(1, 3), (2, 1), (4, 0), (4, 2), (4, 3), (4, 4), (8, 5)])
def test_matches_whole_attention(world_size, trial):
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=2e-5, atol=2e-5)
        assert not run.wrong(rank, "out", expected.float()).any()


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_unrounded_intermediates_pass(world_size, protocol):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=1)
    run.assert_passes_own_checks()
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "out", expected.to(torch.bfloat16)).any()


def test_keys_of_the_padding_are_refused():
    run = run_reference(NAME, world_size=4, trial=0)
    assert all(run.wrong(r, "out", bad.to(torch.bfloat16)).any() for r, bad in enumerate(oracle(run, clip=32)))


def test_one_key_too_many_is_refused():
    run = run_reference(NAME, world_size=4, trial=0)
    ranges = run.args[0]["k_ranges"].clone()
    ranges[1, 1] -= 1
    run.args[0] = run.args[0] | {"k_ranges": ranges}
    assert run.wrong(2, "out", oracle(run)[2].to(torch.bfloat16)).any()


def test_trials_cover_clips_heads_and_ranges():
    problem = find_problem(NAME)
    axes = [make_axes(problem, trial=trial)[3] for trial in range(6)]
    assert {ax.R for ax in axes} == {1, 2, 3, 4}
    assert {ax.Hk for ax in axes} == {1, 2}
    assert {ax["clip_token_nums"] for ax in axes} >= {None, 0, 30}
    assert any(ax.W * ax.m - ax.c >= ax.m for ax in axes), "padding on more than the last rank"
    assert any(first < i * ax.c for ax in axes for i, (first, _) in enumerate(ax["ranges"]))
    assert any(first % ax.c for ax in axes for first, _ in ax["ranges"])
    for world_size in (1, 2, 4, 8):
        for trial in range(6):
            problem.cost(make_axes(problem, size="published", world_size=world_size, trial=trial)[0])
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed.n, timed.c, timed.m, timed["ranges"][3]) == (12152, 12150, 3038, (36450, 48600))
    eight = problem.axes(size="published", world_size=8, rank=0)
    assert (eight.Hq, eight.c, eight.m) == (48, 21600, 2700)


def test_own_blocks_instead_of_ranges_are_refused_where_all_slots_are_keys():
    size = {"padding": 0, "m": 16}
    run = run_reference(NAME, size=size, world_size=2)
    assert run.axes[0].clip_token_nums == run.axes[0].W * run.axes[0].m
    blocks = torch.tensor(make_axes(run.problem, size=size, world_size=2, timed=True)[0]["ranges"])
    for rank in range(2):
        run.args[rank] = run.args[rank] | {"k_ranges": blocks}
    assert all(run.wrong(rank, "out", own.bfloat16()).any() for rank, own in enumerate(oracle(run)))


def test_illegal_sizes():
    problem = find_problem(NAME)
    for size, message in (
        ({"Hk": 3, "Hq": 12}, "multiple or a divisor of W=4"),
        ({"Hq": 20, "Hk": 4, "R": 0, "ranges": ((0, 1),)}, "must be R=0 pairs"),
        ({"m": 8, "c": 33}, "c=33 must be in 1 .. W\\*m=32"),
        ({"clip": "none"}, "clip='none'"),
        ({"R": 1, "ranges": ((3, 3),)}, "first < end"),
    ):
        with pytest.raises(SizeError, match=message):
            problem.axes(size=size, world_size=4, rank=0)
