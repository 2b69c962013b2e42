"""The claims of a block's calls: as they were made after the way to the evaluator, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from unittest import mock

import pytest

from pkb_gym.engine.wire import messages
from pkb_gym.engine.wire.claims import read_claims, write_claims
from pkb_gym.engine.wire.messages import ProtocolError, read
from pkb_gym.engine.wire.orders import BlockDone, Claim, Claims

DECLARED, OTHER = None, Claim((3, 0, 5), "bfloat16")


@pytest.mark.parametrize(
    "calls",
    [(), ((), ()), ((DECLARED,), (DECLARED,)), ((DECLARED, OTHER), (OTHER, DECLARED)), ((Claim((), "\ud800"),),)],
    ids=["no calls", "nothing delivered", "as declared", "mixed", "surrogate"],
)
def test_claims_come_back_from_the_wire(calls: tuple[Claims, ...]) -> None:
    done = read(json.loads(json.dumps(BlockDone(write_claims(calls)).to_json())), BlockDone)
    assert read_claims(done.claims) == calls


def test_a_claim_may_be_of_any_size_and_dtype() -> None:
    """They are compared with what is declared, and nothing is read by them before."""
    calls = ((Claim((1 << 39, -1), "nonsense"), None),)
    assert read_claims(write_claims(calls)) == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[null]",
        "[" * 100_000,
        "NaN",
        *map(json.dumps, (None, 7, {"calls": []}, [None], [[7]], [[[3], "int8"]], [[{"shape": [1]}]])),
        json.dumps([[{"shape": [1.5], "dtype": "int8"}]]),
        json.dumps([[{"shape": [1 << 99], "dtype": "int8"}]]),
    ],
)
def test_nonsense_in_claims_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"^BlockClaims") as refused:
        read_claims(text)
    assert len(str(refused.value)) < 300


def test_claims_that_are_no_text_are_refused() -> None:
    with pytest.raises(ProtocolError, match=r"^BlockDone\.claims"):
        read({"message": "BlockDone", "claims": [[None]]}, BlockDone)


@pytest.mark.parametrize("of_call", [(), (None,), (Claim((2, 3), "float32"),)], ids=["native", "declared", "claimed"])
def test_the_report_of_a_block_takes_no_work_for_each_call(of_call: Claims) -> None:
    """It is made and read before a block's clock stops, for the candidate alone."""

    def values_looked_at(calls: Sequence[Claims]) -> int:
        with (
            mock.patch.object(messages, "to_json", wraps=messages.to_json) as written,
            mock.patch.object(messages, "_decode", wraps=messages._decode) as decoded,
        ):
            read(BlockDone(write_claims(calls)).to_json(), BlockDone)
        return written.call_count + decoded.call_count

    assert values_looked_at([of_call] * 256) == values_looked_at([of_call]) > 0
