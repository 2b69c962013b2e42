"""Decoding with a fixed cache gives what `generate` gives, on the CPU; and what it does not know goes to `generate`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen3Config

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.rollout.decoding import Decoding, choice_of, renew_generator
from pkb_gym.training.rollout.fused_norms import fused_norms
from pkb_gym.training.rollout.graph_decoder import NO_SHORTCUT, GraphDecoder, TokenChoice, _batch_size
from pkb_gym.training.rollout.grouped_attention import BY_GROUPS, attention_by_groups, attention_of

SEQUENCES = [[1, 2, 3], [5, 9, 11, 13, 4, 2, 7], [8]]
END = 5
LIKELIEST = TokenChoice(temperature=0.0)


def small_model(key_heads: int = 2, **changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    config = LlamaConfig(**shape, num_attention_heads=6, num_key_value_heads=key_heads, **changes)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # of more weight: replies that vary
        parameter.data.mul_(3)
    return model


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return small_model()


def padded(sequences: Sequence[list[int]] = SEQUENCES) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, sequences))
    ids, mask = torch.zeros((2, len(sequences), width), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, width - len(sequence) :] = torch.tensor(sequence)
        mask[row, width - len(sequence) :] = 1
    return ids, mask


def likeliest(
    model: LlamaForCausalLM, budgets: list[int], sequences: Sequence[list[int]] = SEQUENCES
) -> list[list[int]]:
    """By `generate`."""
    ids, mask = padded(sequences)
    out = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=max(budgets), do_sample=False, eos_token_id=END,
        pad_token_id=0,
    )  # fmt: skip
    replies = [row[: row.index(END) + 1] if END in row else row for row in out[:, ids.shape[1] :].tolist()]
    return [reply[:budget] for reply, budget in zip(replies, budgets, strict=True)]


@pytest.mark.parametrize("budgets", [[40, 40, 40], [40, 3, 1], [1, 1, 1], [17, 16, 15]])
def test_the_likeliest_tokens_are_those_of_generate(model, budgets):
    found = GraphDecoder(model).decode(SEQUENCES, budgets, LIKELIEST, [END], seed=0)
    assert found == likeliest(model, budgets)
    assert max(map(len, found)) > 1 or max(budgets) == 1


@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_attention_by_groups_gives_the_tokens_of_generate(key_heads):
    model = small_model(key_heads)
    found = GraphDecoder(model).decode(SEQUENCES, [40] * 3, LIKELIEST, [END], seed=0)
    assert found == likeliest(model, [40] * 3)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_a_step_by_groups_attends_as_copied_keys_do(key_heads):
    """Head h reads key head h // (heads of a group); invalid entries of the cache count for nothing."""
    made = torch.Generator().manual_seed(0)
    query = torch.randn((3, 6, 1, 8), generator=made)
    key, value = torch.randn((2, 3, key_heads, 20, 8), generator=made)
    mask = torch.rand((3, 1, 1, 20), generator=made) < 0.5
    layer = Mock(num_key_value_groups=6 // key_heads)
    found, _ = attention_by_groups(layer, query, key, value, mask, scaling=0.3)
    copied = [of.repeat_interleave(6 // key_heads, dim=1) for of in (key, value)]
    scores = (0.3 * query @ copied[0].transpose(2, 3)).masked_fill(~mask, -torch.inf)
    assert torch.allclose(found, (scores.softmax(dim=-1) @ copied[1]).transpose(1, 2), atol=1e-6)
    assert torch.equal(
        found, attention_by_groups(layer, query, key, value.masked_fill(~mask.mT, 9), mask, scaling=0.3)[0]
    )


def test_the_models_attention_is_its_own_again_after_a_failure(model):
    with pytest.raises(RuntimeError), attention_of(model, BY_GROUPS):
        assert model.config._attn_implementation == BY_GROUPS
        raise RuntimeError
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
def test_fused_norms_give_the_logits_of_transformers(config):
    """In bfloat16 too, whose rounding is 2^-9 of a number, and between weights and inputs of different dtypes."""
    made = torch.Generator().manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    network = AutoModelForCausalLM.from_config(config(**shape, num_attention_heads=6, num_key_value_heads=2)).eval()
    ids = torch.randint(64, (3, 20), generator=made)
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 2, generator=made)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.04)):
        network = network.to(dtype)
        usual = network(ids).logits
        with fused_norms(network) as count:
            fused = network(ids).logits
        # Two norms a layer and one at the end; Qwen3 norms queries and keys as well.
        assert count == (5 if config is LlamaConfig else 9)
        assert not torch.equal(usual, fused) or dtype == torch.float32
        assert (usual - fused).abs().max() < tolerance * usual.abs().max()
        assert torch.equal(network(ids).logits, usual), "they are the model's own again"
    norm = network.model.norm
    inputs = torch.randn((3, 48), generator=made)  # float32, and weights in bfloat16
    usual = norm(inputs)
    with fused_norms(network):
        assert norm(inputs).dtype == usual.dtype and torch.allclose(norm(inputs), usual, atol=1e-5)


