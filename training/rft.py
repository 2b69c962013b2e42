r"""Rejection-sampling fine-tuning: learns from the best of what policies have submitted.

    accelerate launch --config_file training/configs/accelerate/one_gpu.yaml \
        training/rft.py --config training/configs/rft_one_gpu.yaml \
        --results runs/grpo/rollouts.jsonl --prompts data --model_name_or_path runs/sft --output_dir runs/rft

Of every prompt's right submissions the best few distinct ones become conversations, in the format of `pkb export
corpus`, and `sft.py` learns from them.

Source: best-of-n samples as a training set, as in Yuan et al., Scaling Relationship on Learning Mathematical Reasoning
with Large Language Models, arXiv:2308.01825.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, SFTConfig

from pkb_gym.corpus.conversations import CorpusRow, submission
from pkb_gym.corpus.files import write_corpus
from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.arguments import output_folder, parse_arguments, run_recipe
from pkb_gym.training.inputs.dialogue_options import ConversationArguments
from pkb_gym.training.inputs.rows import Row, load_corpus, load_prompts
from pkb_gym.training.results.attempts import read_rows
from pkb_gym.training.results.policy_summary import prompt_key
from pkb_gym.training.sft import fine_tune

POLICY = json.dumps({"author": "policy"})
"""Column `variant` of a kernel that no family made."""


@dataclass(kw_only=True)
class RftArguments(ConversationArguments):
    """Arguments of this recipe, beside those of TRL's `SFTConfig` and `ModelConfig`."""

    results: list[str] = field(
        metadata={
            "help": "results.jsonl of evaluate_policy.py or rollouts.jsonl of grpo.py; several are taken together."
        }
    )
    prompts: str = field(metadata={"help": "What was answered: folder or file written by `pkb export prompts`."})
    keep: int = field(default=4, metadata={"help": "Distinct kernels of each prompt."})
    min_reward: float = field(default=1.0, metadata={"help": "Least reward of a kernel; 1 is the baseline's speed."})


def main(argv: list[str] | None = None) -> None:
    """Selects, writes the corpus, and fine-tunes a model on it.

    Raises:
        ConfigError: an argument or a file is of no use, or nothing is good enough.
    """
    args, config, model = parse_arguments((RftArguments, SFTConfig, ModelConfig), argv, prog="rft")
    folder, options = output_folder(config), args.conversation_options
    if PartialState().is_main_process:
        results = [row for path in args.results for row in read_rows(Path(path))]
        prompts = load_prompts(args.prompts, "train").to_list()
        rows = best_of(results, prompts, keep=args.keep, min_reward=args.min_reward)
        write_corpus(folder, rows)
        print(f"{len(rows)} kernels, of {len({row['problem'] for row in rows})} problems, in {folder}/corpus.jsonl")
    PartialState().wait_for_everyone()
    fine_tune(load_corpus(str(folder)), config, model, options=options)


def best_of(results: Iterable[Row], prompts: Sequence[Row], *, keep: int, min_reward: float) -> list[CorpusRow]:
    """The best distinct right kernels of each prompt, as rows of a corpus; of equal ones those that were found first.

    Args:
        results: Rows of `evaluate_policy.py` or of `rollouts.jsonl`.
        prompts: Rows of `pkb export prompts`; results on other prompts are left out.
        keep: Maximum number of kernels of each prompt.
        min_reward: Minimum reward of a kernel.

    Raises:
        ConfigError: no right kernel on one of the prompts has that reward.
    """
    by_key = {prompt_key(prompt): prompt for prompt in prompts}
    found: dict[str, dict[str, Row]] = {}
    others = 0
    for row in results:
        if not row["is_right"] or row["reward"] is None or row["reward"] < min_reward:
            continue
        key = prompt_key(row)
        if key not in by_key:
            others += 1
            continue
        best = found.setdefault(key, {})
        if row["source_hash"] not in best or row["reward"] > best[row["source_hash"]]["reward"]:
            best[row["source_hash"]] = row
    if not found:
        raise ConfigError(
            f"no right kernel has a reward of {min_reward} or more on a prompt of the train part "
            f"({others} are on other prompts); lower --min_reward, or give more --results"
        )
    return [
        conversation(by_key[key], row)
        for key in by_key
        for row in sorted(found.get(key, {}).values(), key=lambda row: -row["reward"])[:keep]
    ]


def conversation(prompt: Row, result: Row) -> CorpusRow:
    """A row of the corpus: the prompt, and at once the kernel that was found, by whatever way."""
    return CorpusRow(
        id=hashlib.sha256(f"{prompt_key(prompt)} {result['source_hash']}".encode()).hexdigest()[:16],
        problem=prompt["problem"],
        language=prompt["language"],
        device=prompt["device"],
        world_size=prompt["world_size"],
        size=prompt["size"],
        dtype=prompt["dtype"],
        seed=prompt["seed"],
        style=prompt["style"],
        kind="single",
        messages=[*prompt["prompt"], submission(result["source"])],
        variant=POLICY,
        breakage=None,
        stage=result["stage"],
        failure=None,
        rewards=[result["reward"]],
        reward=result["reward"],
        speedup=result["speedup"],
        feedback=[],
        source_hash=result["source_hash"],
        prompt_chars=sum(len(message["content"]) for message in prompt["prompt"]),
        source_chars=len(result["source"]),
    )


if __name__ == "__main__":
    run_recipe(main)
