"""Arguments as the words that the standalone harness reads."""

from __future__ import annotations

import pytest

from pkb_gym.engine.reference.kept_block import RETURNED, _group_fields, _parameters, _tensor_text
from pkb_gym.engine.wire.arguments import Argument, GroupArgument, ScalarArgument, TensorArgument, TensorSlot

SLOT = TensorSlot(512, (2, 3), "bfloat16", 6)
WORDS = "x 512 12 4 16 2 2 3"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (ScalarArgument(7), ["int 7"]),
        (ScalarArgument(True), ["bool 1"]),
        (ScalarArgument(2.5), ["float 0x1.4000000000000p+1"]),
        (ScalarArgument(None), ["none"]),
        (ScalarArgument("für a"), ["text 6 für a"]),
        (ScalarArgument((1, (2, 3))), ["list 2 int 1 list 2 int 2 int 3"]),
        (GroupArgument(2), ["int 2"]),
        (GroupArgument(None), ["int -1"]),
        (TensorArgument("tensor", (SLOT,)), [f"tensor {WORDS}"]),
        (TensorArgument("tensor", (None,)), ["none"]),
        (TensorArgument("linear", (SLOT, None)), [f"tensor {WORDS}", "none"]),
        (TensorArgument("list", (SLOT, None)), [f"list 2 tensor {WORDS} none"]),
        (TensorArgument("bare", (SLOT,)), [f"list 1 tensor {WORDS}"]),
    ],
)
def test_an_argument_becomes_the_parameters_of_a_native_kernel(argument: Argument, words: list[str]):
    assert _parameters(argument, {512: "x"}) == words


def test_a_rank_outside_of_a_group_has_no_place_in_it():
    partition = ((0, 2), (3,))
    assert [_group_fields(partition, rank) for rank in range(4)] == [(2, 0, 0, 2), (0, -1), (2, 1, 0, 2), (1, 0, 3)]


def test_an_empty_tensor_has_no_bytes():
    assert _tensor_text("out", RETURNED, (0, 4), "float32") == f"out {RETURNED} 0 2 32 2 0 4"
