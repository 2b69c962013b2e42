r"""Restores a policy from the difference to its base, as `benchmarks.learning_run` keeps it.

python training/restore_weights.py --base models/smollm2 --parts out --name sft --output models/sft
python training/restore_weights.py --base models/sft --parts out --name grpo --output models/grpo
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

from dataclasses import dataclass, field
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.arguments import parse_arguments, run_recipe
from pkb_gym.training.learner.weight_difference import WEIGHTS, restore_difference


@dataclass
class RestoreArguments:
    """Arguments of this recipe."""

    base: str = field(metadata={"help": "Folder of the model that training began with."})
    parts: str = field(metadata={"help": "Folder with NAME.0.safetensors, NAME.1.safetensors ..."})
    name: str = field(metadata={"help": "Of the policy: sft, or grpo, whose base is that of sft."})
    output: str = field(metadata={"help": "Folder for the model; must not hold one."})


def main(argv: list[str] | None = None) -> None:
    """Restores and writes.

    Raises:
        ConfigError: a folder has no weights, the parts are incomplete or of another base, or the output is in use.
    """
    (args,) = parse_arguments((RestoreArguments,), argv, prog="restore_weights")
    output = Path(args.output)
    if (output / WEIGHTS).exists():
        raise ConfigError(f"{output} holds a model; give another --output, or remove it")
    restore_difference(Path(args.base), Path(args.parts), args.name, output)
    print(f"{args.name} in {output}")


if __name__ == "__main__":
    run_recipe(main)
