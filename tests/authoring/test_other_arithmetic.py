"""Another arithmetic is as right as torch's own, differs from it, and leaves alone what is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from pkb_gym.authoring import other_sums_over_ranks
from pkb_gym.authoring.other_arithmetic import OtherArithmetic

SEEDS = range(30)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def half(*shape: int) -> torch.Tensor:
    return normal(*shape, dtype=torch.bfloat16)


ROUNDED: dict[str, Callable[[], torch.Tensor]] = {
    "sum": lambda: normal(7, 300).sum(1),
    "sum of all": lambda: normal(70, 90).sum(),
    "mean": lambda: normal(7, 300).mean(-1, keepdim=True),
    "norm": lambda: torch.linalg.vector_norm(normal(5, 300), dim=1),
    "cumsum": lambda: half(4, 200).softmax(1).cumsum(1),
    "matrix product": lambda: normal(5, 300) @ normal(300, 4),
    "16-bit product": lambda: half(50, 300) @ half(300, 40),
    "batched product": lambda: normal(3, 5, 300) @ normal(3, 300, 4),
    "matrix times vector": lambda: normal(50, 300) @ normal(300),
    "linear layer": lambda: F.linear(normal(5, 300), normal(4, 300), normal(4)),
    "product added in place": lambda: normal(3, 5, 4).baddbmm_(normal(3, 5, 300), normal(3, 300, 4), beta=0.5),
    "convolution": lambda: F.conv2d(normal(1, 40, 9, 9), normal(3, 40, 3, 3), normal(3)),
    "fft": lambda: torch.fft.rfft(normal(3, 200)).real,
    "softmax": lambda: normal(5, 300).softmax(1),
    "log softmax": lambda: normal(5, 300).log_softmax(1),
    "logsumexp": lambda: normal(5, 300).logsumexp(1),
    "exp": lambda: normal(300).exp(),
    "exp in place": lambda: normal(300).exp_(),
    "quotient": lambda: normal(300) / normal(1, 300)[0],
    "rsqrt": lambda: normal(300).square().rsqrt(),
    "16-bit sigmoid": lambda: half(20_000).sigmoid(),
    "16-bit product with a number": lambda: half(300) * torch.tensor(1 / 3),
    "16-bit sum with a factor": lambda: half(300).add_(half(1, 300)[0], alpha=0.3),
    "product and sum": lambda: normal(300) * normal(1, 300)[0] + normal(1, 1, 300)[0, 0],
    "product and sum in one": lambda: half(300).addcmul_(half(300), half(300), value=0.3),
    "index_add": lambda: half(3, 5).index_add_(0, torch.arange(90) % 3, half(90, 5)),
    "scatter_add": lambda: half(3, 5).scatter_add_(0, (torch.arange(90) % 3)[:, None].expand(-1, 5), half(90, 5)),
    "attention": lambda: F.scaled_dot_product_attention(half(1, 2, 9, 8), half(1, 2, 70, 8), half(1, 2, 70, 8)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_results_differ_by_roundings(name: str) -> None:
    expected = ROUNDED[name]()
    results = []
    for seed in SEEDS:
        with OtherArithmetic(seed, narrow_parts=True):
            results.append(ROUNDED[name]())
    eps = torch.finfo(expected.dtype).eps
    for result in results:
        assert result.dtype == expected.dtype and result.shape == expected.shape
        assert (result.double() - expected.double()).norm() <= 8 * eps * expected.double().norm()
    assert any(not torch.equal(result, expected) for result in results), "it is the same arithmetic"


def test_equal_seeds_compute_equally() -> None:
    for _ in range(2):
        with OtherArithmetic(3):
            results = [make() for make in ROUNDED.values()]
        with OtherArithmetic(3):
            assert all(torch.equal(make(), result) for make, result in zip(ROUNDED.values(), results, strict=True))


def test_exact_results_stay() -> None:
    numbers = torch.arange(1.0, 40.0)
    for seed in SEEDS:
        with OtherArithmetic(seed):
            assert torch.equal(6 * numbers / numbers, torch.full_like(numbers, 6))
            assert torch.zeros(3).exp().eq(1).all() and numbers.mul(30).sigmoid().le(1).all()
            assert numbers.sum() == 780 and numbers.int().sum() == 780 and numbers.square().sqrt().equal(numbers)
            assert torch.equal(numbers.bfloat16() * 0.5, (numbers * 0.5).bfloat16())


def test_functions_are_exact_where_they_have_to_be() -> None:
    numbers = normal(300)
    expected = numbers.exp(), numbers / 3
    with OtherArithmetic(1, fast_functions=False):
        assert torch.equal(numbers.exp(), expected[0]) and torch.equal(numbers / 3, expected[1])


def test_equal_elements_come_in_any_order_unless_a_sort_is_stable() -> None:
    numbers = torch.tensor([2.0, 1.0, 2.0, 0.0, 2.0, 1.0])
    tops, sorts, unstable = set(), set(), set()
    for seed in SEEDS:
        with OtherArithmetic(seed):
            values, indices = numbers.topk(2)
            assert values.tolist() == [2, 2] and numbers[indices].tolist() == [2, 2]
            tops.add(tuple(indices.tolist()))
            values, indices = numbers.sort(descending=True)
            assert values.tolist() == [2, 2, 2, 1, 1, 0] and torch.equal(numbers[indices], values)
            sorts.add(tuple(indices.tolist()))
            assert numbers.sort(stable=True).indices.tolist() == [3, 1, 5, 0, 2, 4]
        with OtherArithmetic(seed, unstable=True):
            unstable.add(tuple(numbers.sort(stable=True).indices.tolist()))
    assert min(len(tops), len(sorts), len(unstable)) > 1


def test_a_fused_sum_has_one_rounding() -> None:
    number = torch.tensor(1 + 2.0**-12)
    fused, afterwards = set(), set()
    for seed in SEEDS:
        with OtherArithmetic(seed):
            product = number * number
            fused.add((product - (1 + 2.0**-11)).item())
            product.add_(0.0)  # no longer what was multiplied
            afterwards.add((product - (1 + 2.0**-11)).item())
    assert fused == {0.0, 2.0**-24} and afterwards == {0.0}


def test_sums_over_ranks_come_in_other_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    addends = [half(64, 3) * 2.0**rank for rank in range(4)]
    exact = torch.stack(addends).double().sum(0)
    bound = 4 * 2.0**-8 * torch.stack(addends).double().abs().sum(0)
    monkeypatch.setattr(other_sums_over_ranks, "gathered", lambda tensor, group: addends)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 4)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 2)
    results = []
    for seed in SEEDS:
        sums, piece = other_sums_over_ranks.OtherSums(seed), half(16, 3)
        whole, kept, root = (addends[2].clone() for _ in range(3))
        assert sums.all_reduce(whole, async_op=True).wait() and sums.reduce(kept, dst=1) is None
        sums.reduce(root, dst=2)
        sums.reduce_scatter_tensor(piece, whole)
        assert torch.equal(kept, addends[2])
        for result, expected, room in (
            (whole, exact, bound),
            (root, exact, bound),
            (piece, exact[32:48], bound[32:48]),
        ):
            assert ((result.double() - expected).abs() <= room).all()
        results.append(whole)
    assert any(not torch.equal(result, results[0]) for result in results)


def test_other_collectives_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op, *_: called.append(op))
    sums = other_sums_over_ranks.OtherSums(0)
    sums.all_reduce(half(3), op=dist.ReduceOp.MAX)
    sums.all_reduce(torch.arange(3))
    assert called == [dist.ReduceOp.MAX, dist.ReduceOp.SUM] and sums.broadcast is dist.broadcast
