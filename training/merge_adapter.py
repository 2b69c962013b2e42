"""Merges a LoRA adapter into its model, for what takes whole models: a further recipe, vLLM.

python -m pkb_gym.training.merge_adapter --adapter runs/sft --output runs/sft_merged
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

from dataclasses import dataclass, field
from pathlib import Path

from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.arguments import parse_arguments, run_recipe


@dataclass
class MergeArguments:
    """Arguments of this recipe."""

    adapter: str = field(metadata={"help": "Folder that a recipe wrote with --use_peft."})
    output: str = field(metadata={"help": "Folder for the merged model and its tokenizer."})


def main(argv: list[str] | None = None) -> None:
    """Merges and writes.

    Raises:
        ConfigError: the folder holds no adapter.
    """
    (args,) = parse_arguments((MergeArguments,), argv, prog="merge_adapter")
    if not (Path(args.adapter) / "adapter_config.json").is_file():
        raise ConfigError(f"{args.adapter} holds no adapter: expected adapter_config.json, as --use_peft leaves it")
    merged = AutoPeftModelForCausalLM.from_pretrained(args.adapter, dtype="auto").merge_and_unload()
    merged.save_pretrained(args.output)
    AutoTokenizer.from_pretrained(args.adapter).save_pretrained(args.output)
    print(f"merged model in {args.output}")


if __name__ == "__main__":
    run_recipe(main)
