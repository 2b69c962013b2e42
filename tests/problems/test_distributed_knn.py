"""DistributedKNN against a search through the whole pool, one similarity after the other; ties, empty ranks, cost."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.problem.inputs import TrialKey
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.problems.data_parallel.distributed_knn.problem import number_of_classes
from tests.problems.support import KEY, Run, find_problem, make_axes, run_reference

NAME = "DistributedKNN"


def oracle(run: Run, rank: int, *, last_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Similarities and labels of one rank's queries; equal similarities in the order of the pool, or against it."""
    ax, dtype = run.axes[rank], run.args[rank]["test_features_rank"].dtype
    sims, labels = [], []
    for query in run.args[rank]["test_features_rank"].double():
        pool = [
            (float((query * sample).sum().to(dtype)), int(label))
            for args in run.args
            for sample, label in zip(
                args["train_features_rank_T"].double().T, args["train_labels_rank"][0], strict=True
            )
        ]
        best = sorted(reversed(pool) if last_first else pool, key=lambda pair: -pair[0])[: ax.k]
        sims.append([sim for sim, _ in best])
        labels.append([label for _, label in best])
    return torch.tensor(sims, dtype=dtype).view(-1, ax.k), torch.tensor(labels).view(-1, ax.k)


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial", "dtype"), [(1, 0, "bfloat16"), (2, 1, "bfloat16"), (4, 2, "float32")])
def test_matches_a_search_of_the_pool(world_size: int, trial: int, dtype: str, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype=dtype)
    strict = Run(run.problem, run.axes, run.args, run.outputs)
    strict.assert_passes_own_checks()
    for rank in range(world_size):
        for last_first in (False, True):
            sims, labels = oracle(run, rank, last_first=last_first)
            assert not strict.wrong(rank, "sims", sims).any()
            assert not with_sims(strict, rank, sims).wrong(rank, "labels", labels).any()
        if dtype == "float32":
            assert torch.equal(run.outputs[rank]["labels"], labels)


def with_sims(run: Run, rank: int, sims: torch.Tensor) -> Run:
    """The run with one rank's similarities replaced, as those that come with its labels."""
    outputs = [dict(one) for one in run.outputs]
    outputs[rank]["sims"] = sims
    return Run(run.problem, run.axes, run.args, outputs)


def test_ties_may_be_broken_either_way_at_a_realistic_size() -> None:
    size = {"Q": 4, "F": 64, "k": 50, "samples_per_rank": 1024}
    run = run_reference(NAME, world_size=2, size=size, protocol="published")
    run = Run(run.problem, run.axes, run.args, run.outputs)
    sims, labels = oracle(run, 0, last_first=True)
    assert (labels != run.outputs[0]["labels"]).any()
    assert not with_sims(run, 0, sims).wrong(0, "labels", labels).any()


@pytest.mark.parametrize("trial", [0, 2])
def test_near_misses_are_refused(trial: int) -> None:
    run = run_reference(NAME, world_size=2, trial=trial)
    sims, labels = run.outputs[0]["sims"], run.outputs[0]["labels"]
    one_off, repeated = labels.clone(), labels.clone()
    one_off[1, 3] += 1
    repeated[:, 1] = repeated[:, 0]
    for wrong in (one_off, repeated, labels.roll(1, 0), labels.flip(1), torch.zeros_like(labels)):
        assert run.wrong(0, "labels", wrong).any()
    for wrong in (sims * 1.02, sims.roll(1, 0), sims.flip(1), torch.zeros_like(sims)):
        assert run.wrong(0, "sims", wrong).any()


@pytest.mark.parametrize("size", [{"samples_per_rank": 4096, "F": 32, "Q": 8, "k": 20}, "published"])
def test_most_results_are_of_other_classes(size: str | dict[str, int]) -> None:
    """At size large each class once had five times k samples: nobody had to look at those of the others."""
    problem = find_problem(NAME)
    axes = make_axes(problem, size=size, world_size=2, timed=True)
    key = TrialKey(KEY, 0, NAME, 0, 0, True)
    inputs = [make_inputs(problem, ax, key, "robust") for ax in axes]
    pool = torch.cat([train for _, train, _ in inputs], 1).float()
    labels = torch.cat([label[0] for _, _, label in inputs])
    nearest = labels[(inputs[0][0].float() @ pool).topk(axes[0].k, dim=1).indices]
    assert ((nearest == nearest[:, :1]).sum(1) <= axes[0].k / 2).all()


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_no_class_of_a_declared_size_holds_all_results(world_size: int) -> None:
    for size in ("tiny", "published", "large"):
        ax = make_axes(find_problem(NAME), size=size, world_size=world_size, timed=True)[0]
        assert ax.W * ax.n / number_of_classes(ax) <= ax.k / 4


def test_an_empty_rank_takes_part_and_k_is_bounded() -> None:
    run = run_reference(NAME, world_size=2, trial=1)
    assert 0 in [len(outputs["sims"]) for outputs in run.outputs]
    with pytest.raises(SizeError, match="k=65 must be at most the n=64 training samples"):
        find_problem(NAME).axes(size=dict(find_problem(NAME).sizes["tiny"]) | {"k": 65}, world_size=2, rank=0)


def test_sizes_modes_and_cost() -> None:
    problem = find_problem(NAME)
    assert [problem.axes(size="published", world_size=w, rank=0).n for w in (1, 2, 4, 8)] == [16384, 8192, 4096, 2048]
    trials = [make_axes(problem, trial=trial)[0] for trial in range(4)]
    assert trials[1]["group"] == ((0, 1, 2, 3),) and trials[2]["queries"] is not None
    assert make_axes(problem, trial=1, timed=True)[0].k == 10
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.matrix_flops, least.vector_flops, least.memory_bytes) == (402_653_184, 524_288, 3_267_072)
    assert (least.link_in_bytes, least.link_out_bytes) == (73_728 + 19_200, 24_576 + 19_200)
