"""A zygote that is no longer wanted before it is ready."""

from __future__ import annotations

import socket

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.ranks.zygote import Zygote


@pytest.mark.parametrize("trusted", [True, False])
def test_it_ends_while_it_loads_torch(trusted: bool) -> None:
    """It listened to nobody until torch was loaded, and outlived a killed evaluator by seconds."""
    zygote = Zygote(trusted=trusted)
    try:
        zygote._control.sock.shutdown(socket.SHUT_WR)
        zygote._control.sock.settimeout(60)
        assert zygote._control.sock.recv(1) == b"", "it became ready all the same"
    finally:
        zygote.close()


def test_one_that_was_closed_while_it_started_says_so() -> None:
    """Its output was read although it was closed: a ValueError in whatever thread waited for it."""
    zygote = Zygote(trusted=True)
    zygote.close()
    with pytest.raises(InfrastructureError, match="did not start"):
        zygote.wait_until_ready()