def test_without_shortcuts_a_step_is_the_models_own(model, monkeypatch):
    monkeypatch.setattr("pkb_gym.training.rollout.fused_norms.rms_norm", Mock(side_effect=AssertionError))
    sizes = []
    decoder = GraphDecoder(model, NO_SHORTCUT)
    compute = decoder._compute
    decoder._compute = lambda batch, *rest: sizes.append(batch.cache.batch) or compute(batch, *rest)
    budgets = [3] * 30 + [40] * 3
    found = decoder.decode([[7, 3]] * 33, budgets, LIKELIEST, [END], seed=0)
    assert found == likeliest(model, budgets, [[7, 3]] * 33) and set(sizes) == {48}


def test_a_batch_shrinks_to_the_sequences_that_are_open(model):
    sequences = [[1 + row % 40, 2, 3 + row % 7] for row in range(33)]
    budgets = [3 if row % 11 else 60 + row for row in range(33)]  # three go on: 0, 11 and 22
    decoder, reported = GraphDecoder(model), {}
    sizes = []
    compute = decoder._compute
    decoder._compute = lambda batch, *rest: sizes.append(batch.cache.batch) or compute(batch, *rest)
    found = decoder.decode(sequences, budgets, LIKELIEST, [END], seed=0, on_finished=reported.__setitem__)
    assert found == likeliest(model, budgets, sequences)
    assert sizes[0] == 48 and sizes[-1] == 4 and 12 not in sizes, "at once as small as it may be"
    assert {row: reply for row, reply in enumerate(found) if reply[-1] == END} == reported
    again = decoder.decode(sequences, budgets, LIKELIEST, [END], seed=0)
    assert again == found, "storage of a smaller batch is used again"


def test_a_batch_that_shrinks_draws_by_its_seed(model):
    sequences, budgets = [[7]] * 20, [3] * 17 + [40] * 3
    drawn = [GraphDecoder(model).decode(sequences, budgets, TokenChoice(), [], seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(reply) for reply in drawn[0][17:]}) == 3


def test_storage_is_used_again_for_other_lengths(model):
    decoder = GraphDecoder(model)
    decoder.decode([[7] * 70, [6] * 3, [1]], [250, 250, 250], LIKELIEST, [], seed=0)  # across lengths of the cache
    assert decoder.decode(SEQUENCES, [40] * 3, LIKELIEST, [END], seed=0) == likeliest(model, [40] * 3)


def test_changed_weights_count_at_once(model):
    changing = small_model()
    decoder = GraphDecoder(changing)
    before = decoder.decode(SEQUENCES, [20] * 3, LIKELIEST, [END], seed=0)
    with torch.no_grad():
        for parameter in changing.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    after = decoder.decode(SEQUENCES, [20] * 3, LIKELIEST, [END], seed=0)
    assert after == likeliest(changing, [20] * 3) != before


