"""Reading axes: what each method returns, and what it says of an axis that holds something else."""

from __future__ import annotations

import copy
import pickle

import pytest

from pkb_gym.engine.errors import AxisNotFound, SizeError
from pkb_gym.engine.problem import Axes, divide
from pkb_gym.engine.problem.axes import resolve_shape

AXES = Axes(
    {
        "W": 4,
        "r": 1,
        "M": 8,
        "eps": 0.5,
        "causal": True,
        "law": "zipf",
        "open": None,
        "lengths": (3, 0, 5, 1, 9),
        "pairs": ((1, 2), (), (3,)),
        "scales": ((1, 0.5), (2.5,)),
        "grads": ((2, 3), None, ()),
        "group": ((0, 2), (1, 3)),
        "src": -1,
    },
    dtype="bfloat16",
    problem="Toy",
)


def test_a_whole_number_is_an_attribute():
    assert AXES.M == AXES.number("M") == AXES["M"] == 8
    assert AXES.itemsize == 2


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("number_or_none", "M", 8),
        ("number_or_none", "open", None),
        ("real", "eps", 0.5),
        ("real", "M", 8),
        ("real_or_none", "eps", 0.5),
        ("real_or_none", "open", None),
        ("flag", "causal", True),
        ("text", "law", "zipf"),
        ("ints", "lengths", (3, 0, 5, 1, 9)),
        ("ints_or_none", "lengths", (3, 0, 5, 1, 9)),
        ("ints_or_none", "open", None),
        ("by_rank", "lengths", (3, 0, 5, 1)),
        ("int_lists", "pairs", ((1, 2), (), (3,))),
        ("real_lists", "scales", ((1, 0.5), (2.5,))),
        ("shapes", "grads", ((2, 3), None, ())),
        ("group_ranks", "group", (1, 3)),
        ("group_ranks", "open", (0, 1, 2, 3)),
        ("rank_axis", "src", 3),
        ("rank_axis", "M", SizeError),
    ],
)
def test_a_method_reads_its_kind(method, name, value):
    if value is SizeError:
        with pytest.raises(SizeError, match=r"^Toy: axis M=8 must name a rank, -4 \.\. 3$"):
            getattr(AXES, method)(name)
    else:
        assert getattr(AXES, method)(name) == value


@pytest.mark.parametrize(
    ("method", "name", "expected"),
    [
        ("number", "eps", "axis eps=0.5 must be a whole number"),
        ("number", "causal", "axis causal=True must be a whole number"),
        ("number_or_none", "law", "axis law='zipf' must be a whole number or None"),
        ("real", "causal", "axis causal=True must be a number"),
        ("real_or_none", "law", "axis law='zipf' must be a number or None"),
        ("flag", "M", "axis M=8 must be True or False"),
        ("text", "open", "axis open=None must be a string"),
        ("ints", "M", "axis M=8 must be a tuple of whole numbers"),
        ("ints", "grads", "axis grads=((2, 3), None, ()) must be a tuple of whole numbers"),
        ("ints_or_none", "M", "axis M=8 must be a tuple of whole numbers or None"),
        ("int_lists", "lengths", "axis lengths=(3, 0, 5, 1, 9) must be a tuple of tuples of whole numbers"),
        ("int_lists", "scales", "axis scales=((1, 0.5), (2.5,)) must be a tuple of tuples of whole numbers"),
        ("real_lists", "lengths", "axis lengths=(3, 0, 5, 1, 9) must be a tuple of tuples of numbers"),
        ("shapes", "scales", "axis scales=((1, 0.5), (2.5,)) must be a tuple of shapes and None"),
    ],
)
def test_an_axis_of_another_kind_is_refused(method, name, expected):
    with pytest.raises(SizeError) as caught:
        getattr(AXES, method)(name)
    assert str(caught.value) == f"Toy: {expected}"


def test_an_attribute_that_is_no_whole_number_is_refused():
    """It was typed as int and could be anything."""
    with pytest.raises(SizeError, match=r"^Toy: axis causal=True must be a whole number$"):
        _ = AXES.causal


