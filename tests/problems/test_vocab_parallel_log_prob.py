"""VocabParallelLogProb against other implementations in one process, right and nearly right ones."""

import math
from collections.abc import Callable
from itertools import accumulate

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "VocabParallelLogProb"
WIDE = {"B": 4, "S": 32, "V": 512, "top_k": 10, "top_p": 0.9}
Filter = Callable[[list[float], "int | None", "float | None"], list[bool]]


def nucleus(
    row: list[float], kept: list[bool], p: float, *, within: list[bool] | None = None, extra: int = 0
) -> list[bool]:
    """Keeps the likeliest tokens until their mass reaches p of that of `within`, then `extra` more, in float64."""
    best = max(row)
    weights = [math.exp(x - best) for x in row]
    total = math.fsum(w for w, counts in zip(weights, within or kept, strict=True) if counts)
    order = sorted((i for i, stays in enumerate(kept) if stays), key=lambda i: -row[i])
    mass = list(accumulate(weights[i] for i in order))
    number = 1 + next((n for n, enough in enumerate(mass) if enough >= p * total), len(order) - 1) + extra
    chosen = set(order[: max(1, number)])
    return [i in chosen for i in range(len(row))]


def top_k_of(row: list[float], k: int | None) -> list[bool]:
    """Entries at least as large as the k-th largest."""
    if k is None or k <= 0:
        return [True] * len(row)
    threshold = sorted(row, reverse=True)[min(k, len(row)) - 1]
    return [x >= threshold for x in row]


def right(row: list[float], k: int | None, p: float | None) -> list[bool]:
    kept = top_k_of(row, k)
    return kept if p is None or p >= 1 else nucleus(row, kept, p)


def ties_dropped(row: list[float], k: int | None, p: float | None) -> list[bool]:
    if k is None or k <= 0 or k >= len(row):
        return right(row, k, p)
    first = set(sorted(range(len(row)), key=lambda i: -row[i])[:k])
    kept = [i in first for i in range(len(row))]
    return kept if p is None or p >= 1 else nucleus(row, kept, p)


def mass_before_top_k(row: list[float], k: int | None, p: float | None) -> list[bool]:
    kept = top_k_of(row, k)
    return kept if p is None or p >= 1 else nucleus(row, kept, p, within=[True] * len(row))


def one_more(row: list[float], k: int | None, p: float | None) -> list[bool]:
    return nucleus(row, top_k_of(row, k), 1.0 if p is None else p, extra=1)


def one_fewer(row: list[float], k: int | None, p: float | None) -> list[bool]:
    return nucleus(row, top_k_of(row, k), 1.0 if p is None else p, extra=-1)


NEARLY_RIGHT: dict[str, tuple[Filter, set[str]]] = {
    # name -> filter, and the modes in which it differs from the right one
    "no top-p": (lambda row, k, p: right(row, k, None), {"both", "p"}),
    "no top-k": (lambda row, k, p: right(row, None, p), {"both", "k"}),
    "k + 1": (lambda row, k, p: right(row, k and k + 1, p), {"both", "k"}),
    "k - 1": (lambda row, k, p: right(row, k and k - 1, p), {"both", "k"}),
    "ties dropped": (ties_dropped, {"k"}),
    "mass before top-k": (mass_before_top_k, {"both"}),
    "one more": (one_more, {"both"}),  # with top-p alone a token at the border weighs less than rounding does
    "one fewer": (one_fewer, {"both"}),
}
MODES = {"both": (10, 0.9), "p": (None, 0.9), "k": (10, 1.0), "none": (None, 1.0)}


def answer(run: Run, keep: Filter) -> torch.Tensor:
    """Log-probabilities of all tokens with a filter, in float64."""
    ax = run.axes[0]
    logits = torch.cat([args["vocab_parallel_logits"] for args in run.args], dim=-1).double().view(ax.T, ax.V).tolist()
    found = []
    for row, target in zip(logits, run.args[0]["target"].flatten().tolist(), strict=True):
        kept = keep(row, ax["top_k"], ax["top_p"])
        total = math.log(math.fsum(math.exp(x) for x, stays in zip(row, kept, strict=True) if stays))
        found.append(row[target] - total if kept[target] else -math.inf)
    return torch.tensor(found).view(ax.B, ax.S)


def marked(run: Run, got: torch.Tensor) -> int:
    return int(run.wrong(0, "logprobs", got.float()).sum())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("mode", MODES)
