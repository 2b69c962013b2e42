"""Results that are copied into the heap: what is claimed of them, and that the copies are what counts."""

from __future__ import annotations

from math import prod

import pytest
import torch
import tvm_ffi

from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside import results
from pkb_gym.engine.rankside.failures import CandidateError
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.rankside.native import Native
from pkb_gym.engine.rankside.results import Delivery, Destination
from pkb_gym.engine.wire.arguments import Result, TensorSlot
from pkb_gym.engine.wire.orders import Claim

SEGMENT_BYTES = 1 << 16
FIRST, SECOND, THIRD = 4096, 8192, 12288


@pytest.fixture
def heap() -> Heap:
    """That of rank 1 of 2."""
    return Heap(sealed_memory("test", 2 * SEGMENT_BYTES), SEGMENT_BYTES, 2, 1)


def slot(offset: int, *shape: int, dtype: str = "float32") -> TensorSlot:
    return TensorSlot(offset, shape, dtype, prod(shape))


def sized_by_data(offset: int) -> TensorSlot:
    return TensorSlot(offset, None, "float32", 12)


def output(name: str, *slots: TensorSlot, is_list: bool = False) -> Result:
    return Result(name, f"key of {name}", is_list, slots)


def held(heap: Heap, offset: int, *shape: int, dtype: str = "float32") -> torch.Tensor:
    """What the evaluator will see."""
    return heap.tensor(slot(offset, *shape, dtype=dtype))


def counting(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


def test_a_result_as_declared_is_copied_without_a_claim(heap: Heap) -> None:
    delivery = Delivery(heap, "value", [output("out", slot(FIRST, 3, 4))])
    result = counting(3, 4)
    ((delivered,),), claims = delivery.deliver(result)
    assert claims == [None]
    assert torch.equal(held(heap, FIRST, 3, 4), counting(3, 4))
    result.zero_()
    assert torch.equal(delivered, counting(3, 4)), "the copy counts, whatever becomes of the result"
    delivered[0, 0] = 99
    assert held(heap, FIRST, 3, 4)[0, 0] == 99, "it lies in the heap"


def test_strides_and_gradients_do_not_matter(heap: Heap) -> None:
    delivery = Delivery(heap, "value", [output("out", slot(FIRST, 3, 4))])
    transposed = counting(4, 3).t().requires_grad_()
    ((delivered,),), claims = delivery.deliver(torch.nn.Parameter(transposed))
    assert claims == [None] and delivered.is_contiguous() and not delivered.requires_grad
    assert torch.equal(delivered, counting(4, 3).t())


def test_an_empty_result_as_declared(heap: Heap) -> None:
    delivery = Delivery(heap, "value", [output("out", slot(FIRST, 0, 4))])
    ((delivered,),), claims = delivery.deliver(torch.empty(0, 4))
    assert claims == [None] and delivered.shape == (0, 4)


@pytest.mark.parametrize(
    "wrong",
    [torch.ones(4, 3), torch.ones(12), torch.ones(3, 4, 1), torch.tensor(1.0), torch.ones(3, 4, dtype=torch.float64)],
    ids=lambda wrong: f"{tuple(wrong.shape)} {wrong.dtype}",
)
def test_another_shape_or_dtype_is_claimed_and_not_copied(heap: Heap, wrong: torch.Tensor) -> None:
    destination = Destination(heap, slot(FIRST, 3, 4))
    taken, claim = destination.take(wrong)
    assert taken is wrong
    assert claim == Claim(tuple(wrong.shape), str(wrong.dtype).removeprefix("torch."))
    assert not held(heap, FIRST, 3, 4).any(), "it could otherwise be read beyond its end"


@pytest.mark.parametrize("shape", [(12,), (3, 4), (5,), (0,), (2, 0)])
def test_a_size_that_depends_on_the_data_is_claimed_and_copied(heap: Heap, shape: tuple[int, ...]) -> None:
    taken, claim = Destination(heap, sized_by_data(FIRST)).take(counting(*shape))
    assert claim == Claim(shape, "float32")
    assert torch.equal(taken, counting(*shape))
    assert torch.equal(held(heap, FIRST, *shape), counting(*shape))


def test_each_call_may_have_another_size(heap: Heap) -> None:
    destination = Destination(heap, sized_by_data(FIRST))
    claims = [destination.take(counting(n))[1] for n in (12, 3, 7)]
    assert claims == [Claim((n,), "float32") for n in (12, 3, 7)]
    assert held(heap, FIRST, 12).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("wrong", [torch.ones(13), torch.ones(4, 4), torch.ones(3, dtype=torch.int64)])
def test_more_than_there_is_room_for_is_claimed_and_not_copied(heap: Heap, wrong: torch.Tensor) -> None:
    taken, claim = Destination(heap, sized_by_data(FIRST)).take(wrong)
    assert taken is wrong and claim is not None and claim.shape == wrong.shape
    assert not held(heap, FIRST, 16).any()


TWO = [output("y", slot(FIRST, 3)), output("z", slot(SECOND, 2, dtype="int64"))]


@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ("tuple", (counting(3), torch.tensor([7, 8]))),
        ("tuple", [counting(3), torch.tensor([7, 8])]),
        ("dict", {"key of z": torch.tensor([7, 8]), "key of y": counting(3)}),
    ],
    ids=["tuple", "list", "dict"],
)
def test_several_outputs_each_go_to_their_place(heap: Heap, returns: str, result: object) -> None:
    parts, claims = Delivery(heap, returns, TWO).deliver(result)
    assert claims == [None, None]
    assert [[tensor.tolist() for tensor in part] for part in parts] == [[[1, 2, 3]], [[7, 8]]]
    assert held(heap, FIRST, 3).tolist() == [1, 2, 3]
    assert held(heap, SECOND, 2, dtype="int64").tolist() == [7, 8]


