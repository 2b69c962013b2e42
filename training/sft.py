r"""Supervised fine-tuning on the corpus: the warm start before GRPO.

    accelerate launch --config_file training/configs/accelerate/one_gpu.yaml \
        training/sft.py --config training/configs/sft_one_gpu.yaml --corpus data

Loss falls on the assistant's messages alone: prompts and feedback are the environment's.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset, Features, List, Value
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config, get_quantization_config

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.training.inputs.arguments import checkpoint_to_resume, output_folder, parse_arguments, run_recipe
from pkb_gym.training.inputs.chat import Message, as_code, render, submit_tools
from pkb_gym.training.inputs.dialogue_options import WITH_TOOLS, ConversationArguments, DialogueOptions
from pkb_gym.training.inputs.reward_weights import best_of_each_problem, weighed_by_reward
from pkb_gym.training.inputs.rings import RingSplit, without_rings
from pkb_gym.training.inputs.rows import load_corpus
from pkb_gym.training.learner.finite_gradients import FiniteGradients
from pkb_gym.training.processes.attention import use_sound_attention
from pkb_gym.training.scratch_model import PresetName, write_scratch_model

SCRATCH_FOLDER = "scratch"


@dataclass(kw_only=True)
class SftArguments(ConversationArguments):
    """Arguments of this recipe, beside those of TRL's `SFTConfig` and `ModelConfig`."""

    corpus: str = field(metadata={"help": "Folder or JSONL file written by `pkb export corpus` or by `rft.py`."})
    scratch: PresetName | None = field(
        default=None,
        metadata={
            "help": "Train a new model of this size instead of --model_name_or_path, with a tokenizer of its own."
        },
    )
    kinds: list[str] = field(
        default_factory=lambda: ["single", "repair"], metadata={"help": "Kinds of conversations to learn from."}
    )
    min_reward: float | None = field(
        default=None, metadata={"help": "Leave out conversations whose last submission has a lower reward."}
    )
    best_per_problem: int | None = field(
        default=None, metadata={"help": "Only so many conversations of each problem, those of the greatest rewards."}
    )
    reward_temperature: float | None = field(
        default=None,
        metadata={
            "help": "Weigh conversations of a problem by exp(reward / temperature); see inputs/reward_weights.py."
        },
    )
    rings: str | None = field(
        default=None,
        metadata={"help": "Folder of ring_prompts.py: learn nothing about the problems that it leaves out."},
    )
    imitate_failures: bool = field(
        default=False,
        metadata={"help": "Also learn to write the submissions that failed, which are context otherwise."},
    )


def main(argv: list[str] | None = None) -> None:
    """Fine-tunes a model and writes it into `output_dir`.

    Raises:
        ConfigError: an argument or the corpus is of no use.
    """
    args, config, model = parse_arguments((SftArguments, SFTConfig, ModelConfig), argv, prog="sft")
    options = args.conversation_options
    corpus = select_corpus(load_corpus(args.corpus), args, config.seed)
    if args.scratch is not None:
        use_scratch_model(model, corpus, output_folder(config), args.scratch, config.seed)
    fine_tune(corpus, config, model, imitate_failures=args.imitate_failures, options=options)


def select_corpus(corpus: Dataset, args: SftArguments, seed: int) -> Dataset:
    """The conversations to learn from, those that weigh more in several copies.

    Raises:
        ConfigError: an argument is of no use, or none is left.
    """
    if args.rings is not None:
        corpus = without_rings(corpus, RingSplit.read(Path(args.rings)))
    corpus = filter_corpus(corpus, kinds=args.kinds, min_reward=args.min_reward)
    if args.best_per_problem is not None:
        corpus = best_of_each_problem(corpus, args.best_per_problem)
    if args.reward_temperature is not None:
        corpus = weighed_by_reward(corpus, args.reward_temperature, seed)
    return corpus


def filter_corpus(corpus: Dataset, *, kinds: Iterable[str], min_reward: float | None) -> Dataset:
    """The conversations of these kinds whose last submission has at least the reward `min_reward`.

    Raises:
        ConfigError: none is left.
    """
    wanted = frozenset(kinds)
    kept = corpus.filter(
        lambda kind, reward: kind in wanted and (min_reward is None or reward >= min_reward),
        input_columns=["kind", "reward"],
        keep_in_memory=True,
    )
    if len(kept) == 0:
        raise ConfigError(
            f"none of the corpus's {len(corpus)} conversations is of kind {' or '.join(sorted(wanted))} "
            f"with a reward of {min_reward} or more; its kinds: {', '.join(sorted(set(corpus['kind'])))}"
        )
    return kept


def use_scratch_model(model: ModelConfig, corpus: Dataset, output: Path, preset: PresetName, seed: int) -> None:
    """Makes a new model below `output`, unless an earlier start of the run did, and points `model` to it.

    Raises:
        ConfigError: `model` names a model already.
    """
    if model.model_name_or_path is not None:
        raise ConfigError(
            f"scratch={preset} makes a new model; leave out model_name_or_path={model.model_name_or_path}"
        )
    folder = output / SCRATCH_FOLDER
    with PartialState().main_process_first():
        if not (folder / "model.safetensors").exists():
            write_scratch_model(corpus, folder, preset, seed)
    model.model_name_or_path = str(folder)


