"""VocabParallelLogProbChunkedBackward against the formula in float64, with right and nearly right kept sets."""

import math
from collections.abc import Callable

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "VocabParallelLogProbChunkedBackward"
WIDE = {"B": 4, "S": 16, "V": 256, "top_k": 10, "top_p": 0.9, "chunk_size": 3}
MODES = {"both": (10, 0.9), "p": (None, 0.9), "k": (10, 1.0), "none": (None, 1.0)}
Kept = Callable[[list[float], "int | None", "float | None"], list[int]]


def right(row: list[float], k: int | None, p: float | None, extra: int = 0) -> list[int]:
    """What is kept: the k largest and their equals, of these the likeliest until p is reached, and `extra` more."""
    kept = sorted(range(len(row)), key=lambda i: -row[i])
    if k is not None and k > 0:
        kept = [i for i in kept if row[i] >= row[kept[min(k, len(row)) - 1]]]
    if p is not None and p < 1:
        weights = [math.exp(row[i] - row[kept[0]]) for i in kept]
        number = 1
        while number < len(kept) and math.fsum(weights[:number]) < p * math.fsum(weights):
            number += 1
        kept = kept[: max(1, number + extra)]
    return kept


def gradient(run: Run, keep: Kept) -> torch.Tensor:
    """(T, V) float64."""
    ax = run.axes[0]
    logits = torch.cat([args["vocab_parallel_logits"] for args in run.args], dim=-1).double().view(ax.T, ax.V)
    grad = torch.zeros(ax.T, ax.V, dtype=torch.float64)
    targets, gammas = run.args[0]["target"].flatten().tolist(), run.args[0]["grad_output"].flatten().tolist()
    for n, row in enumerate(logits.tolist()):
        kept = keep(row, ax["top_k"], ax["top_p"])
        grad[n, kept] = -gammas[n] * logits[n, kept].softmax(0)
        if targets[n] in kept:
            grad[n, targets[n]] += gammas[n]
    return grad


def marked(run: Run, whole: torch.Tensor) -> int:
    ax = run.axes[0]
    parts = whole.float().view(ax.B, ax.S, ax.V).chunk(ax.W, dim=2)
    return sum(int(run.wrong(rank, "grad_logits", part).sum()) for rank, part in enumerate(parts))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("mode", MODES)
def test_right_answers_pass_and_nearly_right_ones_do_not(mode: str, dtype: str) -> None:
    k, p = MODES[mode]
    run = run_reference(NAME, size=WIDE | {"top_k": k, "top_p": p}, world_size=2, dtype=dtype)
    run.assert_passes_own_checks()
    good = gradient(run, right)
    assert marked(run, good) == 0
    wrong = {"scaled": good * 1.005, "zeros": good * 0, "negative": -good, "nan": good * torch.nan}
    if mode != "none":
        wrong["no filter"] = gradient(run, lambda row, k, p: right(row, None, None))
    if mode == "both":
        wrong["one more"] = gradient(run, lambda row, k, p: right(row, k, p, extra=1))
        wrong["one fewer"] = gradient(run, lambda row, k, p: right(row, k, p, extra=-1))
    smallest = good.clone()
    smallest[good.abs() < good.abs().amax(1, keepdim=True) / 50] = 0
    if mode in ("p", "none"):
        wrong["small ones dropped"] = smallest
    for name, answer in wrong.items():
        assert marked(run, answer) > 0, name


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 2), (2, 4), (3, 1), (4, 4), (5, 2), (6, 2)])
def test_trials_match_the_formula(trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype="float32")
    assert marked(run, gradient(run, right)) == 0


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_trials_match(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=2, dtype="float32")
    got = torch.cat([outputs["grad_logits"] for outputs in run.outputs], dim=2).flatten(0, 1)
    assert (got - gradient(run, right)).abs().max() < 1e-5


def single(row: list[float], target: int, p: float) -> Run:
    """Two tokens with the same row of logits on two ranks, incoming gradients 1 and -2."""
    half = len(row) // 2
    args = [
        {
            "vocab_parallel_logits": torch.tensor([part, part]).view(1, 2, half).bfloat16(),
            "target": torch.full((1, 2), target),
            "grad_output": torch.tensor([[1.0, -2.0]]).bfloat16(),
        }
        for part in (row[:half], row[half:])
    ]
    size = {"B": 1, "S": 2, "V": len(row), "top_k": None, "top_p": p, "chunk_size": 2}
    return run_reference(NAME, size=size, world_size=2, args=args)


def keeping(*kept: int) -> Kept:
    return lambda row, k, p: list(kept)


def test_both_decisions_pass_at_the_border_and_only_there() -> None:
    """Probabilities 0.5, 0.4, 0.1: with p = 0.9 the last one lies on the border, with p = 0.8 it is cut."""
    row = [math.log(0.5), -20.0, math.log(0.4), math.log(0.1)]
    for target in (0, 3):
        border, clear = single(row, target, 0.9), single(row, target, 0.8)
        kept, cut = (gradient(border, keeping(*some)) for some in ((0, 2, 3), (0, 2)))
        assert [marked(border, kept), marked(border, cut)] == [0, 0]
        assert marked(border, (kept + cut) / 2) > 0
        assert marked(border, gradient(border, keeping(0, 1, 2, 3))) > 0
        assert marked(border, gradient(border, keeping(0, 3))) > 0
        assert marked(clear, kept) > 0
        assert marked(clear, cut) == 0


def test_either_of_equal_logits_may_be_left_out() -> None:
    row = [3.0, 1.0, 1.0, -9.0]
    weights = [math.exp(x) for x in row]
    tied = single(row, 2, (weights[0] + 0.5 * weights[1]) / sum(weights))
    for kept, wrong in (((0, 1), False), ((0, 2), False), ((0, 1, 2), True), ((0,), True), ((0, 1, 2, 3), True)):
        assert (marked(tied, gradient(tied, keeping(*kept))) > 0) == wrong, kept


def test_p_zero_keeps_the_largest_alone() -> None:
    run = single([1.0, 2.0, 6.0, 0.0], 0, 0.0)
    assert run.outputs[0]["grad_logits"].abs().sum() == 0  # the target was left out
    assert run.outputs[1]["grad_logits"].flatten().tolist() == [-1, 0, 2, 0]


def test_cost_and_trials() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.memory_bytes, least.link_in_bytes, least.link_out_bytes) == (6304, 336, 336)
    assert problem.cost(make_axes(problem, size="published", trial=3)[0]).link_in_bytes == 96
    a, b = (run_reference(NAME, world_size=2, trial=trial).args for trial in (0, 1))
    assert torch.equal(a[0]["grad_output"], a[1]["grad_output"])
    assert not torch.equal(a[0]["grad_output"], b[0]["grad_output"])
