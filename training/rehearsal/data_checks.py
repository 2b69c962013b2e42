"""The checks of prompts, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.chat import render
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.inputs.rows import Row, load_corpus, load_prompts
from pkb_gym.training.rehearsal.findings import Finding
from pkb_gym.training.rehearsal.plan import Plan
from pkb_gym.training.rollout.dialogue import Dialogue

CHARS_PER_TOKEN = 3.0
"""Characters of a token of prompts with code, for an estimate without the tokenizer: few, so that it errs upwards."""

MAX_TOKENIZED = 200
"""Number of prompts that are tokenized, the longest in characters."""

ASSUMED_PROMPT_TOKENS = 3000
"""Length of a prompt where none can be read."""


def read_data(plan: Plan) -> tuple[Sequence[Row], Finding]:
    """The prompts or conversations of a command."""
    try:
        found = load_prompts(plan.data, plan.part) if plan.holds_prompts else load_corpus(plan.data)
    except ConfigError as error:
        return [], Finding("error", "data", str(error))
    rows: list[Row] = found.to_list()
    kind = "prompts" if plan.holds_prompts else "conversations"
    return rows, Finding("ok", "data", f"{len(rows)} {kind} of {len({row['problem'] for row in rows})} problems")


def read_tokenizer(plan: Plan) -> tuple[PreTrainedTokenizerBase | None, Finding]:
    """The tokenizer of the model; None where it is not on this machine."""
    if plan.model is None:
        return None, Finding("error", "tokenizer", "no model: give --model_name_or_path")
    try:
        found = AutoTokenizer.from_pretrained(plan.model, revision=plan.revision, local_files_only=True)
    except (OSError, ValueError) as error:
        text = f"that of {plan.model} is not here: chat template and lengths in tokens are not checked"
        return None, Finding("note", "tokenizer", f"{text} ({' '.join(str(error).split())[:60]} ...)")
    return found, Finding("ok", "tokenizer", f"{len(found)} tokens")


def check_template(plan: Plan, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    """Whether the chat template has what the form of submissions needs."""
    options = DialogueOptions() if plan.generation is None else plan.generation.dialogue
    try:
        Dialogue(tokenizer, options)
    except ConfigError as error:
        yield Finding("error", "template", str(error))
        return
    how = "calls of the tool `submit`" if options.submission == "tool" else "fenced blocks of code"
    variables = "".join(f", {name}={value}" for name, value in options.template.items())
    yield Finding("ok", "template", f"submissions are {how}{variables}")


def longest_prompt(
    plan: Plan, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[int, Finding | None]:
    """Length of the longest prompt in tokens, or of the longest conversation of a corpus."""
    if not rows:
        return ASSUMED_PROMPT_TOKENS, None
    key = "prompt" if plan.holds_prompts else "messages"
    conversations = sorted((row[key] for row in rows), key=_chars, reverse=True)
    if tokenizer is None:
        estimate = int(_chars(conversations[0]) / CHARS_PER_TOKEN)
        text = f"the longest has {_chars(conversations[0])} characters, estimated as {estimate} tokens"
        return estimate, Finding("note", "lengths", text)
    options = DialogueOptions() if plan.generation is None else plan.generation.dialogue
    try:
        if plan.holds_prompts:
            dialogue = Dialogue(tokenizer, options)
            lengths = [len(dialogue.prompt_ids(talk)) for talk in conversations[:MAX_TOKENIZED]]
        else:
            lengths = [len(tokenizer(render(tokenizer, talk))["input_ids"]) for talk in conversations[:MAX_TOKENIZED]]
    except ConfigError:
        return ASSUMED_PROMPT_TOKENS, None
    return max(lengths), Finding("ok", "lengths", f"the longest {key} has {max(lengths)} tokens")


def check_lengths(plan: Plan, context: int, tokens: int) -> Iterator[Finding]:
    """Whether prompts and replies fit into what the model takes.

    Args:
        plan: Settings of the command.
        context: Longest sequence of the model in tokens.
        tokens: Length of the longest prompt or conversation.
    """
    generation, learning = plan.generation, plan.learning
    if generation is None:
        most = None if learning is None else learning.max_length
        if most is not None and tokens > most:
            yield Finding("note", "lengths", f"conversations of more than max_length={most} tokens are left out")
        return
    limit = min(context, generation.max_model_length or context)
    whole = tokens + generation.max_tokens
    if tokens >= limit:
        yield Finding(
            "error",
            "lengths",
            f"a prompt of {tokens} tokens leaves no room: the policy takes {limit}; export prompts of style brief",
        )
    elif whole > limit:
        yield Finding(
            "note",
            "lengths",
            f"{tokens} + max_completion_length {generation.max_tokens} exceeds {limit}: "
            f"long episodes end early, with {limit - tokens} tokens for replies and feedback",
        )
    else:
        yield Finding("ok", "lengths", f"{tokens} + {generation.max_tokens} of {limit} tokens")


def check_rows(plan: Plan, rows: Sequence[Row], judges: int | None) -> Iterator[Finding]:
    """Whether there are enough prompts, and for as many ranks as there are GPUs that judge.

    Args:
        plan: Settings of the command.
        rows: Prompts.
        judges: Number of GPUs that judge on a node; None where another machine judges.
    """
    generation = plan.generation
    if generation is None or not rows:
        return
    prompts = generation.episodes // generation.group
    if plan.learning is not None and len(rows) < prompts:
        yield Finding("error", "data", f"{len(rows)} prompts do not fill a step of {prompts}")
    on_gpus = [row for row in rows if row["device"] != "cpu"]
    sizes = sorted({int(row["world_size"]) for row in on_gpus})
    if judges is None or not sizes:
        return
    ranks = " and ".join(map(str, sizes))
    if sizes[-1] > judges:
        yield Finding(
            "error",
            "ranks",
            f"prompts are for {ranks} ranks, {judges} GPUs judge; export with "
            f"--world-size {judges}, or give more evaluation_gpus",
        )
    elif sizes[-1] < judges:
        yield Finding(
            "note",
            "ranks",
            f"prompts are for {ranks} ranks, {judges} GPUs judge: kernels are learnt for "
            f"{sizes[-1]}; export with --world-size {judges} for {judges}",
        )
    else:
        yield Finding("ok", "ranks", f"prompts are for {ranks} ranks, and as many GPUs judge")


def _chars(conversation: Sequence[Row]) -> int:
    calls = [call for message in conversation for call in message.get("tool_calls") or ()]
    sources = sum(len(str(call["function"]["arguments"])) for call in calls)
    return sources + sum(len(message["content"] or "") for message in conversation)
