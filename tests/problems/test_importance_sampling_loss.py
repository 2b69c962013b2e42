"""ImportanceSamplingLoss against float64 over the tokens of all ranks; clamps, ignored labels, the gradient."""

import math

import pytest
import torch

from pkb_gym.problems.data_parallel.importance_sampling_loss.reference import solution as reference
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "ImportanceSamplingLoss"


def tokens(args: dict[str, torch.Tensor], ignore_index: int) -> list[tuple[float, float, float] | None]:
    """(log-probability, clamped delta, advantage) of each token, None for ignored ones."""
    logits = args["hidden_states"].double() @ args["weight"].double().T
    found: list[tuple[float, float, float] | None] = []
    for row, label, old, advantage in zip(
        logits, args["labels"].tolist(), args["old_logprobs"].tolist(), args["advantages"].tolist(), strict=True
    ):
        logprob = float(row[label] - row.logsumexp(0)) if label != ignore_index else 0.0
        clamped = min(20.0, max(-20.0, logprob - old))
        found.append(None if label == ignore_index else (logprob, clamped, advantage))
    return found


def oracle(run: Run) -> list[dict[str, torch.Tensor]]:
    """Every rank's results; without any valid token the means are 0."""
    ranks = [tokens(args, ax["ignore_index"]) for ax, args in zip(run.axes, run.args, strict=True)]
    valid = [token for one in ranks for token in one if token is not None]
    ratios = [math.exp(delta) for _, delta, _ in valid]
    d = max(1, len(valid))
    metrics = [
        math.fsum(ratios) / d,
        min(ratios, default=math.inf),
        max(ratios, default=-math.inf),
        math.fsum(math.exp(delta) - delta - 1 for _, delta, _ in valid) / d,
        -math.fsum(logprob for logprob, _, _ in valid) / d,
    ]
    loss = -math.fsum(math.exp(delta) * advantage for _, delta, advantage in valid) / d
    return [
        {
            "loss": torch.tensor(loss),
            "per_token_logprobs": torch.tensor([0.0 if t is None else t[0] for t in one]),
            "per_token_loss": torch.tensor([0.0 if t is None else -math.exp(t[1]) * t[2] for t in one]),
            "metrics": torch.tensor(metrics),
        }
        for one in ranks
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 2), (4, 3), (2, 4), (1, 5), (2, 7)])
def test_matches_float64(world_size: int, trial: int, dtype: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, leaves in enumerate(oracle(run)):
        for leaf, expected in leaves.items():
            got = expected.to(run.outputs[rank][leaf].dtype)
            assert not run.wrong(rank, leaf, got).any(), (rank, leaf, got, run.outputs[rank][leaf])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_matches_float64(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", dtype="float32")
    run.assert_passes_own_checks()
    for rank, leaves in enumerate(oracle(run)):
        for leaf, expected in leaves.items():
            assert torch.allclose(run.outputs[rank][leaf], expected, rtol=1e-3, atol=1e-4), leaf


@pytest.mark.parametrize("trial", [0, 1])
def test_near_misses_are_refused(trial: int) -> None:
    run = run_reference(NAME, world_size=2, trial=trial)
    mine, other = run.outputs
    for leaf in ("loss", "metrics"):
        for wrong in (mine[leaf] * 0, mine[leaf] * 1.1):
            assert run.wrong(0, leaf, wrong).any(), leaf
    for leaf in ("per_token_logprobs", "per_token_loss"):
        one_off = mine[leaf].clone()
        one_off[3] += 1
        for wrong in (one_off, other[leaf], mine[leaf].roll(1), mine[leaf] * 0):
            assert run.wrong(0, leaf, wrong).any(), leaf
    alone = oracle(Run(run.problem, run.axes[:1], run.args[:1], run.outputs[:1]))[0]
    assert run.wrong(0, "loss", alone["loss"]) and run.wrong(0, "metrics", alone["metrics"]).any()


@pytest.mark.parametrize(("trial", "statistic", "reduced"), [(1, 2, max), (2, 1, min)])
@pytest.mark.parametrize("size", ["tiny", {"T": 512, "H": 64, "V": 512}])
def test_ignored_tokens_that_count_as_ratios_of_one_are_refused(trial, statistic, reduced, size) -> None:
    run = run_reference(NAME, size=size, world_size=2, trial=trial)
    metrics = run.outputs[0]["metrics"].clone()
    metrics[statistic] = reduced(1.0, float(metrics[statistic]))
    assert run.wrong(0, "metrics", metrics)[statistic]


def no_label(run: Run) -> list[dict[str, torch.Tensor]]:
    return [one | {"labels": torch.full_like(one["labels"], -100)} for one in run.args]


def test_a_rank_without_valid_tokens_and_none_at_all() -> None:
    run = run_reference(NAME, world_size=2)
    one = run_reference(NAME, world_size=2, args=[run.args[0], no_label(run)[1]])
    assert not one.wrong(1, "metrics", oracle(one)[1]["metrics"]).any()
    none = run_reference(NAME, world_size=2, args=no_label(run))
    assert none.outputs[0]["metrics"].tolist() == [0.0, math.inf, -math.inf, 0.0, 0.0]
    assert none.outputs[1]["loss"].item() == 0.0
    assert not none.wrong(0, "metrics", oracle(none)[0]["metrics"]).any()


def gradient_norm(hidden_states, weight, labels, old_logprobs, advantages, ignore_index):
    """The reference, with the norm of its gradient by the hidden states for a loss."""
    leaf = hidden_states.clone().requires_grad_()
    loss, *rest = reference(leaf, weight, labels, old_logprobs, advantages, ignore_index)
    loss.backward()
    return leaf.grad.norm(), *rest


def test_the_gradient_is_that_of_the_local_tokens() -> None:
    run = run_reference(NAME, world_size=2, dtype="float32", solution=gradient_norm)
    count = sum(int((args["labels"] != -100).sum()) for args in run.args)
    for args, outputs in zip(run.args, run.outputs, strict=True):
        hidden = args["hidden_states"].double().requires_grad_()
        logprobs = torch.log_softmax(hidden @ args["weight"].double().T, dim=-1)
        for row, token in zip(range(len(hidden)), tokens(args, -100), strict=True):
            if token is not None:
                _, delta, advantage = token
                (-logprobs[row, args["labels"][row]] * math.exp(delta) * advantage / count).backward(retain_graph=True)
        assert outputs["loss"].item() == pytest.approx(float(hidden.grad.norm()), rel=1e-4)


def test_trials_cover_the_modes() -> None:
    problem = find_problem(NAME)
    trials = [make_axes(problem, trial=trial)[0] for trial in range(6)]
    assert [ax["clamped"] for ax in trials] == ["none", "low", "high"] * 2
    assert {ax["common_weight"] for ax in trials} == {False, True}
    assert trials[1]["ignore_index"] != -100
    alone, nobody = (run_reference(NAME, world_size=2, trial=trial) for trial in (4, 7))
    valid = [[(args["labels"] >= 0).any().item() for args in run.args] for run in (alone, nobody)]
    assert sorted(valid[0]) == [False, True] and valid[1] == [False, False]
    assert nobody.outputs[0]["metrics"].tolist() == [0, math.inf, -math.inf, 0, 0]
    undefined = run_reference(NAME, world_size=2, trial=1).args[0]
    assert undefined["old_logprobs"].isnan().equal(undefined["labels"] < 0)
    low, high = (run_reference(NAME, world_size=2, trial=trial).outputs[0]["metrics"] for trial in (1, 2))
    assert low[1] < 3e-9 and high[2] > 4e8
    run = run_reference(NAME, world_size=4)
    ignored = [int((args["labels"] == -100).sum()) for args in run.args]
    assert len(set(ignored)) > 1 and all(3 <= count <= 10 for count in ignored)
    assert 0.5 < run.outputs[0]["metrics"][0] < 2
