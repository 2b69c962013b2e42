"""The claims of a block's calls as one text. Making and sending it is part of a block's time: it has to be quick.

A message of the claims themselves takes microseconds a call to make and to read, as every value of it is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .messages import ProtocolError, decode
from .orders import Claim, Claims


@dataclass(frozen=True)
class BlockClaims:
    """The claims of a rank.

    Attributes:
        calls: Claims of each call.
    """

    calls: tuple[Claims, ...]


def write_claims(calls: Sequence[Claims]) -> str:
    """The claims of each call, as `read_claims` reads them."""
    return json.dumps(calls, default=_fields, separators=(",", ":"), allow_nan=False)


def _fields(claim: Claim) -> dict[str, object]:
    return {"shape": claim.shape, "dtype": claim.dtype}


def read_claims(text: str) -> tuple[Claims, ...]:
    """The claims of each call.

    Args:
        text: Text that `write_claims` made, or whatever else has arrived.

    Raises:
        ProtocolError: it is something else.
    """
    try:
        calls = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("BlockClaims is no JSON") from None
    return decode(BlockClaims, {"calls": calls}).calls
