"""Linear attention over a split sequence: all that precedes a shard counts, however long shards are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from pkb_gym.problems.context_parallel.gated_delta_net_cp.reference import gated_delta_rule
from pkb_gym.problems.context_parallel.kimi_delta_attention.reference import delta_rule
from tests.problems.support import Run, run_reference

SIZES: dict[str, dict[str, int]] = {
    "GatedDeltaNetCP": {"B": 1, "L": 256, "Hq": 4, "Hv": 8, "K": 16, "D": 8},
    "KimiDeltaAttention": {"B": 1, "L": 256, "H": 4, "K": 16, "D": 8, "P": 1},
}
"""Shards so long that what a head writes in one would overwrite its whole state, were that not a lasting one."""


def gated_delta_net(run: Run, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
    a_log, dt_bias = (torch.cat([args[name] for args in run.args]) for name in ("a_log", "dt_bias"))
    q, k, v, gate, beta = (x.transpose(0, 1).float().contiguous() for x in sequences)
    return gated_delta_rule(q, k, v, gate[..., None], beta[..., None], a_log, dt_bias).view(v.shape)


def kimi_delta_attention(run: Run, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
    a_log, dt_bias = (run.args[0][name].float() for name in ("a_log", "dt_bias"))
    q, k, v, g, beta = (x.transpose(0, 1).float() for x in sequences)
    parts = (x.flatten(1, 2) for x in (q, k, v, g, beta[..., None]))
    return delta_rule(*parts, a_log, dt_bias.view(q.shape[2:])).view(v.shape)


def last_shard(run: Run, rule: Callable[[Run, Sequence[torch.Tensor]], torch.Tensor], memory: int) -> torch.Tensor:
    """The last rank's output (B, L, H, D) by a state that has seen so many positions before its own alone."""
    names = list(run.args[0])[:5]
    sequences = [torch.cat([args[name] for args in run.args], dim=1) for name in names]
    L = run.args[0]["q"].shape[1]
    return rule(run, [x[:, -L - memory :] for x in sequences])[-L:].transpose(0, 1).to(torch.bfloat16)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(
    ("name", "rule"), [("GatedDeltaNetCP", gated_delta_net), ("KimiDeltaAttention", kimi_delta_attention)]
)
def test_a_state_that_knows_the_neighbours_positions_alone_is_wrong(
    name: str, rule: Callable[[Run, Sequence[torch.Tensor]], torch.Tensor], timed: bool
) -> None:
    run = run_reference(name, size=SIZES[name], world_size=4, timed=timed)
    L = SIZES[name]["L"]
    assert not run.wrong(3, "out", last_shard(run, rule, 3 * L)).any()
    for memory in (0, L // 2, L, 2 * L):
        assert run.wrong(3, "out", last_shard(run, rule, memory)).any(), f"{memory} positions stand for all"