def test_a_missing_axis_is_named_with_those_that_there_are():
    with pytest.raises(AxisNotFound, match=r"^Toy: no axis 'N'; there are M, W, causal, "):
        AXES.number("N")
    with pytest.raises(AttributeError, match=r"^Toy: no axis 'N'; there are M, W, causal, "):
        _ = AXES.N


def test_it_is_a_mapping():
    """`get` and `in` raised for an axis that is missing, as `[]` gave no KeyError."""
    assert AXES.get("N") is None and AXES.get("N", 3) == 3 and AXES.get("M") == 8
    assert "M" in AXES and "N" not in AXES
    assert len(AXES) == len(list(AXES)) == len(dict(AXES)) == 13


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda ax: pickle.loads(pickle.dumps(ax))])
def test_it_can_be_copied_and_pickled(copied):
    assert copied(AXES) == AXES and copied(AXES).M == 8


def test_changes_give_a_dict_or_axes():
    assert {**AXES.entries, "M": 2, "N": 3} == AXES | {"M": 2, "N": 3}
    changed = AXES.replace(M=2, N=3)
    assert (changed.M, changed.N, changed.W, AXES.M) == (2, 3, 4, 8)
    assert (changed.dtype, changed.problem) == ("bfloat16", "Toy")


def test_one_of_several_strings():
    assert AXES.one_of("law", {"uniform": 1, "zipf": 2}) == "zipf"
    with pytest.raises(SizeError, match=r"^Toy: axis law='zipf' must be one of uniform, power$"):
        AXES.one_of("law", ("uniform", "power"))


@pytest.mark.parametrize("lengths", [(3, 0, 5), (3, 0, -5, 1)])
def test_every_rank_needs_a_number(lengths):
    with pytest.raises(SizeError, match=r"must be a tuple of at least W=4 whole numbers >= 0$"):
        AXES.replace(lengths=lengths).by_rank("lengths")


def test_a_rank_in_no_group_is_refused():
    """It ended in StopIteration."""
    with pytest.raises(SizeError, match=r"^Toy: axis group=\(\(0, 2\),\) must be None or groups .* rank 1$"):
        AXES.replace(group=((0, 2),)).group_ranks("group")


def test_a_rank_is_counted_around_the_ring():
    assert [AXES.rank_axis("src", shift=n) for n in range(5)] == [3, 0, 1, 2, 3]


def test_quotients():
    assert AXES.divide("M", by="W") == divide(AXES, "M", by="W") == divide(dict(AXES), "M", by="W") == 2
    with pytest.raises(SizeError, match=r"^Toy: axis M=10 must be a multiple of W=4; nearest 8 and 12$"):
        divide(AXES.replace(M=10), "M", by="W")
    with pytest.raises(SizeError, match=r"^axis M=10 must be a multiple of W=4; nearest 8 and 12$"):
        divide({"M": 10, "W": 4}, "M", by="W")
    with pytest.raises(SizeError, match=r"^Toy: axis W=0 must be at least 1$"):
        AXES.replace(W=0).divide("M", by="W")


def test_long_values_are_cut_short_in_errors():
    with pytest.raises(SizeError, match=r"^Toy: axis M=\(0, 1, 2, 3, 4, 5, \.\.\.\) must be a whole number$"):
        AXES.replace(M=tuple(range(10_000))).number("M")


@pytest.mark.parametrize("shape", [("M", 3), "lengths"])
def test_shapes_in_numbers(shape):
    assert resolve_shape(shape, AXES) == ((8, 3) if shape == ("M", 3) else (3, 0, 5, 1, 9))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("M", "eps"), "axis eps=0.5 must be a whole number"),
        (("src",), r"shape \('src',\) on rank 1 gives \(-1,\); expected numbers >= 0"),
        ("grads", "expected numbers >= 0"),
    ],
)
def test_shapes_of_anything_else_are_refused(shape, message):
    with pytest.raises(SizeError, match=f"^Toy: .*{message}"):
        resolve_shape(shape, AXES)
