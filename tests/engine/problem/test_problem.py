"""How a declaration's `vary` and `derive` make the axes of one trial and rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from pkb_gym.engine.errors import DeclarationError, SizeError
from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    LeastWork,
    Output,
    Problem,
    Tensor,
    TensorList,
    Trials,
    divide,
)
from pkb_gym.engine.problem.inputs import TrialKey
from pkb_gym.engine.problem.signature import cpp_signature

PROBLEM = Problem(
    name="Toy",
    upstream="0_toy",
    category="other",
    summary="A toy.",
    dtypes=("bfloat16", "float32"),
    sizes={name: {"M": 8} for name in ("tiny", "published", "large")},
    args=(Tensor("x", ("M",)),),
    outputs=(Output("out", ("M",)),),
    robust=Trials(lambda make: (make.normal("x"),)),
    published=Trials(lambda make: (make.normal("x"),)),
    cost=lambda ax: Cost(vector_flops=ax.M, memory_bytes=2 * ax.M),
    least_work=LeastWork("Everything is read.", work=lambda ax: Cost(memory_bytes=ax.M)),
)


def axes(problem: Problem, rank: int = 1, size: str | dict[str, AxisValue] = "tiny", **options) -> Axes:
    return problem.axes(size=size, world_size=4, rank=rank, **options)


def derived(derive: Callable[[Axes], Mapping[str, AxisValue]]) -> Problem:
    return replace(PROBLEM, derive=derive)


def varied(vary: Callable[[Axes, Draw], Mapping[str, AxisValue]]) -> Problem:
    return replace(PROBLEM, robust=replace(PROBLEM.robust, vary=vary))


def draw(trial: int = 0) -> Draw:
    return Draw(TrialKey(b"key", 0, "Toy", 0, trial))


def test_world_size_and_rank_are_added():
    assert axes(PROBLEM) == Axes({"M": 8, "W": 4, "r": 1}, "bfloat16")
    assert axes(PROBLEM).problem == "Toy"


def test_what_the_roofline_needs_may_be_left_out():
    bare = Problem(
        **{
            name: getattr(PROBLEM, name)
            for name in ("name", "category", "summary", "dtypes", "sizes", "args", "outputs", "robust")
        }
    )
    assert (bare.undeclared, bare.protocols) == (("cost", "least_work"), ("robust",))
    assert (PROBLEM.undeclared, PROBLEM.protocols) == ((), ("robust", "published"))
    with pytest.raises(DeclarationError, match="no protocol 'published': the problem declares no `published`"):
        bare.trials("published")
    with pytest.raises(DeclarationError, match="declares no `cost`"):
        bare.cost(axes(bare))


@pytest.mark.parametrize(
    "derive",
    [
        lambda ax: {"Ml": ax.divide("M", by="W")},
        lambda axes: axes | {"Ml": divide(axes, "M", by="W")},
    ],
    ids=["additions alone", "all axes and additions"],
)
def test_derive_adds_to_the_axes(derive):
    assert axes(derived(derive)).entries == {"M": 8, "W": 4, "r": 1, "Ml": 2}


def test_derive_replaces_axes():
    assert axes(derived(lambda ax: {"M": ax.M + ax.r})).M == 9


def test_derive_sees_the_dtype():
    problem = derived(lambda ax: {"nbytes": ax.M * ax.itemsize})
    assert [axes(problem, dtype=dtype).nbytes for dtype in problem.dtypes] == [16, 32]


def test_vary_changes_the_axes_of_a_trial_before_derive():
    problem = varied(lambda ax, draw: {"M": draw.randint(4, ax.M * ax.itemsize), "trial": draw.trial})
    problem = replace(problem, derive=lambda ax: {"twice": 2 * ax.M})
    for trial in range(3):
        ranks = [axes(problem, rank, draw=draw(trial)) for rank in range(4)]
        assert len({ax.M for ax in ranks}) == 1, "draws are equal on all ranks"
        assert draw(trial).randint(4, 16) == ranks[0].M
        assert (ranks[0].trial, ranks[0].twice) == (trial, 2 * ranks[0].M)
    assert axes(problem).M == 8, "without a draw axes are as the size names them"


def test_vary_that_returns_nothing_changes_nothing():
    assert axes(varied(lambda ax, draw: {}), draw=draw()) == axes(PROBLEM)


def test_vary_knows_no_rank():
    with pytest.raises(AttributeError, match="no axis 'r'; there are M, W"):
        axes(varied(lambda ax, draw: {"M": ax.r}), draw=draw())


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (derived(lambda ax: {"Ml": ax.divide("M", by="W")}), "axis M=10 must be a multiple of W=4; nearest 8 and 12"),
        (
            varied(lambda ax, draw: {"M": ax.rank_axis("M")} if ax.M == 10 else {}),
            "axis M=10 must name a rank, -4 .. 3",
        ),
    ],
)
def test_errors_name_the_problem_once(problem, message):
    """Those of `vary` did not name it."""
    with pytest.raises(SizeError) as caught:
        axes(problem, size={"M": 10}, draw=draw())
    assert str(caught.value) == f"Toy: {message}"


def raise_size_error(ax: Axes) -> dict[str, int]:
    raise SizeError(f"axis M={ax.M} is odd")


def test_errors_of_the_authors_own_name_the_problem():
    with pytest.raises(SizeError, match=r"^Toy: axis M=8 is odd$"):
        derived(raise_size_error)


def test_a_list_that_holds_none_says_so_in_the_signature():
    """A kernel of `Array<Tensor>` would follow a null pointer."""
    holds_none = {name: axes | {"shapes": ((4,), None)} for name, axes in PROBLEM.sizes.items()}
    with pytest.raises(DeclarationError, match=r"^Toy: xs holds None, which needs may_hold_none=True$"):
        replace(PROBLEM, sizes=holds_none, args=(*PROBLEM.args, TensorList("xs", "shapes")))
    declared = replace(PROBLEM, sizes=holds_none, args=(*PROBLEM.args, TensorList("xs", "shapes", may_hold_none=True)))
    assert "tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Tensor>> xs" in cpp_signature(declared)


def test_a_list_needs_shapes_when_it_is_declared():
    with pytest.raises(SizeError, match=r"^Toy: axis M=8 must be a tuple of shapes and None$"):
        replace(PROBLEM, args=(TensorList("x", "M"),))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "int32"])
def test_dtypes_that_no_problem_is_run_in_are_refused(dtype):
    """The task text met with a KeyError: no machine has a peak of them."""
    with pytest.raises(DeclarationError, match=f"Toy: dtypes lists '{dtype}'; those that a problem is run in are bfl"):
        replace(PROBLEM, dtypes=("bfloat16", dtype))
    assert replace(PROBLEM, outputs=(Output("out", ("M",), dtype=dtype),)).outputs[0].dtype == dtype
