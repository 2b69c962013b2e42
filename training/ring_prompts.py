r"""Writes prompts to train on, and three rings of held-out prompts around them; see `inputs/rings.py`.

    python training/ring_prompts.py --out data/rings --problems families --language cuda --left_out 3 --seed 0

`prompts.jsonl` is read by `grpo.py` (part `train`) and `evaluate_policy.py` (part `held_out`, summed up by ring);
`sft.py --rings data/rings` learns from conversations about the trained problems alone.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

from dataclasses import dataclass, field
from pathlib import Path

from pkb_gym.corpus.tasks import train_problems
from pkb_gym.engine.records.config import Language
from pkb_gym.envs.text.turn import Style
from pkb_gym.training.inputs.arguments import parse_arguments, run_recipe
from pkb_gym.training.inputs.rings import PromptSettings, split_rings, write_ring_prompts


@dataclass
class RingArguments:
    """Arguments of this recipe."""

    out: str = field(metadata={"help": "Folder to write to."})
    problems: list[str] = field(
        default_factory=lambda: ["train"], metadata={"help": "Names of the train split, `train`, or `families`."}
    )
    left_out: int = field(default=4, metadata={"help": "Problems of these that are kept from all training, at least."})
    seed: int = field(default=0, metadata={"help": "Of the choice of the left-out problems."})
    language: Language = field(default="cuda", metadata={"help": "In which kernels are to be written."})
    sizes: list[str] = field(default_factory=lambda: ["tiny"], metadata={"help": "Named sizes."})
    world_size: int = field(default=2, metadata={"help": "Ranks."})
    style: Style = field(default="brief", metadata={"help": "Of prompts and feedback."})
    seeds: int = field(default=1, metadata={"help": "Rows for each prompt, with other inputs each."})
    variations: int = field(default=4, metadata={"help": "Sizes and dtypes of each problem besides the named size."})


def main(argv: list[str] | None = None) -> None:
    """Writes `prompts.jsonl` and `rings.json`.

    Raises:
        ConfigError: an argument is of no use.
    """
    (args,) = parse_arguments((RingArguments,), argv, prog="ring_prompts")
    problems = [problem.name for problem in train_problems(args.problems, args.language)]
    settings = PromptSettings(
        (args.language,), tuple(args.sizes), args.world_size, args.style, args.seeds, args.variations
    )
    counts = write_ring_prompts(Path(args.out), split_rings(problems, args.left_out, args.seed), settings)
    print(", ".join(f"{name}: {count} prompts" for name, count in counts.items()))


if __name__ == "__main__":
    run_recipe(main)
