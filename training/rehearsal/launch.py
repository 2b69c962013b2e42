"""The command line of a recipe: processes, nodes, and how they share a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support import env_vars

Sharding: TypeAlias = Literal["none", "ddp", "fsdp1", "fsdp2", "zero2", "zero3"]
"""Distribution of a model over processes: one process; a copy in each; shared by FSDP or DeepSpeed."""

Recipe: TypeAlias = Literal["sft", "grpo", "rft", "evaluate_policy"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)

_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Launch:
    """The start of a recipe.

    Attributes:
        recipe: Name of the recipe.
        arguments: Command line of the recipe, without its name.
        processes: Number of processes of all nodes together, at least 1.
        nodes: Number of nodes, at least 1.
        sharding: Distribution of the model.
        mixed_precision: Whether accelerate computes in bfloat16 or float16.
        visible: Entries of CUDA_VISIBLE_DEVICES; None where it is not set.
    """

    recipe: Recipe
    arguments: tuple[str, ...]
    processes: int = 1
    nodes: int = 1
    sharding: Sharding = "none"
    mixed_precision: bool = False
    visible: tuple[str, ...] | None = None

    @property
    def per_node(self) -> int:
        """Number of processes of each node, at least 1."""
        return max(1, self.processes // self.nodes)


def parse_launch(words: Sequence[str]) -> Launch:
    """Reads a command: [NAME=VALUE ...] accelerate launch [options] SCRIPT ..., or python SCRIPT ....

    Raises:
        ConfigError: It starts no recipe, or its accelerate file cannot be read.
    """
    rest, variables = list(words), {}
    while rest and (found := _VARIABLE.fullmatch(rest[0])):
        variables[found[1]] = found[2]
        rest.pop(0)
    named = variables.get("CUDA_VISIBLE_DEVICES")
    visible = None if named is None else tuple(entry for entry in named.split(",") if entry)
    if rest[:2] == ["accelerate", "launch"]:
        return _accelerated(rest[2:], visible)
    if rest and Path(rest[0]).name.startswith("python"):
        script, *arguments = rest[2:] if rest[1:2] == ["-m"] else rest[1:] or [""]
        return Launch(_recipe(script), tuple(arguments), visible=visible)
    raise ConfigError(f"rehearse: {' '.join(rest[:3])!r} starts no recipe; expected `accelerate launch` or `python`")


def current_launch(script: str, arguments: Sequence[str]) -> Launch:
    """The launch that this process belongs to, as accelerate has described it in the environment.

    Args:
        script: File of the recipe.
        arguments: Command line of the recipe.
    """
    started = env_vars.accelerate_launch()
    sharding: Sharding = "none" if started.processes == 1 else "ddp"
    if started.fsdp_version is not None:
        sharding = "fsdp2" if started.fsdp_version == 2 else "fsdp1"
    elif started.zero_stage is not None:
        sharding = "zero3" if started.zero_stage == 3 else "zero2"
    nodes = max(1, started.processes // started.per_node)
    return Launch(
        _recipe(script), tuple(arguments), started.processes, nodes, sharding, started.mixed_precision, started.visible
    )


def _accelerated(words: Sequence[str], visible: tuple[str, ...] | None) -> Launch:
    try:
        given = launch_command_parser().parse_args(list(words))
    except SystemExit:
        raise ConfigError("rehearse: accelerate does not take these options; see its message above") from None
    recipe, arguments = _recipe(given.training_script), tuple(given.training_script_args)
    if given.config_file is None:
        raise ConfigError("rehearse: give accelerate a --config_file; without one it takes that of this machine")
    try:
        file = load_config_from_file(given.config_file)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"rehearse: {given.config_file} is no file of accelerate: {error}") from error
    kind = str(getattr(file.distributed_type, "value", file.distributed_type))
    sharding: Sharding = "none" if kind == "NO" else "ddp"
    if kind == "FSDP":
        sharding = "fsdp2" if int((file.fsdp_config or {}).get("fsdp_version", 1)) == 2 else "fsdp1"
    elif kind == "DEEPSPEED":
        sharding = "zero3" if (getattr(file, "deepspeed_config", None) or {}).get("zero_stage") == 3 else "zero2"
    processes = given.num_processes or file.num_processes
    nodes = given.num_machines or file.num_machines
    return Launch(recipe, arguments, processes, nodes, sharding, file.mixed_precision in ("bf16", "fp16"), visible)


def _recipe(script: str) -> Recipe:
    name = script.rpartition(".")[2] if not script.endswith(".py") else Path(script).stem
    for recipe in RECIPES:
        if name == recipe:
            return recipe
    raise ConfigError(f"rehearse: {script or 'nothing'!r} is no recipe; there are {', '.join(RECIPES)}")
