"""The model from scratch: deterministic, and taken by TRL for a Qwen3."""

from __future__ import annotations

import json

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import parse_response

from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.trl import KernelTool
from pkb_gym.training.inputs.chat import render, submit_tools, training_template, with_parser
from pkb_gym.training.scratch_model import PRESETS, main, make_model, train_tokenizer, write_scratch_model
from tests.training.conversations import SOURCE, source


@pytest.fixture(scope="module")
def tokenizer(scratch_model):
    return AutoTokenizer.from_pretrained(scratch_model)


def test_the_same_corpus_and_seed_give_the_same_files(corpus_folder, scratch_model, tmp_path):
    main(["--corpus", str(corpus_folder), "--output", str(tmp_path / "again"), "--preset", "smoke"])
    names = ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"]
    assert [(tmp_path / "again" / name).read_bytes() for name in names] == [
        (scratch_model / name).read_bytes() for name in names
    ]
    main(["--corpus", str(corpus_folder), "--output", str(tmp_path / "other"), "--preset", "smoke", "--seed", "1"])
    assert (tmp_path / "other" / names[0]).read_bytes() != (scratch_model / names[0]).read_bytes()


def test_drawing_the_weights_leaves_the_callers_generator_alone(corpus, tokenizer):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    make_model(PRESETS["smoke"], tokenizer, seed=0)
    assert torch.rand(1) == expected


def test_it_opens_and_answers(scratch_model, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(scratch_model)
    assert model.config.model_type == "qwen3"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    ids = tokenizer("void", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))


@pytest.mark.parametrize(
    ("preset", "low", "high"), [("smoke", 0.5e6, 2e6), ("small", 12e6, 25e6), ("base", 75e6, 120e6)]
)
def test_presets_have_the_size_that_they_say(preset, low, high):
    class FullTokenizer:
        eos_token_id, pad_token_id = 1, 0

        def __len__(self) -> int:
            return PRESETS[preset].vocabulary

    with torch.device("meta"):
        assert low < make_model(PRESETS[preset], FullTokenizer(), seed=0).num_parameters() < high


def test_every_text_survives_and_digits_stay_apart(tokenizer):
    for text in (SOURCE, json.dumps(SOURCE), "tab\there\r\n  spaces  ", "naïve — 漢字 😀", "<think>x</think>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert [tokenizer.decode([token]) for token in tokenizer("block = 128;\n")["input_ids"]][-4:-1] == ["1", "2", "8"]


def test_lines_of_the_corpus_are_short(tokenizer):
    assert len(tokenizer(json.dumps(source(32)))["input_ids"]) < len(source(32)) / 5


def test_trl_parses_what_the_template_renders(corpus, tokenizer):
    """The tokens of a submission, as a policy would generate them, become the call that was rendered."""
    messages = corpus[0]["messages"]
    prompt = tokenizer(render(tokenizer, messages[:2], reply_next=True))["input_ids"]
    longer = tokenizer(render(tokenizer, messages[:3]))["input_ids"]
    assert longer[: len(prompt)] == prompt
    reply = longer[len(prompt) : longer.index(tokenizer.eos_token_id, len(prompt)) + 1]
    parsed = parse_response(with_parser(tokenizer), reply, prefix=prompt, tools=list(submit_tools()))
    assert parsed["tool_calls"] == messages[2]["tool_calls"]


def test_tools_render_as_those_of_the_environment(corpus, tokenizer):
    def text(tools):
        return tokenizer.apply_chat_template(corpus[0]["messages"], tools=tools, tokenize=False)

    assert text(list(submit_tools())) == text([KernelTool(["AllReduce"]).submit])
    assert text(list(submit_tools())) == text([KernelTool.submit])


def test_the_assistants_messages_are_marked_and_nothing_else(corpus, tokenizer):
    out = tokenizer.apply_chat_template(
        corpus[4]["messages"],
        tools=list(submit_tools()),
        chat_template=training_template(tokenizer),
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    marked = [token for token, mask in zip(out["input_ids"], out["assistant_masks"], strict=True) if mask]
    think = "<think>\n\n</think>\n\n"
    call = '<tool_call>\n{{"name": "submit", "arguments": {{"source": {}}}}}\n</tool_call><|im_end|>\n'
    assert tokenizer.decode(marked) == (
        think
        + call.format('"broken 0: compile_error"')
        + think
        + call.format(json.dumps(source(128)))
        + think
        + "It is right.<|im_end|>\n"
    )


def test_what_it_cannot_be_made_of_is_refused(corpus, tmp_path):
    with pytest.raises(ConfigError, match="no preset 'huge'; there are smoke, small, base"):
        write_scratch_model(corpus, tmp_path, "huge", 0)
    with pytest.raises(ConfigError, match="this one has no rows"):
        train_tokenizer(Dataset.from_list([]), PRESETS["smoke"])
