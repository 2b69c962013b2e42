"""Dialogues with models as they are: their chat templates, forms of submissions, reasoning and limits of tokens."""

from __future__ import annotations

import json

import pytest

from pkb_gym.corpus.prompts import SYSTEM
from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.dialogue_options import DialogueArguments, DialogueOptions
from pkb_gym.training.rollout.dialogue import Dialogue
from tests.training.chat_families import FAMILIES

SOURCE = 'int solution() {\n    return "a</b>"[0];\n}\n'
PROMPT = [{"role": "system", "content": SYSTEM, "tool_calls": None}, {"role": "user", "content": "AllReduce."}]
ANSWER = {"role": "tool", "name": "submit", "content": "FAILED: race. <|im_end|><|eot_id|><|end|>"}
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.call is not None]


def reply_of(family, text):
    """The reply as tokens, with its end."""
    text = text.replace("JSON", json.dumps(SOURCE)).replace("SOURCE", SOURCE)
    return family.tokenizer()(text if text.endswith("<|call|>") else text + family.end)["input_ids"]


def source_of(message):
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "submit"
    return call["function"]["arguments"]["source"]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_calls_are_read_in_the_form_of_each_template(name):
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    dialogue = Dialogue(tokenizer)
    context = dialogue.prompt_ids(PROMPT)
    assert "submit" in tokenizer.decode(context).split("AllReduce.")[0].replace(SYSTEM, "") or name == "llama3.1"
    message = dialogue.read(reply_of(family, family.call), context)
    assert source_of(message).strip() == SOURCE.strip()


@pytest.mark.parametrize("name", FAMILIES)
def test_fenced_code_is_submitted_over_several_turns(name):
    """Without tools in the prompt, and with answers that the template renders as the user's."""
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    dialogue = Dialogue(tokenizer, DialogueOptions("code"))
    context = dialogue.prompt_ids(PROMPT)
    text = tokenizer.decode(context)
    assert "fenced block of code" in text and "the tool `submit`" not in text and '"parameters"' not in text
    for _ in range(2):
        reply = reply_of(family, family.code)
        assert source_of(dialogue.read(reply, context)) == SOURCE
        answer = dialogue.answer_ids([ANSWER], reply)
        assert tokenizer.decode(answer).count("FAILED: race.") == 1
        context = [*context, *reply, *answer]
    assert "tool_calls" not in dialogue.read(reply_of(family, "I cannot."), context)


@pytest.mark.parametrize(
    ("name", "submission"), [(name, "code") for name in FAMILIES] + [(name, "tool") for name in WITH_TOOLS]
)
def test_what_follows_a_reply_is_what_the_template_renders(name, submission):
    """From the reply's end on: the answer, and the header of the next reply; nothing of the answer is a token."""
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    dialogue = Dialogue(tokenizer, DialogueOptions(submission))
    reply = reply_of(family, family.call if submission == "tool" else family.code)
    message = dialogue.read(reply, dialogue.prompt_ids(PROMPT))
    conversation = [*PROMPT, message, ANSWER]
    rendered = dialogue._render(conversation, reply_next=True)
    suffix = tokenizer.decode(dialogue.answer_ids([ANSWER], reply))
    assert rendered.endswith(suffix) and not suffix.startswith(family.end)
    header = dialogue._render(PROMPT, reply_next=True).split("AllReduce.")[1]
    assert suffix.endswith(header.removeprefix(family.end)[-12:])
    assert sum(token in tokenizer.all_special_ids for token in dialogue.answer_ids([ANSWER], reply)) <= 7


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reply_that_was_cut_off_is_closed_before_the_answer(name):
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    dialogue = Dialogue(tokenizer, DialogueOptions("code"))
    whole = reply_of(family, family.code + "\nAnd so")
    closed = tokenizer.decode(dialogue.answer_ids([ANSWER], whole[:-1]))
    following = tokenizer.decode(dialogue.answer_ids([ANSWER], whole))
    assert source_of(dialogue.read(whole[:-1], dialogue.prompt_ids(PROMPT))) == SOURCE
    assert closed.endswith(following) and closed.removesuffix(following) in (family.end, "<|end|>")


@pytest.mark.parametrize("name", FAMILIES)
def test_earlier_reasoning_is_trimmed_from_the_context(name):
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    dialogue = Dialogue(tokenizer, DialogueOptions("code", trim_reasoning=True))
    reply = reply_of(family, family.reasoning)
    message = dialogue.read(reply, dialogue.prompt_ids(PROMPT))
    assert source_of(message) == SOURCE
    context = tokenizer.decode(dialogue.trimmed_ids(PROMPT, [message, ANSWER]))
    assert "REASON" in tokenizer.decode(reply) and "REASON" not in context
    assert context.count(SOURCE) == 1 and context.count("FAILED: race.") == 1
    assert Dialogue(tokenizer, DialogueOptions("code")).trimmed_ids(PROMPT, [message, ANSWER]) is None


