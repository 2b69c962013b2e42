"""The agent `transformers`, with a tiny model whose weights are random."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.agents.local_model import _PendingPrompt
from pkb_gym.agents.protocol import AgentError, Message, RequestRefused
from pkb_gym.agents.registry import open_agent
from pkb_gym.engine.errors import ConfigError
from tests.agents.conversations import CONVERSATION, answered, task
from tests.packages import needs
from tests.waiting import PATIENCE_S

pytestmark = needs("transformers", extra="train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from pkb_gym.training.scratch_model import write_scratch_model
    from tests.training.conversations import tiny_corpus

    found = tmp_path_factory.mktemp("model")
    write_scratch_model(tiny_corpus(), found, "smoke", seed=0)
    return found


@pytest.fixture
def provider(folder):
    found = open_agent(f"transformers:{folder}", {"temperature": "0", "max_tokens": "6"})
    yield found
    found.close()
    found._thread.join(PATIENCE_S)


def test_it_writes_what_the_model_finds_likeliest(provider):
    messages = [*CONVERSATION, *answered("int a;", 0.0)]
    reply = provider.begin(task()).act(messages)
    model, tokenizer = provider._model, provider._tokenizer
    talk = [
        {"role": "system", "content": "Write kernels."},
        {"role": "user", "content": "# AllReduce"},
        {"role": "assistant", "content": "```\nint a;\n```"},
        {"role": "user", "content": "Turn 1"},
    ]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    out = model.generate(**encoded, max_new_tokens=6, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    written = out[0, encoded["input_ids"].shape[1] :]
    assert reply.content == tokenizer.decode(written, skip_special_tokens=True)
    assert (reply.tokens.prompt, reply.tokens.completion) == (encoded["input_ids"].shape[1], len(written))


def test_episodes_that_wait_together_reply_as_each_alone(provider):
    talks = [[Message("user", "a" * length)] for length in (1, 40, 7)]
    alone = [provider.begin(task()).act(talk) for talk in talks]
    sizes, generate = [], provider._generate
    provider._generate = lambda batch: sizes.append(len(batch)) or generate(batch)
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda talk: provider.begin(task()).act(talk), talks * 3))
    assert together == alone * 3
    assert sum(sizes) == 9 and max(sizes) > 1


def test_the_room_of_a_reply_does_not_depend_on_its_neighbours(folder):
    """Beside a prompt that filled the context but for 8 tokens, short ones got 8 tokens too."""
    provider = open_agent(f"transformers:{folder}", {"temperature": "0", "max_tokens": "40"})
    context = 128  # the model reads more, which takes longer
    prompts = [[5] * length for length in (10, 20, context - 8, 30)]

    def pending(ids):
        return _PendingPrompt(ids, min(40, context - len(ids)), 1)

    together = provider._generate([pending(ids) for ids in prompts])
    assert [reply.tokens.completion for reply in together] == [40, 40, 8, 40]
    assert {reply.finish_reason for reply in together} == {"length"}
    assert together == [provider._generate([pending(ids)])[0] for ids in prompts]
    provider.close()
    provider._thread.join(30)


def test_a_conversation_that_is_too_long_is_refused(provider):
    with pytest.raises(RequestRefused, match=rf"has \d+ tokens, and the model's context {provider._context}"):
        provider.begin(task()).act([Message("user", "word " * provider._context)])


def test_a_model_that_fails_is_the_agents_failure(provider):
    def fail(_):
        raise RuntimeError("out of memory")

    provider._generate = fail
    with pytest.raises(AgentError, match="the model failed: out of memory"):
        provider.begin(task()).act(CONVERSATION)


def test_settings_do_not_hold_the_folder_of_the_weights(provider, folder):
    assert provider.settings["model"] == folder.name and str(folder.parent) not in str(provider.settings)


def test_a_model_that_is_not_there_is_wrong_usage(tmp_path):
    with pytest.raises(ConfigError, match=r"agent transformers: .* could not be loaded"):
        open_agent(f"transformers:{tmp_path}")