def test_a_list_of_tensors_is_one_output(heap: Heap) -> None:
    leaves = slot(FIRST, 3), slot(SECOND, 2), sized_by_data(THIRD)
    delivery = Delivery(heap, "value", [output("grads", *leaves, is_list=True)])
    (tensors,), claims = delivery.deliver([counting(3), counting(4), counting(5)])
    assert claims == [None, Claim((4,), "float32"), Claim((5,), "float32")]
    assert [tensor.numel() for tensor in tensors] == [3, 4, 5]


def test_outputs_that_are_not_asked_for_stay_as_they_are(heap: Heap) -> None:
    result = counting(3), torch.tensor([7, 8])
    ((y,), (z,)), claims = Delivery(heap, "tuple", TWO, only=["z"]).deliver(result)
    assert y is result[0] and z is not result[1]
    assert claims == [None], "of z alone"
    assert not held(heap, FIRST, 3).any()


def test_nothing_is_delivered_where_nothing_is_returned(heap: Heap) -> None:
    assert Delivery(heap, "tuple", []).deliver(None) == ([], [])


@pytest.mark.parametrize(
    ("returns", "result", "message"),
    [
        ("tuple", counting(3), r"expected a tuple of 2 \(y, z\); got a Tensor of shape \(3,\), torch.float32"),
        ("tuple", (counting(3),), r"expected a tuple of 2 \(y, z\); got a tuple of 1"),
        ("dict", {"key of y": counting(3)}, "expected a dict with key of y, key of z; got a dict with key of y"),
        ("dict", (counting(3), counting(2)), "expected a dict with key of y, key of z; got a tuple of 2"),
        ("tuple", (counting(3), None), "z: expected a plain dense tensor, got None"),
        ("tuple", (counting(3), [counting(2)]), "z: expected a plain dense tensor, got a list of 1"),
        ("tuple", (counting(3).to_sparse(), counting(2)), "y: expected a plain dense tensor, got a Tensor of shape"),
    ],
)
def test_another_structure_is_an_error(heap: Heap, returns: str, result: object, message: str) -> None:
    with pytest.raises(CandidateError, match=message) as caught:
        Delivery(heap, returns, TWO).deliver(result)
    assert caught.value.kind == "wrong_shape_or_dtype"


def test_a_tensor_that_computes_its_values_later_is_refused(heap: Heap) -> None:
    class Lazy(torch.Tensor):
        pass

    with pytest.raises(CandidateError, match="out: expected a plain dense tensor, got a Lazy"):
        Delivery(heap, "value", [output("out", slot(FIRST, 3))]).deliver(counting(3).as_subclass(Lazy))


SHAPE = [output("flat_shape", slot(FIRST, 2, dtype="int64"))]


def test_a_returned_size_becomes_a_tensor() -> None:
    """A tuple of whole numbers stands for a 1-dimensional int64 tensor."""
    for size in ((64, 32), torch.empty(64, 32).shape, torch.tensor([64, 32])):
        ((tensor,),) = results.split("value", SHAPE, size)
        assert tensor.dtype == torch.int64 and tensor.tolist() == [64, 32]


@pytest.mark.parametrize("other", [[64, 32], (64, 32.0), (True, 2), "64"])
def test_nothing_else_is_taken_for_a_size(other: object) -> None:
    with pytest.raises(CandidateError, match="flat_shape: expected a plain dense tensor"):
        results.split("value", SHAPE, other)


@pytest.fixture
def native() -> Native:
    """A kernel that has returned; what it is called with does not matter."""
    return Native.__new__(Native)


def test_returned_tensors_of_a_native_kernel_go_to_their_places(heap: Heap, native: Native) -> None:
    places = Destination(heap, sized_by_data(FIRST)), Destination(heap, slot(SECOND, 2))
    returned = [tvm_ffi.from_dlpack(counting(n)) for n in (3, 2)]
    assert native._deliver(places, returned) == (Claim((3,), "float32"), None)
    assert held(heap, FIRST, 3).tolist() == [1, 2, 3] and held(heap, SECOND, 2).tolist() == [1, 2]
    assert native._deliver(places[1:], returned[1]) == (None,), "one of them is no list"


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        (None, "None"),
        (5, "an object of type int"),
        ("no", "an object of type str"),
        ([torch.ones(1), 5], "a list of 2"),
        ([torch.ones(1)], "1"),
    ],
)
def test_a_native_kernel_that_returns_something_else(heap: Heap, native: Native, returned: object, got: str) -> None:
    places = Destination(heap, sized_by_data(FIRST)), Destination(heap, sized_by_data(SECOND))
    with pytest.raises(CandidateError, match=f"expected 2 returned tensors, got {got}$"):
        native._deliver(places, returned)