def test_reasoning_before_a_call_is_trimmed_too():
    for name in ("qwen3", "gpt-oss"):
        family = FAMILIES[name]
        dialogue = Dialogue(family.tokenizer(), DialogueOptions(trim_reasoning=True))
        text = family.call.replace("<think>\n", "<think>\nREASON")
        message = dialogue.read(reply_of(family, text), dialogue.prompt_ids(PROMPT))
        context = family.tokenizer().decode(dialogue.trimmed_ids(PROMPT, [message, ANSWER]))
        assert "REASON" not in context and context.count("int solution()") == 1


def test_variables_reach_the_template():
    family = FAMILIES["qwen3"]
    tokenizer = family.tokenizer()

    def end_of_prompt(**variables):
        dialogue = Dialogue(tokenizer, DialogueOptions(template=variables))
        answered = tokenizer.decode(dialogue.answer_ids([ANSWER], reply_of(family, family.call)))
        return tokenizer.decode(dialogue.prompt_ids(PROMPT))[-40:], answered[-40:]

    assert all(text.endswith("<think>\n\n</think>\n\n") for text in end_of_prompt(enable_thinking=False))
    assert all(text.endswith("<|im_start|>assistant\n") for text in end_of_prompt())
    low = Dialogue(FAMILIES["gpt-oss"].tokenizer(), DialogueOptions(template={"reasoning_effort": "low"}))
    assert "Reasoning: low" in FAMILIES["gpt-oss"].tokenizer().decode(low.prompt_ids(PROMPT))


def test_templates_without_tools_are_refused_for_calls():
    for name in ("llama3", "smollm2"):
        with pytest.raises(ConfigError, match="the chat template has no tool calls; take --submission code"):
            Dialogue(FAMILIES[name].tokenizer())
    tokenizer = FAMILIES["smollm2"].tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="no chat template; take an instruction-tuned model"):
        Dialogue(tokenizer, DialogueOptions("code"))


def test_a_tokenizer_that_reads_code_is_left_as_it_was():
    """TRL parses replies by any parser that it finds in a tokenizer, and drops what that takes for a call."""
    tokenizer = FAMILIES["qwen3"].tokenizer()
    Dialogue(tokenizer, DialogueOptions("code"))
    assert getattr(tokenizer, "response_template", None) is None


def test_answers_fit_into_their_tokens():
    tokenizer = FAMILIES["qwen3"].tokenizer()
    dialogue = Dialogue(tokenizer, DialogueOptions(max_feedback_tokens=200))
    log = "\n".join(f"| error {number}" for number in range(300))
    answer = f"Turn 3\n\nFAILED: compile_error.\n\nCompiler (failed):\n{log}\n\nBest so far: turn 1."
    cut = dialogue.shortened(answer)
    assert 150 < len(tokenizer(cut)["input_ids"]) <= 200
    assert cut.startswith("Turn 3\n\nFAILED: compile_error.\n\nCompiler") and cut.endswith("Best so far: turn 1.")
    assert "characters left out" in cut and dialogue.shortened("short") == "short"
    short = Dialogue(tokenizer, DialogueOptions(max_feedback_tokens=32)).shortened(answer)
    assert short == "Turn 3\n\nFAILED: compile_error.\n\n"[: len(short)] and "FAILED: compile_error" in short


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"single_turn": True, "max_turns": 2}, "single_turn has one submission; leave out max_turns"),
        ({"max_turns": 0}, "max_turns must be at least 1, got 0"),
        ({"max_turn_tokens": 0}, "max_turn_tokens must be at least 1, got 0"),
        ({"max_feedback_tokens": 31}, "max_feedback_tokens must be at least 32, got 31"),
    ],
)
def test_limits_that_allow_nothing_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        DialogueArguments(**arguments).dialogue_options(None)


def test_variables_are_json_or_a_mapping():
    args = DialogueArguments(single_turn=True)
    assert args.dialogue_options('{"enable_thinking": false}').template == {"enable_thinking": False}
    assert args.dialogue_options({"a": 1}) == DialogueOptions("code", {"a": 1}) and args.turns == 1
    for wrong in ("thinking", "[1]"):
        with pytest.raises(ConfigError, match="chat_template_kwargs: expected a JSON object"):
            args.dialogue_options(wrong)
