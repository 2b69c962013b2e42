r"""Checks a training command for a machine, before a GPU is taken.

    python training/rehearse.py 8x80 CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch \
        --config_file training/configs/accelerate/fsdp2_8.yaml --num_processes 4 training/grpo.py --config ...

TARGET describes the machine: GPUs of a node and decimal gigabytes of each, as 8x80; nodes first, as 2x8x80; or `here`.
The rest is the command as it will be typed. Nothing is started, no weights are loaded; figures of memory are estimates.

exit status: 0 nothing stands against it, 1 the command would fail or be wrong, 2 wrong usage
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.option_names import REHEARSE
from pkb_gym.training.rehearsal.findings import findings_table
from pkb_gym.training.rehearsal.launch import Launch, current_launch, parse_launch
from pkb_gym.training.rehearsal.target import Target

WIDTH = 120

LAUNCHED = "--launched"
"""First word of a command line that a recipe hands over; its name and its command line follow."""


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearses a command.

    Returns:
        Exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    try:
        if words[0] == LAUNCHED:
            target, arguments = _split(words[2:])
            return report(current_launch(words[1], arguments), target)
        return report(parse_launch(words[1:]), Target.parse(words[0]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _split(words: Sequence[str]) -> tuple[Target, list[str]]:
    """The target of `--rehearse`, and the command line without it."""
    apart = [part for word in words for part in (word.split("=", 1) if word.startswith(f"{REHEARSE}=") else [word])]
    at = apart.index(REHEARSE)
    if at + 1 == len(apart):
        raise ConfigError(f"{REHEARSE} needs a target, such as 8x80")
    return Target.parse(apart[at + 1]), [*apart[:at], *apart[at + 2 :]]


def report(launch: Launch, target: Target) -> int:
    """Prints the findings of a command, and returns the exit status."""
    from pkb_gym.training.rehearsal.rehearse import rehearse  # takes seconds, and a wrong target none

    findings = list(rehearse(launch, target))
    console = Console(width=WIDTH)
    console.print(f"{launch.recipe} on {target}", highlight=False)
    console.print(findings_table(findings), highlight=False)
    errors = sum(finding.level == "error" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    console.print(f"errors: {errors}, notes: {notes}", highlight=False)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
