"""Batches of the benchmark of attention: gradients that are not finite are seen, without a GPU here."""

from __future__ import annotations

from itertools import cycle

from benchmarks import attention_gradients
from benchmarks.attention_gradients import Policy, series

TINY = {
    "vocab_size": 50,
    "hidden_size": 12,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def test_batches_are_counted_and_their_gradients_looked_at(monkeypatch) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(attention_gradients, "UPDATES", 2)
    policy = Policy(TINY, "cpu")
    assert policy.learn(0, prompt=(2, 5), reply=(3, 6)) == (True, True)
    policy.model.model.norm.weight.data.fill_(float("nan"))
    assert policy.learn(0, prompt=(2, 5), reply=(3, 6)) == (False, False)
    outcomes = cycle([(True, True), (True, False), (False, False)])
    monkeypatch.setattr(policy, "learn", lambda _: next(outcomes))
    row = series(policy, "some", 0.02, decoded.append)
    assert row.batches >= 3 and row.not_finite > row.losses_not_finite > 0
    assert decoded == list(range(0, row.batches, 2))
