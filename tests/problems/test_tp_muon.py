"""TPMuon against the polynomial of the singular values of the whole matrix, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from pkb_gym.problems.tensor_parallel.tp_muon.reference import solution
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

# Written out once more: the reference's table is under test too.
TABLES = {
    "simple": "3.4445 -4.7750 2.0315",
    "quintic": "4.0848 -6.8946 2.9270 3.9505 -6.3029 2.6377 3.7418 -5.5913 2.3037 2.8769 -3.1427 1.2046 "
    "2.8366 -3.0525 1.2012",
    "polar_express": "8.2051 -22.9019 16.4607 4.0664 -2.8612 0.5184 3.9096 -2.8234 0.5250 3.2856 -2.4647 0.5074 "
    "2.2779 -1.6447 0.4162 1.8726 -1.2307 0.3585 1.8564 -1.2132 0.3568 1.8750 -1.2500 0.3750",
    "aol": "4.0098 -7.0585 2.4635 3.4585 -5.5479 2.5959 2.7573 -3.2939 1.4254 2.7215 -3.0494 1.3169",
}


def oracle(run: Run) -> list[torch.Tensor]:
    """Each step maps the singular values by a s + b s^3 + c s^5 and leaves the singular vectors."""
    shards: list[torch.Tensor] = []
    for ax in run.axes:
        ranks = next((part for part in ax["group"] or () if ax.r in part), range(ax.W))
        columns = [run.args[r]["x"] if ax.partition_dim == 1 else run.args[r]["x"].T for r in ranks]
        U, s, Vh = torch.linalg.svd(torch.cat([c.double() for c in columns], 1), full_matrices=False)
        s = s / s.norm()
        table = torch.tensor([float(x) for x in TABLES[ax["coefficient_type"]].split()]).double().view(-1, 3)
        for step in range(ax.steps):
            a, b, c = table[step % len(table)]
            s = a * s + b * s**3 + c * s**5
        own = ((U * s) @ Vh).split([c.shape[1] for c in columns], 1)[list(ranks).index(ax.r)]
        shards.append(own if ax.partition_dim == 1 else own.T)
    return shards


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial", "dtype"),
    [(w, "robust", t, None) for w, t in ((1, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (8, 3))]
    + [(4, "robust", 1, "float32"), (2, "robust", 4, "float16"), (2, "published", 0, None), (4, "published", 1, None)],
)
def test_matches_singular_values(world_size, protocol, trial, dtype):
    run = run_reference("TPMuon", world_size=world_size, protocol=protocol, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "y", expected.to(run.outputs[rank]["y"].dtype)).any()


def test_one_gram_matrix_is_enough():
    """All iterates commute, so that the Gram matrix can be iterated alone."""
    for trial in range(1, 5):
        run = run_reference("TPMuon", world_size=1, trial=trial)
        ax, x = run.axes[0], run.args[0]["x"].float()
        X = (x if ax.partition_dim == 1 else x.T) / x.norm()
        G, Q = X @ X.T, torch.eye(ax.m)
        table = torch.tensor([float(x) for x in TABLES[ax["coefficient_type"]].split()]).view(-1, 3)
        for step in range(ax.steps):
            a, b, c = table[step % len(table)]
            P = a * torch.eye(ax.m) + b * G + c * G @ G
            G, Q = P @ G @ P, P @ Q
        y = Q @ X if ax.partition_dim == 1 else (Q @ X).T
        assert not run.wrong(0, "y", y.bfloat16()).any()


@pytest.mark.parametrize("trial", range(3))
def test_in_timing_the_first_iteration_is_more_than_a_multiplication(trial):
    run = run_reference("TPMuon", size={"m": 256, "n": 256, "n_r": None}, world_size=1, trial=trial, timed=True)
    x, (a, *_) = run.args[0]["x"].float(), map(float, TABLES["quintic"].split()[:3])
    X = a * x / x.norm()
    for b, c, d in torch.tensor([float(x) for x in TABLES["quintic"].split()]).view(-1, 3)[1:]:
        gram = X @ X.T
        X = b * X + (c * gram + d * gram @ gram) @ X
    assert run.wrong(0, "y", X.bfloat16()).float().mean() > 0.5


@pytest.mark.parametrize("trial", [2, 3])
@pytest.mark.parametrize("place", range(9))
def test_no_coefficient_of_the_first_iterations_can_be_left_out(trial, place):
    """Of noise alone, matrices as large as those at size published came out right with others."""
    run = run_reference("TPMuon", size={"m": 256, "n": 256, "n_r": None}, world_size=1, trial=trial)
    ax, x = run.axes[0], run.args[0]["x"].float()
    table = torch.tensor([float(number) for number in TABLES[ax["coefficient_type"]].split()])
    table[place] = 0
    X = (x if ax.partition_dim == 1 else x.T) / x.norm()
    for a, b, c in table.view(-1, 3):
        gram = X @ X.T
        X = a * X + (b * gram + c * gram @ gram) @ X
    assert run.wrong(0, "y", (X if ax.partition_dim == 1 else X.T).bfloat16()).any()


def test_trials_cover_tables_and_dimensions():
    problem = find_problem("TPMuon")
    axes = [make_axes(problem, trial=trial)[3] for trial in range(5)]
    assert {ax["coefficient_type"] for ax in axes} == set(TABLES)
    assert {ax["partition_dim"] for ax in axes} == {0, 1}
    assert {ax["group"] for ax in axes} == {None, ((0, 1), (2, 3)), ((0, 1, 2, 3),)}
    assert axes[3]["shard"] == (4, 32)  # fewer columns than rows
    timed = make_axes(problem, size="published", trial=2, timed=True)[0]
    assert (timed["coefficient_type"], timed.steps, timed["shard"]) == ("quintic", 5, (512, 128))
    assert make_axes(problem, size="large", world_size=8)[0].n_r == 1792


def test_no_steps_and_zeros():
    size = {"m": 2, "n": 2, "steps": 0}
    args = [{"x": torch.tensor([[3.0], [0.0]]).bfloat16()}, {"x": torch.tensor([[0.0], [4.0]]).bfloat16()}]
    run = run_reference("TPMuon", world_size=2, size=size, protocol="published", args=args)
    assert same(run.outputs[0]["y"], torch.tensor([[0.6], [0.0]]).bfloat16())
    args = [{"x": torch.zeros(2, 1).bfloat16()} for _ in range(2)]
    run = run_reference("TPMuon", world_size=2, size=size | {"steps": 5}, protocol="published", args=args)
    assert not any(outputs["y"].any() for outputs in run.outputs)


def test_what_does_not_fit_is_refused():
    x = torch.zeros(2, 2)
    for bad in ((x[0],), (x, 5, "cubic"), (x, 4), (x, 5, "quintic", 2)):
        with pytest.raises(AssertionError):
            solution(*bad)
    for size in ({"coefficient_type": "cubic"}, {"steps": 4}, {"partition_dim": 2}):
        with pytest.raises(SizeError, match="TPMuon"):
            find_problem("TPMuon").axes(size=size, world_size=2, rank=0)
