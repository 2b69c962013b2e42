"""Supervised fine-tuning: loss on the right tokens, filters, the same run after a restart."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig, SFTConfig

from pkb_gym.corpus.conversations import submissions
from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.text.reply import take_source
from pkb_gym.training import merge_adapter, sft
from pkb_gym.training.inputs.chat import as_code, render, training_template
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from tests.training import conversations
from tests.whole_tables import sampled

QUICK = [
    *("--use_cpu", "true", "--bf16", "false", "--gradient_checkpointing", "false", "--report_to", "none"),
    *("--disable_tqdm", "true", "--logging_steps", "1", "--per_device_train_batch_size", "2"),
    *("--learning_rate", "3e-3", "--warmup_steps", "0"),
]


def losses(folder) -> list[float]:
    state = json.loads((folder / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def quick_config(folder) -> SFTConfig:
    return SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
    )


def texts_with_loss(corpus, model, folder, *, imitate_failures) -> list[str]:
    """What the recipe computes the loss on, one text a row; all that it reads are whole conversations."""
    config = quick_config(folder)
    config.shuffle_dataset, config.max_steps, config.save_strategy = False, 1, "no"
    trainer = sft.fine_tune(
        corpus, config, ModelConfig(model_name_or_path=str(model)), imitate_failures=imitate_failures
    )
    tokenizer = trainer.processing_class
    whole = [tokenizer(sft.render(tokenizer, messages))["input_ids"] for messages in corpus["messages"]]
    assert [row["input_ids"] for row in trainer.train_dataset] == whole
    return [tokenizer.decode([label for label in row["labels"] if label != -100]) for row in trainer.train_dataset]


def test_loss_falls_on_the_assistants_words_and_not_on_failed_submissions(corpus, scratch_model, tmp_path):
    right = texts_with_loss(corpus, scratch_model, tmp_path, imitate_failures=False)
    for text, row in zip(right, corpus, strict=True):
        assert json.dumps(submissions(row["messages"])[-1]) in text and text.endswith("It is right.<|im_end|>\n")
        for unlearnt in ("broken", "compile_error", "deadlock", "passed", "You write", "Write All", "<tool_response>"):
            assert unlearnt not in text
    everything = texts_with_loss(corpus, scratch_model, tmp_path, imitate_failures=True)
    assert everything[:4] == right[:4]
    assert [text.count("broken") for text in everything] == [0, 0, 0, 0, 1, 2]
    assert not any("<tool_response>" in text or "passed" in text for text in everything)


def test_a_submission_that_failed_after_a_right_one_is_context_too(corpus):
    row = dict(corpus[4])
    row["feedback"] = [json.dumps({"failure": None}), json.dumps({"failure": "deadlock"})]
    assert sft._after_last_failure(row["messages"], row["feedback"]) == 6


def test_filters(corpus):
    def kept(**wanted):
        return len(sft.filter_corpus(corpus, **wanted))

    assert kept(kinds=["single", "repair"], min_reward=None) == 6
    assert kept(kinds=["single"], min_reward=None) == 4
    assert kept(kinds=["single", "repair"], min_reward=1.064) == 4
    with pytest.raises(
        ConfigError, match="none of the corpus's 6 conversations is of kind repair with a reward of 9 or more"
    ):
        kept(kinds=["repair"], min_reward=9)


def test_a_conversation_that_is_too_long_is_left_out_whole(corpus, scratch_model, capsys):
    tokenizer = AutoTokenizer.from_pretrained(scratch_model)
    everything = [len(tokenizer(text)["input_ids"]) for text in (sft.render(tokenizer, m) for m in corpus["messages"])]
    assert len(sft.within(max(everything), corpus, tokenizer)) == 6
    assert len(sft.within(max(everything) - 1, corpus, tokenizer)) == 5
    assert f"1 of 6 conversations are longer than max_length={max(everything) - 1}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="every conversation is longer than max_length=9"):
        sft.within(9, corpus, tokenizer)


def test_a_run_learns_and_resumes_as_if_never_stopped(corpus_folder, tmp_path):
    """Killed after its checkpoint at step 3, it gives the losses of the run that was not killed."""
    argv = ["--corpus", str(corpus_folder), "--scratch", "smoke", *QUICK, "--max_steps", "6", "--save_steps", "3"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    sft.main([*argv, "--output_dir", str(whole)])
    assert len(losses(whole)) == 6 and losses(whole)[-1] < losses(whole)[0]

    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "checkpoint-6")
    for name in ("model.safetensors", "trainer_state.json"):
        (broken / name).unlink()
    sft.main([*argv, "--output_dir", str(broken), "--resume_from_checkpoint", "last"])
    assert losses(broken) == losses(whole)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_lora_trains_an_adapter(corpus, scratch_model, tmp_path):
    config = quick_config(tmp_path)
    config.max_steps = 2
    config.learning_rate = 0.01
    config.save_strategy = "no"
    model = ModelConfig(
        model_name_or_path=str(scratch_model), use_peft=True, lora_r=2, lora_target_modules=["q_proj", "v_proj"]
    )
    trainer = sft.fine_tune(corpus, config, model)
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert trained and all("_proj.lora_" in name for name in trained)
    assert (tmp_path / "adapter_model.safetensors").exists() and not (tmp_path / "model.safetensors").exists()

    merge_adapter.main(["--adapter", str(tmp_path), "--output", str(tmp_path / "merged")])
    ids = torch.tensor([[5, 6, 7]])
    trained, merged, base = (
        AutoModelForCausalLM.from_pretrained(path)(ids).logits
        for path in (tmp_path, tmp_path / "merged", scratch_model)
    )
    assert torch.allclose(merged, trained, atol=1e-5) and not torch.allclose(merged, base, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    with pytest.raises(ConfigError, match="holds no adapter"):
        merge_adapter.main(["--adapter", str(scratch_model), "--output", str(tmp_path / "again")])


def test_a_model_is_named_or_made_but_not_both(corpus_folder, scratch_model, tmp_path):
    argv = ["--corpus", str(corpus_folder), "--output_dir", str(tmp_path), *QUICK]
    with pytest.raises(ConfigError, match="no model: give --model_name_or_path, or --scratch"):
        sft.main(argv)
    with pytest.raises(ConfigError, match="leave out model_name_or_path="):
        sft.main([*argv, "--scratch", "smoke", "--model_name_or_path", str(scratch_model)])


def test_submissions_are_taught_as_fenced_code_to_models_that_call_no_tools(corpus, scratch_model, tmp_path):
    """The same loss as for calls: on what the assistant writes, after the last failure."""
    (repair,) = list(sft.learnable(corpus.select([5]), imitate_failures=False, options=DialogueOptions("code")))
    assert [message["role"] for message in repair["prompt"]].count("user") == 3
    first = repair["completion"][0]["content"]
    assert take_source(first).source == conversations.source(128)
    config = quick_config(tmp_path)
    config.shuffle_dataset, config.max_steps, config.save_strategy = False, 1, "no"
    named = ModelConfig(model_name_or_path=str(scratch_model))
    trainer = sft.fine_tune(corpus, config, named, options=DialogueOptions("code"))
    for row in trainer.train_dataset:
        text = trainer.processing_class.decode(row["input_ids"])
        taught = trainer.processing_class.decode([label for label in row["labels"] if label != -100])
        assert "<tool" not in text and "passed" in text and "passed" not in taught and "broken" not in taught
        assert take_source(taught.split("<|im_end|>")[0]).source in map(conversations.source, (32, 64, 128))


@pytest.mark.parametrize("submission", sampled(["tool", "code"], 2, 1))
def test_variables_of_the_chat_template_are_in_what_is_taught(submission, corpus, scratch_model, tmp_path):
    """And in the lengths that decide what is left out."""
    shutil.copytree(scratch_model, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(scratch_model)
    mode = "{% if mode is defined %}{{ mode.name * mode.times }}{% endif %}"
    tokenizer.chat_template = mode + training_template(tokenizer)
    tokenizer.save_pretrained(tmp_path / "model")
    options = DialogueOptions(submission, {"mode": {"name": "brief ", "times": 3}})
    config = quick_config(tmp_path / "run")
    config.max_steps, config.save_strategy = 1, "no"
    config.max_length = longest = max(lengths(corpus, tokenizer, options))
    assert longest > max(lengths(corpus, tokenizer, DialogueOptions(submission)))
    trainer = sft.fine_tune(corpus, config, ModelConfig(model_name_or_path=str(tmp_path / "model")), options=options)
    texts = [trainer.processing_class.decode(row["input_ids"]) for row in trainer.train_dataset]
    assert len(texts) == len(corpus) and all(text.startswith("brief brief brief <|im_start|>") for text in texts)
    assert max(len(row["input_ids"]) for row in trainer.train_dataset) == longest


def lengths(corpus, tokenizer, options) -> list[int]:
    uses_tools = options.submission == "tool"
    return [
        len(
            tokenizer(
                render(
                    tokenizer,
                    messages if uses_tools else as_code(messages),
                    with_tools=uses_tools,
                    options=options.template,
                )
            )["input_ids"]
        )
        for messages in corpus["messages"]
    ]
