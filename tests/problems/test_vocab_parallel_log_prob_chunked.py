"""VocabParallelLogProbChunked: row by row in float64, and its chunks."""

import math

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "VocabParallelLogProbChunked"


def log_prob(row: list[float], target: int, k: int | None, p: float | None) -> float:
    """One token's filtered log-probability: the k largest and their equals, then the likeliest until p is reached."""
    kept = sorted(range(len(row)), key=lambda i: -row[i])
    if k is not None and k > 0:
        threshold = row[kept[min(k, len(row)) - 1]]
        kept = [i for i in kept if row[i] >= threshold]
    if p is not None and p < 1:
        weights = [math.exp(row[i] - row[kept[0]]) for i in kept]
        number = 1
        while number < len(kept) and math.fsum(weights[:number]) < p * math.fsum(weights):
            number += 1
        kept = kept[:number]
    return row[target] - math.log(math.fsum(math.exp(row[i]) for i in kept)) if target in kept else -math.inf


def expected(run: Run) -> torch.Tensor:
    ax = run.axes[0]
    rows = torch.cat([args["vocab_parallel_logits"] for args in run.args], dim=-1).double().view(ax.T, ax.V).tolist()
    targets = run.args[0]["target"].flatten().tolist()
    found = [log_prob(row, target, ax["top_k"], ax["top_p"]) for row, target in zip(rows, targets, strict=True)]
    return torch.tensor(found).view(ax.B, ax.S)


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 2), (3, 1), (4, 4), (5, 2), (6, 4)])
def test_trials_match_row_by_row(trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype="float32")
    want = expected(run)
    for rank, outputs in enumerate(run.outputs):
        assert run.wrong(rank, "logprobs", want).sum() == 0
        assert torch.equal(outputs["logprobs"], run.outputs[0]["logprobs"])
        moved = torch.where(want.isfinite(), want - 0.05, 0.05)  # 0 is right for one of two that are the largest
        assert run.wrong(rank, "logprobs", moved).all()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=1, dtype="float32")
    assert (run.outputs[0]["logprobs"] - expected(run)).abs().max() < 1e-4


def test_chunks_do_not_change_the_values() -> None:
    size = {"B": 2, "S": 12, "V": 64, "top_k": 10, "top_p": 0.9}
    runs = [run_reference(NAME, size=size | {"chunk_size": n}, world_size=2) for n in (0, 5, 12, 40)]
    assert runs[0].axes[0]["chunk_size"] == 0  # counts as 1
    assert all(torch.equal(run.outputs[1]["logprobs"], runs[0].outputs[1]["logprobs"]) for run in runs)


def test_cost_chunks_and_sizes() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.memory_bytes, least.link_in_bytes, least.link_out_bytes) == (2240, 312, 312)
    published = [problem.axes(size="published", world_size=W, rank=0).chunk_size for W in (1, 2, 4, 8)]
    assert published == [2, 2, 4, 8]
    trials = [make_axes(problem, world_size=2, trial=trial)[0] for trial in range(12)]
    assert any(ax.T % (ax.B * max(1, ax.chunk_size)) for ax in trials)
    assert any(ax.chunk_size == 0 for ax in trials)
    assert len({ax.chunk_size for ax in trials}) > 4
    assert make_axes(problem, trial=1, timed=True)[0].chunk_size == 8
    with pytest.raises(SizeError, match=r"B\*chunk_size = 2\*3 = 6 tokens must be a multiple of W=4"):
        problem.axes(size={"chunk_size": 3}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="= 10 tokens must be a multiple of W=4"):
        problem.axes(size={"S": 5, "chunk_size": 2}, world_size=4, rank=0)
