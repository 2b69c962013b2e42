"""The branches of a learning run: further seeds, and arms with other options; all have the first seed's SFT."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pkb_gym.engine.errors import ConfigError

COMMON = ("model", "sft", "rings_sft", "rings_base", "verdict_sft", "samples", "evolve")
"""Stages that the first seed has alone."""
SEED, ARM = "seed-", "arm-"
"""Beginnings of the names of their folders."""
ARM_OPTIONS = (
    *("grpo-turns", "grpo-completion", "grpo-submissions", "grpo-steps", "group", "batch", "best-window", "beta"),
    *("negative-weight", "learning-rate"),
)
"""Options that an arm may change: those of GRPO alone."""

Parse = Callable[[Sequence[str]], argparse.Namespace]


def of_first(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of the first seed."""
    seed = args.seed[0]
    return argparse.Namespace(**vars(args) | {"seed": seed, "skip": skipped(args.skip, str(seed)), "arm": None})


def further(args: argparse.Namespace, parse: Parse) -> Iterator[argparse.Namespace]:
    """The arguments of each further seed and of each arm, with folders of their own.

    They do not begin before what they share is there; without `side_by_side`, not before the first seed's GRPO either.

    Args:
        args: of `learning_run`.
        parse: the same command with further options.

    Raises:
        ConfigError: see `check_arms`.
    """
    changed = check_arms(args, parse)
    before = ("sft",) if args.side_by_side else ("sft", "grpo")
    if not all((args.runs / f"{name}.finished").exists() for name in before):
        return
    for seed in args.seed[1:]:
        yield _branch(args, f"{SEED}{seed}", {"seed": seed, "skip": skipped(args.skip, str(seed)), "arm": None})
    for name, of_arm in changed.items():
        own = {"seed": args.seed[0], "skip": skipped(args.skip, name), "arm": name}
        yield _branch(of_arm, f"{ARM}{name}", own)


def check_arms(args: argparse.Namespace, parse: Parse) -> dict[str, argparse.Namespace]:
    """The arguments of each arm, by its name.

    Raises:
        ConfigError: an arm has no name of its own, or changes what all share.
    """
    names = [words[0] for words in args.arm]
    if len(set(names)) < len(names):
        raise ConfigError(f"arms need names of their own; there are {', '.join(names)}")
    return {words[0]: arm_arguments(words, parse) for words in args.arm}


def arm_arguments(words: Sequence[str], parse: Parse) -> argparse.Namespace:
    """The arguments of an arm.

    Args:
        words: its name, and OPTION=VALUE for each option that differs.
        parse: see `further`.

    Raises:
        ConfigError: see there.
    """
    name, *changes = words
    if not name.replace("_", "").isalnum():
        raise ConfigError(f"the name of an arm has letters, digits and '_', got {name!r}")
    options = []
    for change in changes:
        option, equals, value = change.partition("=")
        if not equals or option not in ARM_OPTIONS:
            raise ConfigError(f"arm {name}: expected OPTION=VALUE with one of {', '.join(ARM_OPTIONS)}; got {change!r}")
        options += [f"--{option}", value]
    return parse(options)


def _branch(args: argparse.Namespace, name: str, own: dict[str, object]) -> argparse.Namespace:
    """With a folder that shows the model and SFT of the first seed."""
    folder: Path = args.runs / name
    folder.mkdir(exist_ok=True)
    for shared in ("model", "sft"):
        if not (folder / shared).exists():
            (folder / shared).symlink_to(Path("..") / shared)
        (folder / f"{shared}.finished").touch()
    parts = None if args.resume_from is None else args.resume_from / name
    places = {"runs": folder, "out": args.out / name, "resume_from": parts}
    skip = {"skip": [*own["skip"], *COMMON]}  # type: ignore[misc]  # a list of names
    return argparse.Namespace(**vars(args) | own | places | skip)


def skipped(words: Sequence[str], branch: str) -> list[str]:
    """Stages that a seed or an arm leaves out: those without a name, and those with its own.

    Example:
        >>> skipped(["rft", "1:samples", "two_turns:grpo"], branch="1")
        ['rft', 'samples']
    """
    named = [word.rpartition(":") for word in words]
    return [stage for of, _, stage in named if of in ("", branch)]