def fine_tune(
    corpus: Dataset,
    config: SFTConfig,
    model: ModelConfig,
    *,
    imitate_failures: bool = False,
    options: DialogueOptions = WITH_TOOLS,
) -> SFTTrainer:
    """Trains, and writes model, tokenizer and `trainer_state.json` (with the losses) into `config.output_dir`.

    Args:
        corpus: Rows of `pkb export corpus`.
        config: `max_length` leaves out longer conversations: one that is cut off would teach never to end.
        model: Name of the model, and the LoRA adapter if any.
        imitate_failures: Whether failed submissions are learnt from, as in `learnable`.
        options: Form of submissions, and variables of the chat template.

    Raises:
        ConfigError: there is no model, nothing to learn from, or no checkpoint where one is named.
    """
    if model.model_name_or_path is None:
        raise ConfigError("no model: give --model_name_or_path, or --scratch with a size to begin without one")
    checkpoint = checkpoint_to_resume(config)
    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path, revision=model.model_revision)
    rows = within(config.max_length, corpus, tokenizer, options)
    config.assistant_only_loss = True
    config.max_length = None  # no conversation is longer
    config.model_init_kwargs = model_arguments(model, config.model_init_kwargs)
    use_sound_attention()
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=config,
        train_dataset=learnable(rows, imitate_failures=imitate_failures, options=options),
        processing_class=tokenizer,
        peft_config=get_peft_config(model),
        callbacks=[FiniteGradients()],
        quantization_config=get_quantization_config(model),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    return trainer


def learnable(corpus: Dataset, *, imitate_failures: bool, options: DialogueOptions = WITH_TOOLS) -> Dataset:
    """Conversations in TRL's prompt-completion format: loss falls on the assistant's turns of the completion.

    Args:
        corpus: Rows of `pkb export corpus`.
        imitate_failures: Whether the completion begins with the assistant's first turn. Otherwise it begins after the
            last submission that failed: a broken kernel and its feedback are what the repair is conditioned on, and not
            something to learn to write.
        options: Form of submissions (as code, conversations have no tools), and variables of the chat template, which
            TRL takes from a column.
    """
    tools = json.dumps(submit_tools())
    template = {"chat_template_kwargs": dict(options.template)} if options.template else {}

    def split(row: dict[str, Any]) -> dict[str, Any]:
        messages = row["messages"]
        begin = _first_reply(messages) if imitate_failures else _after_last_failure(messages, row["feedback"])
        parts = {"prompt": messages[:begin], "completion": messages[begin:]}
        if options.submission == "code":
            return {name: as_code(part, row.get("language") or "") for name, part in parts.items()} | template
        return {**parts, "tools": tools} | template

    # Given beforehand: inferred from a first batch without submissions in its prompts, they would not fit later ones.
    talk = corpus.features["messages"]
    kinds = {"prompt": talk, "completion": talk, "tools": Value("string")}
    if options.submission == "code":
        text = List({"role": Value("string"), "content": Value("string")})
        kinds = {"prompt": text, "completion": text}
    if template:
        kinds |= Dataset.from_list([template]).features
    features = Features(kinds)
    return corpus.map(split, remove_columns=corpus.column_names, features=features, keep_in_memory=True)


def within(
    max_length: int | None,
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: DialogueOptions = WITH_TOOLS,
) -> Dataset:
    """The conversations of at most `max_length` tokens; logs the number of others.

    Raises:
        ConfigError: none is left.
    """
    if max_length is None:
        return corpus
    uses_tools = options.submission == "tool"
    conversations = [messages if uses_tools else as_code(messages) for messages in corpus["messages"]]
    lengths = [
        len(tokenizer(render(tokenizer, messages, with_tools=uses_tools, options=options.template))["input_ids"])
        for messages in conversations
    ]
    kept = corpus.select([index for index, length in enumerate(lengths) if length <= max_length])
    if len(kept) == 0:
        raise ConfigError(f"every conversation is longer than max_length={max_length}: {min(lengths)} tokens or more")
    if PartialState().is_main_process and len(kept) < len(corpus):
        print(f"{len(corpus) - len(kept)} of {len(corpus)} conversations are longer than max_length={max_length}")
    return kept


def model_arguments(model: ModelConfig, given: dict[str, Any] | str | None) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained`: those of `ModelConfig`, under those that were `given` to the trainer."""
    arguments = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    return arguments | dict(given or {})  # type: ignore[arg-type]  # TrainingArguments has parsed a string by now


def _first_reply(messages: list[Message]) -> int:
    return next(index for index, message in enumerate(messages) if message["role"] == "assistant")


def _after_last_failure(messages: list[Message], feedback: list[str]) -> int:
    """Index of the reply that follows the last submission that failed; that of the first reply where none did."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    unbroken = (None, Failure.COMPILED_ONLY)
    failed = [
        index for index, record in zip(answers, feedback, strict=True) if json.loads(record)["failure"] not in unbroken
    ]
    return failed[-1] + 1 if failed else _first_reply(messages)


if __name__ == "__main__":
    run_recipe(main)