def test_a_training_model_is_decoded_as_in_evaluation_and_trains_on():
    training = small_model(attention_dropout=0.5).train()
    (getattr(training, "activation_checkpointing_enable", None) or training.gradient_checkpointing_enable)()
    found = GraphDecoder(training).decode(SEQUENCES, [10] * 3, LIKELIEST, [END], seed=0)
    assert training.training
    assert found == likeliest(training.eval(), [10] * 3)


def test_an_adapter_counts(model):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(small_model(), peft.LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM"))
    found = GraphDecoder(adapted).decode(SEQUENCES, [20] * 3, LIKELIEST, [END], seed=0)
    assert found == likeliest(adapted.eval(), [20] * 3) != likeliest(model, [20] * 3)


def test_the_seed_decides_what_is_sampled(model):
    decoder, choice = GraphDecoder(model), TokenChoice(0.8, 0.9, 20)
    first, same, other = (decoder.decode(SEQUENCES, [20] * 3, choice, [END], seed=seed) for seed in (3, 3, 4))
    assert first == same != other


def test_tokens_are_drawn_by_their_probabilities():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).expand(20_000, 4)
    noise = torch.empty(20_000, 4).exponential_(generator=torch.Generator().manual_seed(0))

    def shares(**choice) -> list[float]:
        return (TokenChoice(**choice).choose(logits, noise).bincount(minlength=4) / 20_000).tolist()

    assert shares() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.02)
    assert shares(top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=0.02)
    assert shares(top_p=0.75) == pytest.approx([0.625, 0.375, 0, 0], abs=0.02)  # 0.5 is not enough, 0.8 is
    assert shares(temperature=0.5) == pytest.approx([0.685, 0.247, 0.062, 0.007], abs=0.02)  # squares, normed


def test_each_end_is_reported_once(model):
    reported = []
    found = GraphDecoder(model).decode(
        SEQUENCES, [40, 2, 40], LIKELIEST, [END], seed=0, on_finished=lambda row, reply: reported.append((row, reply))
    )
    assert sorted(reported) == [(row, reply) for row, reply in enumerate(found) if reply[-1] == END]
    assert len(reported) == 2  # the second was cut off


@pytest.mark.parametrize(("sequences", "size"), [(1, 1), (3, 4), (32, 32), (33, 48), (50, 64), (65, 96), (128, 128)])
def test_batches_are_rounded_up(sequences, size):
    assert _batch_size(sequences) == size


def test_other_attention_is_refused():
    with pytest.raises(ConfigError, match="attention is eager, expected sdpa"):
        GraphDecoder(small_model(attn_implementation="eager"))


def test_generate_is_replaced_while_it_lasts(model):
    ids, mask = padded()
    config = GenerationConfig(max_new_tokens=40, do_sample=False, eos_token_id=[END], pad_token_id=0)
    usual = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    reported = {}
    with Decoding("graph").in_place_of_generate(model, [END], reported.__setitem__):
        replaced = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    assert torch.equal(usual, replaced)
    assert sorted(reported) == [0, 1, 2]
    assert "generate" not in model.__dict__


def test_a_failure_is_logged_and_generate_takes_over(model, monkeypatch, caplog):
    def fail(*_: object, **__: object):
        raise RuntimeError("capture failed")

    monkeypatch.setattr(GraphDecoder, "decode", fail)
    decoding, ids_and_mask = Decoding("graph"), padded()
    config = GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=[END], pad_token_id=0)
    with caplog.at_level(logging.WARNING), decoding.in_place_of_generate(model, [END], lambda *_: None):
        out = model.generate(input_ids=ids_and_mask[0], attention_mask=ids_and_mask[1], generation_config=config)
    assert out.shape == (3, ids_and_mask[0].shape[1] + 4)
    assert "`generate` takes over" in caplog.text
    assert decoding.decode(model, SEQUENCES, [4] * 3, LIKELIEST, [END], seed=0) is None


