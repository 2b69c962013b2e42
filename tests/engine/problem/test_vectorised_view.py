"""Bit patterns in vectorised rules."""

from __future__ import annotations

import torch

from pkb_gym.engine.problem.rules import as_integers
from pkb_gym.engine.problem.vectorised_view import view_as


def test_bits_are_looked_at_in_vectorised_rules_too() -> None:
    """By our own view as well, which versions of torch need that cannot vectorise theirs."""
    values = torch.tensor([[1.0, -0.0], [float("nan"), 3.0]], dtype=torch.bfloat16)
    bits = values.view(torch.int16)
    assert torch.equal(torch.vmap(as_integers)(values), bits)
    assert torch.equal(torch.vmap(lambda row: view_as(row, torch.int16) + 1)(values), bits + 1)
    assert torch.equal(torch.vmap(lambda column: view_as(column, torch.int16), in_dims=1)(values), bits.T)