def test_right_answers_pass_and_nearly_right_ones_do_not(mode: str, dtype: str) -> None:
    k, p = MODES[mode]
    run = run_reference(NAME, size=WIDE | {"top_k": k, "top_p": p}, world_size=2, dtype=dtype)
    run.assert_passes_own_checks()
    good = answer(run, right)
    assert marked(run, good) == 0
    for name, (keep, modes) in NEARLY_RIGHT.items():
        if mode in modes:
            assert marked(run, answer(run, keep)) > 0, name
    off = torch.where(good.isfinite(), good + 0.05, good)
    lost = torch.full_like(good, -math.inf)
    for bad in (off, lost, torch.zeros_like(good), torch.full_like(good, torch.nan)):
        assert marked(run, bad) > 0


@pytest.mark.parametrize("trial", range(8))
def test_trials_match_in_float32(trial: int) -> None:
    """Decisions in float32 are within rounding of exact ones, so the values agree, ties in top-p aside."""
    run = run_reference(NAME, world_size=2, trial=trial, dtype="float32")
    assert marked(run, answer(run, right)) == 0
    assert torch.equal(run.outputs[0]["logprobs"], run.outputs[1]["logprobs"])


def single(row: list[float], target: int, k: int | None, p: float) -> Run:
    """Two tokens with the same row of bfloat16 logits on two ranks."""
    half = len(row) // 2
    parts = [torch.tensor([row[:half]] * 2).view(1, 2, half), torch.tensor([row[half:]] * 2).view(1, 2, half)]
    args = [{"vocab_parallel_logits": part.bfloat16(), "target": torch.full((1, 2), target)} for part in parts]
    size = {"B": 1, "S": 2, "V": len(row), "top_k": k, "top_p": p}
    return run_reference(NAME, size=size, world_size=2, args=args)


def test_both_decisions_pass_at_the_border_and_only_there() -> None:
    """Probabilities 0.5, 0.4, 0.1: with p = 0.9 the last one lies on the border, with p = 0.8 it is cut."""
    row = [math.log(0.5), math.log(0.4), math.log(0.1), -20.0]
    border = single(row, 1, None, 0.9)
    values = {stays: math.log(0.4 / (1.0 if stays else 0.9)) for stays in (True, False)}
    for value, wrong in ((values[True], 0), (values[False], 0), (sum(values.values()) / 2, 2), (-math.inf, 2)):
        assert marked(border, torch.full((1, 2), value)) == wrong
    clear = single(row, 1, None, 0.8)
    assert [marked(clear, torch.full((1, 2), values[stays])) for stays in (True, False)] == [2, 0]
    itself = single(row, 2, None, 0.9)
    assert [marked(itself, torch.full((1, 2), x)) for x in (-math.inf, math.log(0.1), math.log(0.1 / 0.9))] == [0, 0, 2]


def test_either_of_equal_logits_may_be_left_out_but_top_k_keeps_both() -> None:
    row = [3.0, 1.0, 1.0, -9.0]
    weights = [math.exp(x) for x in row]
    p = (weights[0] + 0.5 * weights[1]) / sum(weights)
    tied = single(row, 2, None, p)
    kept = math.log(weights[2] / (weights[0] + weights[1]))
    assert [marked(tied, torch.full((1, 2), x)) for x in (kept, -math.inf, kept + 0.1)] == [0, 0, 2]
    both = single(row, 2, 2, 1.0)
    value = math.log(weights[2] / sum(weights[:3]))
    assert marked(both, torch.full((1, 2), value)) == 0
    assert marked(both, torch.full((1, 2), -math.inf)) == 2


def test_p_zero_keeps_the_largest_alone() -> None:
    assert single([1.0, 2.0, 6.0, 0.0], 2, None, 0.0).outputs[0]["logprobs"].tolist() == [[0.0, 0.0]]
    assert single([1.0, 2.0, 6.0, 0.0], 1, 3, -1.0).outputs[0]["logprobs"].tolist() == [[-math.inf] * 2]


def test_trials_cover_the_modes_and_tokens_are_kept_and_left_out() -> None:
    problem = find_problem(NAME)
    axes = [make_axes(problem, trial=trial)[0] for trial in range(8)]
    off = [(ax["top_k"] is None, ax["top_p"] == 1.0) for ax in axes[:4]]
    assert off == [(False, False), (True, False), (False, True), (True, True)]
    assert (axes[5]["top_p"], axes[6].top_k > 64, axes[7]["top_k"]) == (0.0, True, 0)
    assert make_axes(problem, trial=3, timed=True)[0]["top_k"] == 10
    finite = run_reference(NAME, world_size=2).outputs[0]["logprobs"].isfinite()
    assert finite.any()
    assert not finite.all()


def test_cost_and_sizes() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.memory_bytes, least.link_in_bytes, least.link_out_bytes) == (2240, 312, 312)
    with pytest.raises(SizeError, match="= 6 tokens must be a multiple of W=4"):
        problem.axes(size=WIDE | {"B": 2, "S": 3}, world_size=4, rank=0)