def test_shortcuts_that_fail_twice_are_left_for_good(model, monkeypatch, caplog):
    def fail(*_: object, **__: object):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr("pkb_gym.training.rollout.fused_norms.rms_norm", fail)
    decoding = Decoding("graph")
    with caplog.at_level(logging.WARNING):
        assert decoding.decode(model, SEQUENCES, [4] * 3, LIKELIEST, [END], seed=0) == likeliest(model, [4] * 3)
    assert "graphs go on without shortcuts" in caplog.text and "`generate` takes over" not in caplog.text
    caplog.clear()
    assert decoding.decode(model, SEQUENCES, [4] * 3, LIKELIEST, [END], seed=0) == likeliest(model, [4] * 3)
    assert not caplog.records


def test_what_fails_once_is_captured_anew(model, monkeypatch):
    decode, failures = GraphDecoder.decode, [RuntimeError("a pool has ended")]
    released = []

    def fail_once(decoder: GraphDecoder, *args: object):
        if failures:
            raise failures.pop()
        return decode(decoder, *args)

    monkeypatch.setattr(GraphDecoder, "decode", fail_once)
    monkeypatch.setattr(GraphDecoder, "release", lambda decoder: released.append(decoder))
    decoding = Decoding("graph")
    assert decoding.decode(model, SEQUENCES, [4] * 3, LIKELIEST, [END], seed=0) == likeliest(model, [4] * 3)
    assert len(released) >= 1 and not failures


def test_after_a_failed_capture_the_gpu_draws_from_a_generator_that_no_capture_knows(monkeypatch):
    """A capture that fails as it begins leaves the default generator capturing: `generate` failed after it."""
    default, made = Mock(), Mock()
    monkeypatch.setattr("torch.cuda.default_generators", (Mock(), default))
    monkeypatch.setattr("torch.Generator", lambda device: made)
    renew_generator(torch.device("cuda", 1))
    default.graphsafe_set_state.assert_called_once_with(made.graphsafe_get_state())
    made.manual_seed.assert_called_once()
    renew_generator(torch.device("cpu"))


class FakeGraph:
    """Stands for a CUDA graph, which keeps its pool of memory alive."""


def test_a_pool_that_lost_its_last_graph_is_not_used_again(model, monkeypatch):
    """A pool ends with its last graph; captured into it, the next graph failed and took the run with it."""
    pools, made = [], iter(range(9))
    monkeypatch.setattr("torch.cuda.CUDAGraph", FakeGraph)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: next(made))
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(f"torch.cuda.{name}", Mock)
    monkeypatch.setattr("torch.cuda.stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr("torch.cuda.graph", lambda _, pool, **__: pools.append(pool) or contextlib.nullcontext())
    monkeypatch.setattr(GraphDecoder, "_compute", lambda *_: None)
    decoder, device = GraphDecoder(model), torch.device("cpu")

    def capture(size: int, length: int) -> None:
        batch = decoder._storage(size, length, LIKELIEST, device)
        batch.graphs[length] = decoder._capture(batch, length, LIKELIEST)

    capture(64, 256)
    capture(64, 200)
    capture(32, 256)
    assert pools == [0, 0, 0]
    capture(64, 512)  # its storage is made anew, but another batch has graphs in the pool
    capture(32, 512)
    assert pools[3:] == [0, 0]
    decoder.release()
    capture(64, 256)
    capture(64, 1024)  # the only batch outgrows its storage, and its graphs go
    assert pools[5:] == [1, 2]


def test_on_the_cpu_generate_is_the_default(model):
    assert Decoding("auto").decode(model, SEQUENCES, [4] * 3, LIKELIEST, [END], seed=0) is None


def test_options_that_only_generate_knows():
    assert choice_of(GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, top_k=5)) == TokenChoice(0.7, 0.9, 5)
    assert choice_of(GenerationConfig(do_sample=False)) == LIKELIEST
    assert choice_of(GenerationConfig(do_sample=True, repetition_penalty=1.2)) is None
    assert choice_of(GenerationConfig(num_beams=4)) is None
